"""Transports that match the two ends of a transfer by their order, as collectives do.

The order is the program's, and the same in all processes (`Links`). A thread makes the transfers in this order, even
if the thread that dispatches offers arrays and asks for them in another order. So both ends agree, and a wait for a
process that is gone can be ended. If one transfer is not made, the two ends no longer match. No transfer is possible
after that, and the next step raises an error.
"""

import collections
import dataclasses
import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from jaxpp import _compat
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.transport import ProcessTransfer, Transport
from jaxpp.runtime.processes.waiting import TransferError, WaitFor, Waiting, failure, in_a_line
from jaxpp.runtime.processes.wire import TICK


@dataclasses.dataclass(eq=False, slots=True)
class _Entry:
    """A transfer of one step.

    is_given: whether this process has offered the arrays or asked for them, or has no part in the transfer.
    arrays: the arrays that this process sends.
    made: the arrays that this process received.
    error: the error that prevented the transfer.
    """

    transfer: ProcessTransfer
    number: int
    is_given: bool
    arrays: list[Any] = dataclasses.field(default_factory=list[Any])
    made: list[Any] = dataclasses.field(default_factory=list[Any])
    error: Exception | None = None
    done: threading.Event = dataclasses.field(default_factory=threading.Event)


@dataclasses.dataclass(frozen=True, slots=True)
class _OrderedArray:
    """The array at `index` of a transfer that this process receives."""

    entry: _Entry
    index: int


def tags_are_wanted() -> bool:
    """Whether each transfer also carries its number and its size for comparison by the receiver.

    Reads `JAXPP_CHECK_TRANSFERS`. Raises ProcessError if that is neither 0 nor 1.
    """
    found = os.environ.get("JAXPP_CHECK_TRANSFERS", "")
    if found not in {"", "0", "1"}:
        raise ProcessError(f"JAXPP_CHECK_TRANSFERS is {found!r}; give 1, or 0")
    return found == "1"


