"""Waits for another process in threads that can be left, and the errors of such waits."""

import dataclasses
import queue
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
    """A wait of this process for another one.

    peer: the process that it comes from; of a mesh that several processes share, one of the others.
    mesh: the mesh that waits; None between steps.
    action: what waits there, as "receive on channel 7 (forward of stage 0, microbatch 2) from"; empty between steps.
    owners: as of Peers; empty where no program is run.
    is_message: whether it comes at the beginning of the peer's next call, whatever that is.
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
        """Say in words what the mesh waits for, and for which process."""
        return f"{self.action} process {self.peer}".lstrip()


def place(thread: int) -> str:
    """Returns the user's line that a thread of this process runs, or that has called what it runs.

    thread: the identifier of the thread, as `threading.get_ident` returns it.
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
"""Beginnings of the names of Python's files, of installed packages' and of ours: all others are the user's."""


def in_a_line(error: BaseException) -> str:
    """Returns an error in one line. A long error is cut in its middle: the end says what a user's callback raised."""
    text = " ".join(str(error).split())
    if len(text) > 500:
        text = f"{text[:200]} ... {text[-295:]}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def aside(function: Callable[[], Found], look: Callable[[float], None]) -> Found:
    """Call a function that may wait where nothing can end the wait, in a thread of its own; return what it returns.

    look: called every TICK with the seconds so far; what it raises ends this call, and the function goes on alone.
    Raises what the function raises.
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


class WaitingThread:
    """Waits in a thread of its own. A wait of JAX can't be ended, not even by Ctrl-C; a wait for this thread can."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._requests,), name="jaxpp-wait", daemon=True)
        self._thread.start()

    def wait(self, array: Any, look: Callable[[float], None]) -> Exception | None:
        """Wait until the array is there; returns what it raised. Every TICK calls `look` with the seconds so far."""
        done = threading.Lock()
        done.acquire()
        outcome: list[Exception | None] = []
        self._requests.put((array, outcome, done))
        start = time.monotonic()
        while not done.acquire(timeout=TICK):
            look(time.monotonic() - start)
        return outcome[0]

    def abandon(self) -> None:
        """Leave the thread to a wait that was interrupted, and start another: Python can't end while a thread waits."""
        self.end()
        self._thread.join(1.0)
        self._start()

    def end(self) -> None:
        """End the thread, when its wait is over."""
        self._requests.put(None)


def _serve(requests: "queue.SimpleQueue[Any]") -> None:
    while (request := requests.get()) is not None:
        array, outcome, done = request
        outcome.append(failure(array))
        del request, array  # an array must not live until the next wait
        done.release()


def failure(array: Any) -> Exception | None:
    """Return the error that a wait for the array raises; None if the array is computed."""
    try:
        array.block_until_ready()
    except Exception as error:  # of XLA, or of any kind that a host callback raised; the caller reports it
        return error
    return None
