"""The transfers of one program to and from other processes, step after step."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import jax
import numpy as np

from jaxpp import _compat
from jaxpp.ir.program import Call, Program, Receive, Send
from jaxpp.runtime.execution.exchange import Exchange
from jaxpp.runtime.execution.order import Merged, with_pulls, with_receives_at_sends
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.processes.digests import digest, sampling
from jaxpp.runtime.processes.faults import PeerError
from jaxpp.runtime.processes.meetings import Meeting, MeetingKind
from jaxpp.runtime.processes.transfer import Peers
from jaxpp.runtime.processes.transport import NUMBERS, ProcessTransfer
from jaxpp.runtime.processes.waiting import TransferError, Waiting, in_a_line, note_move

ArrayFunction = Callable[[Sequence[Any]], list[Any]]
"""The function of one step of the flattened program. It takes arrays and returns arrays."""


class Links:
    """Makes the transfers of an exchange, in every step of a program.

    Each step begins with a message between every two neighbours. So a process is never more than one step ahead of its
    receivers, which bounds the arrays that it has on offer.

    name: returns the name of an argument from its number.
    """

    def __init__(
        self, program: Program, peers: Peers, shardings: SubmeshShardings, name: Callable[[int], str] = str
    ) -> None:
        self.exchange = exchange = Exchange(program, peers, shardings)
        self._owners, self._partners, self._neighbours = exchange.owners, exchange.partners, exchange.neighbours
        self.program, self.shardings = program, shardings
        self.is_ordered = peers.transport.is_ordered
        self.transport, self.messages, self.me = peers.transport, peers.messages, peers.messages.me
        self._identity, self._text, self._name = peers.program[:16].ljust(16, b"\0"), peers.text, name
        self._meetings = peers.messages.meetings
        self._sampling = sampling()
        self._given: dict[int, int] = {}
        """By argument number, the digests of this step's arguments that are numpy arrays."""
        self._left_out = 0
        self._step = 0
        self._is_needed = False
        """Whether a process that shares a mesh may be in a collective of this step, and wait for this process."""
        self._offers: set[ProcessTransfer] = set()
        """The transfers that a step offers."""
        self._offered: set[ProcessTransfer] = set()
        """The transfers that this step has offered so far."""
        self._order: list[ProcessTransfer] = []
        """The transfers of a step in the order that both ends keep. Empty if the transport needs no order."""
        self._makers = makers_of(program)

    def enter(self, left_out: Iterable[tuple[int, int]] = ()) -> None:
        """Resets the state of the last step. The caller then calls `note` for the new step's arguments.

        left_out: (stage, microbatch) of each weight gradient that the step leaves out.
        """
        self._given = {}
        self._left_out = zlib.crc32(str(tasks).encode()) if (tasks := sorted(left_out)) else 0

    def note(self, argument: int, value: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
        """Stores the digest of an argument that is a numpy array, so that `start` can compare it between processes."""
        if self._sampling != "none":
            self._given[argument] = digest(value, dtype, self._step, self._sampling == "all")

    def start(self, _: Sequence[Any]) -> list[Any]:
        """Begins a step: tells the neighbours, and checks that they have begun the last step.

        Raises:
            TransferError: a neighbour made another call or did not come, or no transfer is possible any more.
        """
        self.transport.check(self._neighbours)
        if self._partners:
            self.messages.check_collectives()
        self._offered.clear()
        note_move()
        self.messages.running[self] = self._partners
        self._step += 1
        self._is_needed = bool(self._partners)
        names, digests = [self._name(number) for number in self._given], list(self._given.values())
        number, sampled = self._step % NUMBERS, (names, digests, self._sampling, self._left_out)
        meeting = Meeting(MeetingKind.STEP, self._identity, number, self._text, *sampled)
        try:
            self._meetings.begin(self._neighbours, meeting, self._owners)
            # Check before collectives, which nothing could interrupt, and before transfers matched by their order.
            for peer in self._neighbours if self.is_ordered else self._partners:
                self._meetings.check(peer, self._owners)
        except TransferError:
            self._is_needed = len(self._partners) > 1  # a single partner has found the same, and begins no collective
            raise
        self.transport.begin(self._order, self._step)
        return []

    def in_order(self, order: Merged, is_batched: bool) -> Merged:
        """Returns the order in which this process issues its instructions, from the merged order of all meshes.

        is_batched: whether to pull values earlier than the program receives them.

        If the transport needs an order, all processes make the transfers in the order of the sends. Each value from
        another process is then pulled at its send. So no pull delays a transfer that another process needs first.
        """
        if not self.is_ordered:
            here = [each for each in order if self.exchange.positions(each[0])]
            return with_pulls(here) if is_batched else here
        self._order = self.exchange.in_order(order)
        crossing = set(filter(self.exchange.crosses, self.program.hops))
        return [each for each in with_receives_at_sends(order, crossing) if self.exchange.positions(each[0])]

    def offer(self, send: Send) -> ArrayFunction:
        """Returns a function that offers this process's pieces of an array to the processes that receive them."""
        crossing = self.exchange.crossing(send.channel)
        mine = [each for each in crossing.transfers if each[0].sender == self.me]
        cut = self.exchange.cut(send.channel, [number for _, numbers in mine for number in numbers])
        transport, offered = self.transport, [transfer for transfer, _ in mine]
        shards = list if crossing.is_whole else _shards
        self._offers.update(offered)

        def run(values: Sequence[Any]) -> list[Any]:
            parts = iter(cut(shards(values)))
            for transfer, numbers in mine:
                transport.offer(transfer, self._step, list(islice(parts, len(numbers))))
            self._offered.update(offered)
            return []

        return run

    def pull(self, receive: Receive) -> tuple[ArrayFunction, list[int]]:
        """Returns a function that pulls the other processes' pieces of a value, and the numbers of these pieces."""
        mine = [each for each in self.exchange.crossing(receive.channel).transfers if each[0].receiver == self.me]
        transfers, transport = [transfer for transfer, _ in mine], self.transport

        def run(_: Sequence[Any]) -> list[Any]:
            return [array for transfer in transfers for array in transport.pull(transfer, self._step)]

        return run, [number for _, numbers in mine for number in numbers]

    def arrive(self, mesh: int, receive: Receive, order: Sequence[int]) -> ArrayFunction:
        """Returns a function that waits for pulled pieces and joins them with the pieces that were copied here.

        order: the numbers of the pieces, in the order of the function's operands.
        """
        crossing = self.exchange.crossing(receive.channel)
        placed = self.shardings.place(self.program.registers[mesh][receive.result], (mesh,))
        maker = self._makers.get(receive.channel)
        action = f"{receive} ({maker}) from" if maker else f"{receive} from"
        senders = [(index, crossing.ends[number][0]) for index, number in enumerate(order)]
        waits = [(index, Waiting(each, mesh, action, self._owners)) for index, each in senders if each != self.me]
        join = self.exchange.join(receive.channel, order)
        unread, is_whole = self._meetings.unread, crossing.is_whole

        def run(values: Sequence[Any]) -> list[Any]:
            values = list(values)
            for index, waiting in waits:
                if unread[waiting.peer]:
                    self._meetings.check(waiting.peer, self._owners)
                values[index] = self.transport.wait(values[index], waiting)
            return values if is_whole else [placed.join(join(values))]

        return run

    def settle(self, mesh: int, call: Call) -> ArrayFunction | None:
        """Returns a function that waits until the transfers before a call have begun; None if the call need not wait.

        A call waits on a mesh of several processes if the transport needs an order. All of the processes have to begin
        the mesh's collectives and the transfers in the same order.
        """
        if self.exchange.is_local(mesh) or not self.is_ordered:
            return None
        waiting = self._waiting(mesh, call)

        def run(_: Sequence[Any]) -> list[Any]:
            self.transport.settle(waiting)
            return []

        return run

    def finish(self, mesh: int, call: Call) -> ArrayFunction:
        """Returns a function that waits for a result of a shared mesh, whose collectives need all its processes."""
        waiting = self._waiting(mesh, call)

        def run(values: Sequence[Any]) -> list[Any]:
            self.messages.wait_computed(values[0], waiting)
            return []

        return run

    def _waiting(self, mesh: int, call: Call) -> Waiting:
        """Returns the wait for another process of a shared mesh."""
        other = next(owner for owner in self._owners[mesh] if owner != self.me)
        return Waiting(other, mesh, f"collectives ({call}) with", self._owners)

    def end(self) -> None:
        """Ends a step."""
        self.messages.running.pop(self, None)
        self._is_needed = False

    def fail(self, error: BaseException) -> None:
        """Ends a step that failed: sends the error in place of the transfers that the step has not offered yet.

        First, this method breaks the collectives that other processes may be in. It does not if the only partner has
        died or is frozen, because no other process is then in them.

        Raises:
            PeerError: `error` is an error of XLA, and a process is gone. The loss of a process makes collectives fail.
        """
        said, gone = in_a_line(error), self._gone(error)
        if self._is_needed and not (gone and self._partners == [gone.loss.peer] and not gone.loss.ended):
            self.messages.break_collectives(said)
        self.end()
        reason = f"process {self.me} failed: {said}"
        for transfer in self._offers - self._offered:
            self.transport.fail(transfer, self._step, reason)
        self._offered.update(self._offers)
        self.transport.abandon(reason)
        if gone is not None and gone is not error:
            raise gone

    def _gone(self, error: BaseException) -> PeerError | None:
        """Returns the error for a lost process if the loss caused the error of a step; None otherwise."""
        if isinstance(error, jax.errors.JaxRuntimeError):
            try:
                self.messages.failed(Waiting(self.me, owners=self._owners))
            except PeerError as gone:
                return gone
        return error if isinstance(error, PeerError) else None


def _shards(values: Sequence[Any]) -> Sequence[Any]:
    """Returns the shards of the only value in `values`, each an array on one device."""
    return _compat.shards(values[0])


def makers_of(program: Program) -> dict[int, Call]:
    """Returns for each channel the call that computes the value sent over the channel."""
    found: dict[int, Call] = {}
    for sequence in program.sequences:
        made: dict[int, Call] = {}
        for each in sequence:
            if isinstance(each, Call):
                made.update(dict.fromkeys(each.results, each))
            elif isinstance(each, Send) and each.operand in made:
                found[each.channel] = made[each.operand]
    return found
