"""The base of a transport, which carries a program's values from process to process."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from jaxpp.runtime.processes.payload import Payload
from jaxpp.runtime.processes.waiting import Waiting

NUMBERS = 1 << 24
"""The number of consecutive numbers of each transfer, far more than steps of one program ever run at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class ProcessTransfer:
    """A transfer of arrays from one process to another in every step of a program.

    number: the first of its NUMBERS numbers; each step takes the next.
    sender, receiver: the numbers of the two processes.
    sources: the types of the arrays on the sender's devices, as `jax.ShapeDtypeStruct`s on one device each; empty if
        the receiver does not know these devices.
    targets: the types of the arrays on the receiver's devices; empty if the sender does not know these devices.
    """

    number: int
    sender: int
    receiver: int
    sources: Sequence[Any]
    targets: Sequence[Any]

    def number_at(self, step: int) -> int:
        """Returns the number of the transfer in a step."""
        return self.number + step % NUMBERS

    @cached_property
    def offered(self) -> Payload:
        """The arrays at the sender."""
        return Payload(self.sources)

    @cached_property
    def pulled(self) -> Payload:
        """The arrays at the receiver."""
        return Payload(self.targets)


def device_of(type_: Any) -> Any:
    """Returns the device of a `jax.ShapeDtypeStruct` on one device."""
    return next(iter(type_.sharding.device_set))


class Transport:
    """A carrier of the arrays of transfers. Only `wait` and `settle` wait for another process.

    A transport that needs no order leaves `check`, `begin`, `settle` and `abandon` as they are here.

    name: the name by which the user chooses it.
    is_ordered: whether both ends must make their transfers in the same order. Each step then calls `begin` with the
        order, and calls `pull` no later than the sender's `offer` in the merged order of the program.
    counts_all: whether transfers between other processes count too. `begin` then needs all transfers of the program.
    """

    name: str
    is_ordered = False
    counts_all = False

    def check(self, peers: Sequence[int]) -> None:
        """Raises TransferError, and sends the error to these processes, if no transfer is possible any more."""

    def begin(self, transfers: Sequence[ProcessTransfer], step: int) -> None:
        """Begins a step with these transfers, in this order."""

    def offer(self, transfer: ProcessTransfer, step: int, arrays: list[Any]) -> None:
        """Sends arrays, which may not be computed yet, to the receiver."""
        raise NotImplementedError

    def pull(self, transfer: ProcessTransfer, step: int) -> list[Any]:
        """Asks for the arrays of a transfer; returns for each a handle for `wait`."""
        raise NotImplementedError

    def wait(self, array: Any, waiting: Waiting) -> Any:
        """Waits until an array that was pulled has arrived, and returns the array.

        Raises TransferError, which names the wait, if the array will not come; PeerError if a process is gone.
        """
        raise NotImplementedError

    def settle(self, waiting: Waiting) -> None:
        """Waits until all earlier offers and pulls have begun. Raises as `wait`."""

    def abandon(self, reason: str) -> None:
        """Ends a step that failed. Its remaining offers and pulls will never be made."""

    def fail(self, transfer: ProcessTransfer, step: int, reason: str) -> None:
        """Tells the receiver that this step won't offer the arrays of a transfer, and why."""
        raise NotImplementedError

    @property
    def is_stuck(self) -> bool:
        """Whether one of its threads may wait in XLA until the other process ends."""
        return False

    def finish(self, seconds: float) -> None:
        """Waits at most so many seconds until its pending sends are done, before Python exits."""

    def end(self) -> None:
        """Ends its threads, because this process leaves its job."""
