"""Starts the child processes of checks that may hang or crash, and ends them."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from jaxpp.doctor.finding import in_one_line

TICK = 0.02
GRACE = 2.0
"""Seconds that a process has to tell its own problem after another process has failed."""
REAP = 5.0
"""Seconds after which a killed process is left alone. It is stuck in the system, such as in a driver."""
PROBES = ("-m", "jaxpp.doctor.probes")
"""The arguments with which Python runs a probe; its name and arguments follow."""


class Outcome(NamedTuple):
    """The report of a probe.

    Attributes:
        problem: why it failed, in one line; "" if it did not.
        result: its results.
    """

    problem: str
    result: Mapping[str, Any]


class _Child:
    """The process of a probe, and its output."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as opened:
            self.output: IO[bytes] = opened.enter_context(tempfile.TemporaryFile())
            self.errors: IO[bytes] = opened.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                [sys.executable, *PROBES, name, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.errors,
                env={**os.environ, **environment},
            )
            opened.pop_all()

    def end(self) -> None:
        """Kills the process, and waits for its end."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP)
        self.output.close()
        self.errors.close()

    def outcome(self, seconds: float, *, others_failed: bool) -> Outcome:
        """Returns what the process told. It still runs if it has hung for `seconds`, or others failed before."""
        code = self.process.poll()
        told: dict[str, Any] = {}
        for line in _text(self.output).splitlines():
            with contextlib.suppress(ValueError):  # a library printed something else
                found = json.loads(line)
                told.update(found if isinstance(found, dict) else {})
        problem = str(told.pop("problem", ""))
        doing = told.pop("doing", "it starts Python")
        if not problem and code is None and others_failed:
            problem = f"it was ended, while {doing}, as another process had failed"
        elif not problem and code is None:
            problem = f"no answer within {seconds:g} s, while {doing}"
        elif not problem and code:
            lines = _text(self.errors).split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            problem = f"ended by {how}, while {doing}: {in_one_line(last)}"
        return Outcome(problem, told)


def run_probes(
    name: str, each: Sequence[Sequence[str]], seconds: float, environment: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Runs a probe in one process for each entry of `each`, its arguments. Returns what each of them told.

    No process is left after `seconds`, and GRACE and REAP seconds more.
    """
    children: list[_Child] = []
    try:
        for arguments in each:
            children.append(_Child(name, [*arguments, f"{seconds:g}"], environment or {}))
        end = time.monotonic() + seconds
        failed = False
        while any(child.process.poll() is None for child in children) and time.monotonic() < end:
            if not failed and any(child.process.poll() for child in children):
                failed, end = True, min(end, time.monotonic() + GRACE)
            time.sleep(TICK)
        return [child.outcome(seconds, others_failed=failed) for child in children]
    finally:
        for child in children:
            child.end()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
