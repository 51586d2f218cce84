"""The transfers of one program to and from other processes, step after step."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxpp import _compat
from jaxpp.ir.program import Call, Program, Receive, Send
from jaxpp.ir.tensors import TensorSpec
from jaxpp.runtime.execution.order import Merged, with_pulls, with_receives_at_sends
from jaxpp.runtime.execution.route import Parts, Route, route_of
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.processes.digests import digest, sampling
from jaxpp.runtime.processes.faults import PeerError
from jaxpp.runtime.processes.meetings import Meeting, MeetingKind
from jaxpp.runtime.processes.transfer import Peers, key
from jaxpp.runtime.processes.transport import NUMBERS, ProcessTransfer
from jaxpp.runtime.processes.waiting import TransferError, Waiting, in_a_line

ArrayFunction = Callable[[Sequence[Any]], list[Any]]
"""The function of one step of the flattened program. It takes arrays and returns arrays."""


class Links:
    """The transfers of one program to and from this process.

    One transfer carries all pieces of a channel that go from one process to one other process. Its number combines the
    step with a hash of the program, the two processes, the channel, the types and the numbers of the pieces. An offer
    and a pull meet only if all of these agree.

    Each step begins with a message between every two neighbours. So a process is never more than one step ahead of its
    receivers, which bounds the arrays that it has on offer.

    name: returns the name of an argument from its number.
    """

    def __init__(
        self, program: Program, peers: Peers, shardings: SubmeshShardings, name: Callable[[int], str] = str
    ) -> None:
        self.program, self.shardings = program, shardings
        self.owners, self.positions = peers.owners, peers.positions
        self.is_ordered = peers.transport.is_ordered
        self.transport, self.messages, self.me = peers.transport, peers.messages, peers.messages.me
        self._digest = peers.program
        self._identity, self._text, self._name = peers.program[:16].ljust(16, b"\0"), peers.text, name
        self._meetings = peers.messages.meetings
        self._sampling = sampling()
        self._given: dict[int, int] = {}
        """By argument number, the digests of this step's arguments that are numpy arrays."""
        self._left_out = 0
        self._partners = sorted({owner for mesh in self.owners if self.me in mesh for owner in mesh} - {self.me})
        """The processes that share a mesh with this one."""
        self.neighbours = self._find_neighbours()
        self._step = 0
        self._is_needed = False
        """Whether a process that shares a mesh may be in a collective of this step, and wait for this process."""
        self._offers: set[ProcessTransfer] = set()
        """The transfers that a step offers."""
        self._offered: set[ProcessTransfer] = set()
        """The transfers that this step has offered so far."""
        self._order: list[ProcessTransfer] = []
        """The transfers of a step in the order that both ends keep. Empty if the transport needs no order."""
        self._made: dict[tuple[int, int, int], ProcessTransfer] = {}
        """The transfers by channel, sender and receiver."""
        self._tasks = _tasks(program)

    def is_local(self, *meshes: int) -> bool:
        """Whether all devices of these meshes belong to this process."""
        return {owner for mesh in meshes for owner in self.owners[mesh]} == {self.me}

    def stays(self, mesh: int, send: Send) -> tuple[list[int], Parts, list[Any]]:
        """Returns the numbers of the pieces that stay in this process, the function that cuts them and the devices."""
        route, near, far = self._route(mesh, send)
        stays = [number for number, pair in enumerate(zip(near, far, strict=True)) if pair == (self.me, self.me)]
        if not stays:
            return [], list, []  # the devices of the other mesh may not be known
        devices = self.shardings.union((send.destination,)).devices.flat
        targets = [devices[route.pieces[number].target] for number in stays]
        spec = self.program.registers[mesh][send.operand]
        return stays, route.cut(stays, self.positions(mesh), partial(self._type, spec, mesh)), targets

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
        self.transport.check(self.neighbours)
        if self._partners:
            self.messages.check_collectives()
        self._offered.clear()
        self.messages.running[self] = self._partners
        self._step += 1
        self._is_needed = bool(self._partners)
        names, digests = [self._name(number) for number in self._given], list(self._given.values())
        meeting = Meeting(
            MeetingKind.STEP,
            self._identity,
            self._step % NUMBERS,
            self._text,
            names,
            digests,
            self._sampling,
            self._left_out,
        )
        try:
            self._meetings.begin(self.neighbours, meeting, self.owners)
            # Check before collectives, which nothing could interrupt, and before transfers matched by their order.
            for peer in self.neighbours if self.is_ordered else self._partners:
                self._meetings.check(peer, self.owners)
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
            here = [each for each in order if self.positions(each[0])]
            return with_pulls(here) if is_batched else here
        sends = [each.channel for _, each in order if isinstance(each, Send)]
        crossing = [each for each in sends if not self.is_local(*self._ends(each))]
        everyone = self.transport.counts_all
        self._order = [
            transfer
            for channel in crossing
            for transfer, _ in self._transfers(channel)
            if everyone or self.me in (transfer.sender, transfer.receiver)
        ]
        found = with_receives_at_sends(order, set(crossing))
        return [each for each in found if self.positions(each[0])]

    def offer(self, mesh: int, send: Send) -> ArrayFunction:
        """Returns a function that offers this process's pieces of an array to the processes that receive them."""
        spec = self.program.registers[mesh][send.operand]
        pieces: list[tuple[ProcessTransfer, list[int]]] = []
        order: list[int] = []
        for transfer, numbers in self._transfers(send.channel):
            if transfer.sender == self.me:
                pieces.append((transfer, list(range(len(order), len(order) + len(numbers)))))
                order += numbers
        transport, offered = self.transport, [transfer for transfer, _ in pieces]
        shards = list if self._is_whole(send.channel) else _shards
        self._offers.update(offered)
        route = route_of(self.program, send.channel, self.owners)
        cut = route.cut(order, self.positions(mesh), partial(self._type, spec, mesh))

        def run(values: Sequence[Any]) -> list[Any]:
            parts = cut(shards(values))
            for transfer, indices in pieces:
                transport.offer(transfer, self._step, [parts[index] for index in indices])
            self._offered.update(offered)
            return []

        return run

    def pull(self, receive: Receive) -> tuple[ArrayFunction, list[int]]:
        """Returns a function that pulls the other processes' pieces of a value, and the numbers of these pieces."""
        pieces = [each for each in self._transfers(receive.channel) if each[0].receiver == self.me]
        transfers, transport = [transfer for transfer, _ in pieces], self.transport

        def run(_: Sequence[Any]) -> list[Any]:
            return [array for transfer in transfers for array in transport.pull(transfer, self._step)]

        return run, [number for _, numbers in pieces for number in numbers]

    def arrive(self, mesh: int, receive: Receive, order: Sequence[int]) -> ArrayFunction:
        """Returns a function that waits for pulled pieces and joins them with the pieces that were copied here.

        order: the numbers of the pieces, in the order of the function's operands.
        """
        spec = self.program.registers[mesh][receive.result]
        placed = self.shardings.place(spec, (mesh,))
        route, _, far = self._route(mesh, receive)
        task = self._tasks.get(receive.channel)
        action = f"{receive} ({task}) from" if task else f"{receive} from"
        waits = [(index, Waiting(far[number], mesh, action, self.owners)) for index, number in enumerate(order)]
        waits = [(index, waiting) for index, waiting in waits if waiting.peer != self.me]
        join = route.join(order, self.positions(mesh), partial(self._type, spec, mesh))
        unread, is_whole = self._meetings.unread, self._is_whole(receive.channel)

        def run(values: Sequence[Any]) -> list[Any]:
            values = list(values)
            for index, waiting in waits:
                if unread[waiting.peer]:
                    self._meetings.check(waiting.peer, self.owners)
                values[index] = self.transport.wait(values[index], waiting)
            return values if is_whole else [placed.join(join(values))]

        return run

    def shared(self) -> list[tuple[int, Call, int]]:
        """Returns the last result, as (mesh, call, register), of each mesh that this process shares with others."""
        found: list[tuple[int, Call, int]] = []
        for mesh, calls in enumerate(self.program.calls):
            if self.is_local(mesh) or not self.positions(mesh):
                continue
            returned = {register for result in self.program.results for m, register in result.registers if m == mesh}
            made = [(mesh, each, register) for each in calls for register in each.results]
            found += [each for each in made if each[2] in returned][-1:]
        return found

    def settle(self, mesh: int, call: Call) -> ArrayFunction | None:
        """Returns a function that waits until the transfers before a call have begun; None if the call need not wait.

        A call waits on a mesh of several processes if the transport needs an order. All of the processes have to begin
        the mesh's collectives and the transfers in the same order.
        """
        if self.is_local(mesh) or not self.is_ordered:
            return None
        waiting = Waiting(
            next(owner for owner in self.owners[mesh] if owner != self.me), mesh, f"{call} with", self.owners
        )

        def run(_: Sequence[Any]) -> list[Any]:
            self.transport.settle(waiting)
            return []

        return run

    def finish(self, mesh: int, call: Call) -> ArrayFunction:
        """Returns a function that waits for a result of a shared mesh, whose collectives need all its processes."""
        others = [owner for owner in self.owners[mesh] if owner != self.me]

        def run(values: Sequence[Any]) -> list[Any]:
            self.messages.wait_computed(values[0], Waiting(others[0], mesh, f"{call} with", self.owners))
            return []

        return run

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
                self.messages.failed(Waiting(self.me, owners=self.owners))
            except PeerError as gone:
                return gone
        return error if isinstance(error, PeerError) else None

    def _find_neighbours(self) -> list[int]:
        """Returns the processes that share a mesh with this one, send to it, or receive from it.

        If the transport counts all processes, returns all others.
        """
        if self.transport.counts_all:
            return sorted({owner for mesh in self.owners for owner in mesh} - {self.me})
        found = set(self._partners)
        routes = {
            (hop.source, hop.target, route_of(self.program, channel, self.owners))
            for channel, hop in self.program.hops.items()
        }
        for source, target, route in routes:
            for piece in route.pieces:
                pair = self.owners[source][piece.source], self.owners[target][piece.target]
                if self.me in pair:
                    found.update(pair)
        return sorted(found - {self.me})

    def _route(self, mesh: int, hop: Send | Receive) -> tuple[Route, list[int], list[int]]:
        """Returns the route of a transfer, and for each piece its processes on `mesh` and on the other mesh."""
        route = route_of(self.program, hop.channel, self.owners)
        if isinstance(hop, Send):
            here, there = self.owners[mesh], self.owners[hop.destination]
            ends = [(here[each.source], there[each.target]) for each in route.pieces]
        else:
            here, there = self.owners[mesh], self.owners[hop.source]
            ends = [(here[each.target], there[each.source]) for each in route.pieces]
        return route, [near for near, _ in ends], [far for _, far in ends]

    def _ends(self, channel: int) -> tuple[int, int]:
        """Returns the source mesh and the target mesh of a channel."""
        hop = self.program.hops[channel]
        return hop.source, hop.target

    def _transfers(self, channel: int) -> list[tuple[ProcessTransfer, list[int]]]:
        """Returns the transfers of a channel between different processes, each with the numbers of its pieces."""
        hop = self.program.hops[channel]
        route = route_of(self.program, channel, self.owners)
        specs = self.program.registers[hop.source][hop.operand], self.program.registers[hop.target][hop.result]
        groups: dict[tuple[int, int], list[int]] = {}
        for number, piece in enumerate(route.pieces):
            pair = self.owners[hop.source][piece.source], self.owners[hop.target][piece.target]
            if pair[0] != pair[1]:
                groups.setdefault(pair, []).append(number)
        found: list[tuple[ProcessTransfer, list[int]]] = []
        for (sender, receiver), numbers in sorted(groups.items()):
            if (channel, sender, receiver) not in self._made:
                pieces = [route.pieces[each] for each in numbers]
                sources = [(each.source, each.shape) for each in pieces]
                targets = [(each.target, each.shape) for each in pieces]
                is_whole = self._is_whole(channel)
                self._made[channel, sender, receiver] = ProcessTransfer(
                    key(self._digest.hex(), sender, receiver, channel, *specs, numbers),
                    sender,
                    receiver,
                    self._types(specs[0], hop.source, sources, is_whole),
                    self._types(specs[1], hop.target, targets, is_whole),
                )
            found.append((self._made[channel, sender, receiver], numbers))
        return found

    def _is_whole(self, channel: int) -> bool:
        """Whether a transfer carries whole arrays instead of the shards of single devices.

        Whole arrays go between two meshes of one device each. A transport that needs an order always takes shards,
        because it moves arrays by its own programs.
        """
        hop = self.program.hops[channel]
        sizes = self.program.partitions[hop.source], self.program.partitions[hop.target]
        return sizes == (1, 1) and not self.is_ordered

    def _types(
        self, spec: TensorSpec, mesh: int, pieces: Sequence[tuple[int, Sequence[int]]], is_whole: bool
    ) -> list[Any]:
        """Returns the types of pieces on a mesh; empty if JAX does not know the mesh's devices in this process."""
        if not self.shardings.knows(mesh):
            return []
        if is_whole:
            return [jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self.shardings.place(spec, (mesh,)).sharding)]
        return [self._type(spec, mesh, *each) for each in pieces]

    def _type(self, spec: TensorSpec, mesh: int, position: int, shape: Sequence[int]) -> Any:
        """Returns the type of a piece on the device at a position of the mesh."""
        return self.shardings.type_at(mesh, spec.dtype, position, shape)


def _shards(values: Sequence[Any]) -> Sequence[Any]:
    """Returns the shards of the only value in `values`, each an array on one device."""
    return _compat.shards(values[0])


def _tasks(program: Program) -> dict[int, Call]:
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
