"""The waits of this process: a registry of all of them, interruptible waits, and the errors of waits.

The registry costs nothing where a wait is over at once: a caller registers a wait only after a first look.
"""

import dataclasses
import os
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxpp import _compat, _jobs
from jaxpp.runtime.processes.autopsy import ProcessState, Wait, process_name
from jaxpp.runtime.processes.wire import TICK

Found = TypeVar("Found")

CALLBACK = "the function at this line must return before the step can go on"


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
    call: the call of this process that the message belongs to.
    """

    peer: int
    mesh: int | None = None
    action: str = ""
    owners: Sequence[Sequence[int]] = ()
    is_message: bool = False
    call: object = ""

    def __str__(self) -> str:
        if self.mesh is None:
            return f"waiting for process {self.peer}"
        return f"mesh {self.mesh}: {self.what}"

    @property
    def what(self) -> str:
        """The action and the process that the mesh waits for, in words."""
        return f"{self.action} process {self.peer}".lstrip()

    @property
    def subject(self) -> str:
        """The awaited thing, for `WaitFor`."""
        if self.mesh is not None:
            return f"{self.what}, on mesh {self.mesh}"
        return f"{self.what} to come where this process {self.call}" if self.call else self.what

    def needs(self, me: int) -> Sequence[int]:
        """Returns the other processes that the wait of process `me` needs. A collective needs all of its mesh."""
        owners = self.owners[self.mesh] if self.mesh is not None and self.owners else ()
        return sorted({*owners} - {me}) if {self.peer, me} <= {*owners} else [self.peer]


class WaitFor:
    """A context: a wait of this thread, in the registry while it lasts.

    what: the awaited thing, as in `Wait`. Text is made only for a report.
    peers: as in `Wait`. The caller may change them during the wait. Those of a `Waiting` follow from it.
    remedy: as in `Wait`.
    """

    __slots__ = ("_begun", "_remedy", "_thread", "_what", "peers")

    def __init__(self, what: Waiting | str, peers: Sequence[int] | None = (), remedy: str = "") -> None:
        self._what, self.peers, self._remedy = what, peers, remedy

    def __enter__(self) -> "WaitFor":
        self._thread, self._begun = threading.get_ident(), time.monotonic()
        _waits[id(self)] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _waits[id(self)]
        note_move()

    def wait(self, me: int, now: float, at_barrier: int | None = None) -> tuple[float, Wait]:
        """Returns when the wait began, and the wait as other processes see it.

        at_barrier: a thread whose waits for another thread are waits at a barrier.
        """
        what, peers = self._what, self.peers
        if isinstance(what, Waiting):
            what, peers = what.subject, what.needs(me)
        needed = None if peers is None else tuple(peers)
        is_barrier = needed is None and self._thread == at_barrier
        return self._begun, Wait(what, needed, now - self._begun, place(self._thread), self._remedy, is_barrier)


_waits: dict[int, WaitFor] = {}

_moved = [time.monotonic()]
"""When this process last moved."""

_seen: dict[tuple[int, str], float] = {}
"""For the main thread and for threads in host callbacks, by line: when a report first saw the thread there."""

_asides: dict[int, int] = {}
"""For each thread that waits in `aside`, the thread that runs its function."""


def note_move() -> None:
    """Notes that this process moves: it ends a wait, or begins a step."""
    _moved[0] = time.monotonic()


def own_state(me: int, thread: int | None = None) -> ProcessState:
    """Returns the state of this process, whose number is `me`.

    thread: the identifier of the thread that runs the user's code. None: the main thread.
    """
    now = time.monotonic()
    main = thread or threading.main_thread().ident or 0
    callbacks = [(thread, place(thread)) for thread in _threads_in({_compat.file_of_callbacks()})]
    places = (main, place(main)), *callbacks
    for gone in _seen.keys() - {*places}:
        _seen.pop(gone, None)
    since = {each: _seen.setdefault(each, now) for each in places}
    # Background threads at a barrier, as while a checkpoint is written, are no reason why the user's code waits.
    at_barriers = _threads_in(_jobs.files_of_barriers())
    found = [each.wait(me, now, main if _asides.get(main) in at_barriers else None) for each in list(_waits.values())]
    found += [(since[each], Wait("a host callback", (), now - since[each], each[1], CALLBACK)) for each in callbacks]
    if main in at_barriers:
        began, at = since[places[0]], places[0][1]
        found.append((began, Wait("all processes to come to a barrier", None, now - began, at, is_barrier=True)))
    begun = [when for when, _ in found] or [since[places[0]]]
    name = process_name(me, socket.gethostname(), os.getpid())
    return ProcessState(name, places[0][1], now - max(_moved[0], *begun), [wait for _, wait in found])


def _threads_in(files: Collection[str]) -> Sequence[int]:
    """Returns the threads that run a function of one of the files, or what such a function has called."""
    found: list[int] = []
    for thread, frame in sys._current_frames().items():
        while frame is not None and frame.f_code.co_filename not in files:
            frame = frame.f_back
        if frame is not None:
            found.append(thread)
    return found


def place(thread: int) -> str:
    """Returns the innermost line of the user's code on the stack of a thread of this process, for messages.

    thread: the identifier of the thread, as from `threading.get_ident`. The result is empty if it has ended, or runs no
        code of the user.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


_NOT_USERS = (
    *(sysconfig.get_paths()[each] + os.sep for each in ("stdlib", "purelib", "platlib")),
    *(f"{Path(__file__).parents[2]}{os.sep}", "<frozen"),
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
    caller = threading.get_ident()

    def run() -> None:
        _asides[caller] = threading.get_ident()
        try:
            found.append(function())
        except BaseException as error:  # of any kind: it is raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="jaxpp-aside", daemon=True)
    begun = time.monotonic()
    try:
        thread.start()
        thread.join(TICK)
        while thread.is_alive():
            look(time.monotonic() - begun)
            thread.join(TICK)
    finally:
        _asides.pop(caller, None)
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
