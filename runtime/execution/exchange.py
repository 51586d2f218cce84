"""The exchange of a program's values between processes: which process sends which pieces to which, in every step."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jaxpp.ir.program import Call, Hop, Program, Send
from jaxpp.ir.tensors import TensorSpec
from jaxpp.runtime.execution.order import Merged
from jaxpp.runtime.execution.route import Parts, Route, TypeAt, route_of
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.processes.transfer import Peers, key
from jaxpp.runtime.processes.transport import ProcessTransfer


@dataclasses.dataclass(frozen=True)
class Crossing:
    """The pieces of a channel and the processes at their ends.

    Attributes:
        hop: the meshes and registers of the channel.
        route: the pieces.
        ends: the sender and the receiver of each piece.
        is_whole: whether a transfer carries whole arrays instead of the shards of single devices. Whole arrays go
            between two meshes of one device each. A transport that needs an order always takes shards, because it
            moves arrays by its own programs.
        transfers: the transfers between different processes, each with the indices of its pieces.
    """

    hop: Hop
    route: Route
    ends: Sequence[tuple[int, int]]
    is_whole: bool
    transfers: Sequence[tuple[ProcessTransfer, list[int]]]


class Exchange:
    """The exchange plan of one process. It follows from the program and the owners of its meshes.

    One transfer carries all pieces of a channel that go from one process to one other process. Its number combines the
    step with a hash of the program, the two processes, the channel, the types and the indices of the pieces. An offer
    and a pull meet only if all of these agree.

    Attributes:
        partners: the processes that share a mesh with this one.
        neighbours: the partners, and the processes that send to this one or receive from it. If the transport counts
            all processes, all others.
    """

    def __init__(self, program: Program, peers: Peers, shardings: SubmeshShardings) -> None:
        self._program, self._shardings = program, shardings
        self._digest, self._transport = peers.program.hex(), peers.transport
        self.owners, self.positions, self.me = peers.owners, peers.positions, peers.messages.me
        self._crossings: dict[int, Crossing] = {}
        self.partners = sorted({owner for mesh in self.owners if self.me in mesh for owner in mesh} - {self.me})
        self.neighbours = self._find_neighbours()

    def is_local(self, *meshes: int) -> bool:
        """Whether all devices of these meshes belong to this process."""
        return {owner for mesh in meshes for owner in self.owners[mesh]} == {self.me}

    def crosses(self, channel: int) -> bool:
        """Whether other processes take part in a transfer."""
        hop = self._program.hops[channel]
        return not self.is_local(hop.source, hop.target)

    def crossing(self, channel: int) -> Crossing:
        """Returns the crossing of a channel, always the same object."""
        if channel not in self._crossings:
            hop, route = self._program.hops[channel], route_of(self._program, channel, self.owners)
            senders, receivers = self.owners[hop.source], self.owners[hop.target]
            ends = [(senders[piece.source], receivers[piece.target]) for piece in route.pieces]
            sizes = self._program.partitions[hop.source], self._program.partitions[hop.target]
            is_whole = sizes == (1, 1) and not self._transport.is_ordered
            groups: dict[tuple[int, int], list[int]] = {}
            for number, pair in enumerate(ends):
                if pair[0] != pair[1]:
                    groups.setdefault(pair, []).append(number)
            specs = self._program.registers[hop.source][hop.operand], self._program.registers[hop.target][hop.result]
            transfers: list[tuple[ProcessTransfer, list[int]]] = []
            for pair, numbers in sorted(groups.items()):
                pieces = [route.pieces[each] for each in numbers]
                sources = self._types(specs[0], hop.source, [(each.source, each.shape) for each in pieces], is_whole)
                targets = self._types(specs[1], hop.target, [(each.target, each.shape) for each in pieces], is_whole)
                number = key(self._digest, *pair, channel, *specs, numbers)
                transfers.append((ProcessTransfer(number, *pair, sources, targets), numbers))
            self._crossings[channel] = Crossing(hop, route, ends, is_whole, transfers)
        return self._crossings[channel]

    def cut(self, channel: int, pieces: Sequence[int]) -> Parts:
        """Returns a function that cuts these pieces out of this process's shards of the sent value."""
        crossing = self.crossing(channel)
        source, operand, *_ = crossing.hop
        return crossing.route.cut(pieces, self.positions(source), self._type_at(source, operand))

    def join(self, channel: int, pieces: Sequence[int]) -> Parts:
        """Returns a function that joins these pieces into this process's shards of the received value."""
        crossing = self.crossing(channel)
        *_, target, result = crossing.hop
        return crossing.route.join(pieces, self.positions(target), self._type_at(target, result))

    def stays(self, channel: int) -> tuple[list[int], Parts, list[Any]]:
        """Returns the indices of the pieces that stay in this process, the function that cuts them and the devices."""
        crossing = self.crossing(channel)
        stays = [number for number, pair in enumerate(crossing.ends) if pair == (self.me, self.me)]
        if not stays:
            return [], list, []  # the devices of the other mesh may not be known
        devices = self._shardings.union((crossing.hop.target,)).devices.flat
        return stays, self.cut(channel, stays), [devices[crossing.route.pieces[number].target] for number in stays]

    def in_order(self, order: Merged) -> list[ProcessTransfer]:
        """Returns the transfers of a step in the order of the sends, which both ends keep, from the merged order."""
        return [
            transfer
            for _, each in order
            if isinstance(each, Send) and self.crosses(each.channel)
            for transfer, _ in self.crossing(each.channel).transfers
            if self._transport.counts_all or self.me in (transfer.sender, transfer.receiver)
        ]

    def shared(self) -> list[tuple[int, Call, int]]:
        """Returns the last result, as (mesh, call, register), of each mesh that this process shares with others."""
        found: list[tuple[int, Call, int]] = []
        for mesh, calls in enumerate(self._program.calls):
            if self.is_local(mesh) or not self.positions(mesh):
                continue
            returned = {register for result in self._program.results for m, register in result.registers if m == mesh}
            made = [(mesh, each, register) for each in calls for register in each.results]
            found += [each for each in made if each[2] in returned][-1:]
        return found

    def _find_neighbours(self) -> list[int]:
        if self._transport.counts_all:
            return sorted({owner for mesh in self.owners for owner in mesh} - {self.me})
        found = set(self.partners)
        routes = {
            (hop.source, hop.target, route_of(self._program, channel, self.owners))
            for channel, hop in self._program.hops.items()
        }
        for source, target, route in routes:
            for piece in route.pieces:
                pair = self.owners[source][piece.source], self.owners[target][piece.target]
                if self.me in pair:
                    found.update(pair)
        return sorted(found - {self.me})

    def _types(
        self, spec: TensorSpec, mesh: int, pieces: Sequence[tuple[int, Sequence[int]]], is_whole: bool
    ) -> list[Any]:
        """Returns the types of pieces on a mesh; empty if JAX does not know the mesh's devices in this process."""
        if not self._shardings.knows(mesh):
            return []
        if is_whole:
            sharding = self._shardings.place(spec, (mesh,)).sharding
            return [jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)]
        return [self._shardings.type_at(mesh, spec.dtype, *each) for each in pieces]

    def _type_at(self, mesh: int, register: int) -> TypeAt:
        return partial(self._shardings.type_at, mesh, self._program.registers[mesh][register].dtype)
