"""Interruptible waits for other processes, in separate threads, and the errors of such waits."""

import dataclasses
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxpp.runtime.processes.wire import TICK

Found = TypeVar("Found")


class TransferError(RuntimeError):
    """A process does not get expected data from another process, or gets other data."""


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """A wait of this process for another process.

    peer: the process that is waited for; on a mesh that several processes share, one of the other processes.
    mesh: the mesh that waits; None between steps.
    action: the waiting action, as "receive on channel 7 (forward of stage 0, microbatch 2) from"; empty between steps.
    owners: see `Peers`; empty if no program runs.
    is_message: whether the wait is for the message at the beginning of the peer's next call of any kind.
    """

    peer: int
    mesh: int | None = None
    action: str = ""
    owners: Sequence[Sequence[int]] = ()
    is_message: bool = False

    def __str__(self) -> str:
        if self.mesh is None:
            return f"waiting for process {self.peer}"
        return f"mesh {self.mesh}: {self.what}"

    @property
    def what(self) -> str:
        """The action and the process that the mesh waits for, in words."""
        return f"{self.action} process {self.peer}".lstrip()


def place(thread: int) -> str:
    """Returns the innermost line of the user's code on the stack of a thread of this process, for messages.

    thread: the identifier of the thread, as from `threading.get_ident`. The result is empty if it has ended.
    """
    frame = innermost = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    frame = frame or innermost
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


_NOT_USERS = (
    *(sysconfig.get_paths()[each] for each in ("stdlib", "purelib", "platlib")),
    *(str(Path(__file__).parents[2]), str(Path(__file__).resolve().parents[2]), "<frozen"),
)
"""Prefixes of the file names of Python's library, installed packages and jaxpp. All other files are the user's."""


def in_a_line(error: BaseException) -> str:
    """Returns an error in one line. A long error loses its middle, because its end may quote a user's callback."""
    text = " ".join(str(error).split())
    if len(text) > 500:
        text = f"{text[:200]} ... {text[-295:]}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def aside(function: Callable[[], Found], look: Callable[[float], None]) -> Found:
    """Calls a function in a separate thread, because nothing can interrupt its waits; returns the function's result.

    look: called every TICK with the seconds so far. Its errors end this call, while the function goes on in its thread.
    Raises the errors of the function.
    """
    found: list[Found] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:  # of any kind: it is raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="jaxpp-aside", daemon=True)
    thread.start()
    begun = time.monotonic()
    thread.join(TICK)
    while thread.is_alive():
        look(time.monotonic() - begun)
        thread.join(TICK)
    if errors:
        raise errors[0]
    return found[0]


def failure(array: Any) -> Exception | None:
    """Waits for the array; returns its error, or None if the array is computed."""
    try:
        array.block_until_ready()
    except Exception as error:  # of XLA, or of any kind from a host callback; the caller reports it
        return error
    return None