class OrderedTransport(Transport):
    """A transport that makes one transfer after the other, in the order that `begin` is given.

    messages: the transport for messages, which sends errors to the peers, and ends waits for peers that are gone.
    """

    is_ordered = True
    waits_in_xla = False
    """Whether `move` waits for the other process."""

    def __init__(self, messages: PullTransport) -> None:
        self.messages, self.me = messages, messages.me
        self._has_tags = tags_are_wanted()
        self._queue: collections.deque[_Entry] = collections.deque()
        self._entries: dict[int, _Entry] = {}
        """The entries that are not given yet, by number."""
        self._changed = threading.Condition()
        self._broken = ""
        self._thread = threading.Thread(target=self._serve, name="jaxpp-transfers", daemon=True)
        messages.others.append(self)

    def move(
        self, transfer: ProcessTransfer, arrays: Sequence[Any], sources: Sequence[Any], targets: Sequence[Any]
    ) -> Any:
        """Begins a transfer when its turn comes. The sender passes its `arrays`; all others pass none.

        sources, targets: the types of the arrays at both ends.
        Returns at the receiver the arrays, perhaps still on their way. Other results are unused.
        """
        raise NotImplementedError

    def check(self, peers: Sequence[int]) -> None:
        if self._broken:
            found = f"transfers are matched by their order, and one was not made ({self._broken})"
            self.messages.post_error(peers, f"process {self.me} failed: {found}")
            raise TransferError(f"{found}: start the job again from a checkpoint")

    def begin(self, transfers: Sequence[ProcessTransfer], step: int) -> None:
        with self._changed:
            for transfer in transfers:
                is_mine = self.me in (transfer.sender, transfer.receiver)
                entry = _Entry(transfer, transfer.number_at(step), not is_mine)
                self._queue.append(entry)
                if is_mine:
                    self._entries[entry.number] = entry
            self._changed.notify()
        if not self._thread.is_alive():
            self._thread.start()

    def offer(self, transfer: ProcessTransfer, step: int, arrays: list[Any]) -> None:
        self._give(transfer.number_at(step), arrays)

    def pull(self, transfer: ProcessTransfer, step: int) -> list[Any]:
        entry = self._give(transfer.number_at(step), [])
        return [_OrderedArray(entry, index) for index in range(len(transfer.targets))]

    def _give(self, number: int, arrays: list[Any]) -> _Entry:
        with self._changed:
            entry = self._entries.pop(number)
            entry.arrays, entry.is_given = arrays, True
            self._changed.notify()
        return entry

    def wait(self, array: Any, waiting: Waiting) -> Any:
        entry: _Entry = array.entry
        try:
            self._wait(entry, waiting)
            if self._has_tags and array.index == 0:
                self._check_tag(entry, waiting)
            self.messages.wait_computed(entry.made[array.index], waiting, entry.number)
            return entry.made[array.index]
        except BaseException as error:  # also Ctrl-C
            self._break(self._said(error))
            raise

    def _wait(self, entry: _Entry, waiting: Waiting) -> None:
        start = time.monotonic()
        if not entry.done.is_set():
            with WaitFor(waiting):
                while not entry.done.wait(TICK):
                    self.messages.look(waiting, time.monotonic() - start, entry.number)
                    if self._broken:
                        self._give_up(self._broken, waiting)
        if entry.error is not None:
            self._give_up(self._said(entry.error), waiting)

    def _give_up(self, reason: str, waiting: Waiting) -> NoReturn:
        """Raises TransferError with a reason, or PeerError if a dead process is the cause."""
        self.messages.failed(waiting)
        raise TransferError(reason)

    def _said(self, error: BaseException) -> str:
        """Returns the text of a transfer's error, as other processes get it."""
        return str(error) if isinstance(error, TransferError) else f"process {self.me} failed: {in_a_line(error)}"

    def settle(self, waiting: Waiting) -> None:
        with self._changed:
            given = [entry for entry in self._queue if entry.is_given and self.me in _ends(entry)]
        for entry in given:
            self._wait(entry, waiting)

    def abandon(self, reason: str) -> None:
        with self._changed:
            is_whole = all(entry.is_given for entry in self._queue)
        if not is_whole:
            self._break(reason)

    def fail(self, transfer: ProcessTransfer, step: int, reason: str) -> None:
        number = transfer.number_at(step)
        self.messages.refuse(transfer.receiver, number, reason)
        if number in self._entries:
            self._break(reason)

    @property
    def is_stuck(self) -> bool:
        return bool(self._broken) and self.waits_in_xla

    def finish(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._thread.is_alive() and (self._broken or self._queue) and time.monotonic() < end:
            time.sleep(0.01)

    def end(self) -> None:
        self._break(f"process {self.me} has left the job")

    def _break(self, reason: str) -> None:
        """Stops all further transfers."""
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify()

    def _serve(self) -> None:
        with jax.enable_x64(True), _compat.OwnTransfers():
            while (entry := self._next()) is not None:
                try:
                    self._make(entry)
                except Exception as error:  # of any kind: the thread that waits reports it
                    entry.error = error
                    if entry.transfer.sender == self.me:
                        self.messages.refuse(entry.transfer.receiver, entry.number, self._said(error))
                    self._break(self._said(error))
                entry.arrays = []
                self._queue.popleft()
                entry.done.set()
                del entry  # arrays must not live until the next transfer

    def _next(self) -> _Entry | None:
        """Waits until the next transfer is given, and returns it. After `_break` refuses all sends and returns None."""
        with self._changed:
            self._changed.wait_for(lambda: self._broken or (self._queue and self._queue[0].is_given))
        if not self._broken:
            return self._queue[0]
        for entry in self._queue:
            if entry.transfer.sender == self.me:
                self.messages.refuse(entry.transfer.receiver, entry.number, self._broken)
        return None

    def _make(self, entry: _Entry) -> None:
        transfer, arrays = entry.transfer, entry.arrays
        sources, targets = transfer.sources, transfer.targets
        if self._has_tags:
            sources, targets = [*sources, _tag_type(sources[0])], [*targets, _tag_type(targets[0])]
        if transfer.sender == self.me:
            if transfer.offered.is_on_cpu:
                for array in arrays:  # otherwise the receiver would wait for an array that could not be computed
                    if error := failure(array):
                        raise error
            if self._has_tags:
                arrays = [*arrays, _compat.to_device(_tag(entry.number, transfer.sources), sources[-1].sharding)]
        full = [number for number, each in enumerate(targets) if math.prod(each.shape)]
        given, here, there = ([each[k] for k in full] if each else [] for each in (arrays, sources, targets))
        found = iter(self.move(transfer, given, here, there))
        if transfer.receiver == self.me:  # empty arrays are not sent, because JAX's sockets never deliver them
            entry.made = [next(found) if number in full else zeros(each) for number, each in enumerate(targets)]

    def _check_tag(self, entry: _Entry, waiting: Waiting) -> None:
        self.messages.wait_computed(entry.made[-1], waiting, entry.number)
        *found, size = _compat.to_host(entry.made[-1]).tolist()
        *expected, wanted = _tag(entry.number, entry.transfer.targets).tolist()
        if found != expected:
            raise TransferError(
                f"{waiting}: another transfer came, of tag {found} and not {expected}: "
                "the two processes send in different orders"
            )
        if size != wanted:
            raise TransferError(f"{waiting}: {size} bytes came, {wanted} were expected")


def zeros(type_: Any) -> Any:
    """Returns an array of zeros of this type, on its device."""
    return _compat.to_device(np.zeros(type_.shape, type_.dtype), type_.sharding)


def _ends(entry: _Entry) -> tuple[int, int]:
    return entry.transfer.sender, entry.transfer.receiver


def _tag(number: int, types: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Returns the high and low half of a transfer's number, and the size of its arrays in bytes modulo 2^32."""
    size = sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in types)
    return np.array([*divmod(number, 1 << 32), size % (1 << 32)], np.uint32)


def _tag_type(like: Any) -> Any:
    return jax.ShapeDtypeStruct((3,), np.uint32, sharding=like.sharding)
