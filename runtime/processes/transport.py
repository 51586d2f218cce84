"""What a program asks of whatever carries its values from process to process."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from jaxpp.runtime.processes.payload import Payload
from jaxpp.runtime.processes.waiting import Waiting

NUMBERS = 1 << 24
"""How many numbers follow that of each transfer: far more than steps of one program are ever under way at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class ProcessTransfer:
    """Arrays that one process sends to another in every step of a program.

    number: the first of NUMBERS that belong to it; each step takes another one.
    sender, receiver: the numbers of the two processes.
    sources: the types of the arrays on the sender's devices, as `jax.ShapeDtypeStruct`s on one device each; empty where
        the receiver does not know these devices.
    targets: likewise, on the receiver's devices; empty where the sender does not know them.
    """

    number: int
    sender: int
    receiver: int
    sources: Sequence[Any]
    targets: Sequence[Any]

    def number_at(self, step: int) -> int:
        """The number of the transfer in a step."""
        return self.number + step % NUMBERS

    @cached_property
    def offered(self) -> Payload:
        """What the sender has."""
        return Payload(self.sources)

    @cached_property
    def pulled(self) -> Payload:
        """What the receiver gets."""
        return Payload(self.targets)


def device_of(type_: Any) -> Any:
    """The device of a `jax.ShapeDtypeStruct` on one device."""
    return next(iter(type_.sharding.device_set))


class Transport(Protocol):
    """Carries the arrays of transfers. None of the calls but `wait` and `settle` waits for another process.

    name: as the user chooses it.
    is_ordered: whether both ends have to make their transfers in one order. Each step then begins with `begin`, which
        gives the order, and `pull` is called no later than the sender's `offer` in the merged order of the program.
    counts_all: whether transfers between other processes count too; `begin` then needs those of the whole program.
    """

    name: str
    is_ordered: bool
    counts_all: bool

    def check(self, peers: Sequence[int]) -> None:
        """Raise TransferError, and tell these processes, where no transfer can be made any more."""
        ...

    def begin(self, transfers: Sequence[ProcessTransfer], step: int) -> None:
        """Begin a step of these transfers, in this order."""
        ...

    def offer(self, transfer: ProcessTransfer, step: int, arrays: list[Any]) -> None:
        """Send arrays, which may not be computed yet, to the receiver."""
        ...

    def pull(self, transfer: ProcessTransfer, step: int) -> list[Any]:
        """Ask for the arrays of a transfer; returns for each one something that `wait` takes."""
        ...

    def wait(self, array: Any, waiting: Waiting) -> Any:
        """Wait until an array that was pulled has arrived, and return it.

        Raises TransferError, with what was waited for, if it will not come; PeerError if a process is gone.
        """
        ...

    def settle(self, waiting: Waiting) -> None:
        """Wait until what was offered and pulled before is under way. Raises as `wait`."""
        ...

    def abandon(self, reason: str) -> None:
        """End a step that failed: what it has not offered or asked for until now it never will."""
        ...

    def fail(self, transfer: ProcessTransfer, step: int, reason: str) -> None:
        """Tell the receiver that this step won't offer the arrays of a transfer, and why."""
        ...
