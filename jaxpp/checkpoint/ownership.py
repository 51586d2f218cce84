"""A note in a directory about the job that saves there, so that two jobs never write or delete there at once."""

import contextlib
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from etils import epath

from jaxpp._system import write_file
from jaxpp.checkpoint.handler import is_bucket

NAME = ".jaxpp-saver.json"

_JOB = "JAXPP_RUN_HEAD"
"""The variable that `jaxpp-run` sets for the processes of a job. One of them may save after another has died."""


class Ownership:
    """The right to save into a directory. The last job that took the right has it; `check` fails in earlier jobs.

    Raises:
        OSError: another running process of this machine has the right, or the directory can't be read or written.
    """

    def __init__(self, directory: epath.Path) -> None:
        self._directory, self._path = directory, directory / NAME
        self._note = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "started": _started(os.getpid()),
            "job": os.environ.get(_JOB, ""),
            "token": secrets.token_hex(8),
        }
        if self._is_running(other := self._read()):
            raise OSError(
                f"{directory}: process {other['process']} saves there; one Saver has a directory at a time: "
                "end that process, or give another directory"
            )
        text = json.dumps(self._note)
        if is_bucket(directory):
            self._path.write_text(text)
        else:
            write_file(str(self._path), text.encode())

    def check(self) -> None:
        """Raises OSError if another job has taken the directory, or somebody has removed the note."""
        other = self._read()
        if other.get("token") != self._note["token"]:
            who = f"process {other['process']} on {other['host']} has" if other.get("host") else "somebody has"
            raise OSError(f"{self._directory}: {who} taken over this directory, so this job saves no more there")

    def release(self) -> None:
        """Gives up the right, if this job still has it."""
        with contextlib.suppress(OSError):
            self.check()
            self._path.unlink()

    def _read(self) -> dict[str, Any]:
        """Returns the note in the directory; empty if there is no readable note."""
        try:
            found: Any = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _is_running(self, other: dict[str, Any]) -> bool:
        """Whether the note names another job's process that runs on this machine. Other machines can't be asked."""
        is_other = other.get("process") != self._note["process"] and (other.get("job") or None) != self._note["job"]
        is_here = other.get("host") == self._note["host"] and isinstance(other.get("process"), int)
        return is_other and is_here and _started(other["process"]) == other.get("started") != ""


def _started(process: int) -> str:
    """Returns the start time of a process of this machine; empty if it doesn't run, or the system doesn't tell."""
    try:
        # The name in parentheses may contain anything; the start time is the twentieth field after it (proc(5)).
        return (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, IndexError):
        return ""
