"""How long the parts of a program take on a target, and a step as a whole."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from jaxpp.ir.program import Call, Program, Receive, Send
from jaxpp.planning.chips import Chip, Link
from jaxpp.planning.compiling import Compiled
from jaxpp.planning.target import Target
from jaxpp.runtime import Event
from jaxpp.runtime.execution.order import merged_order
from jaxpp.runtime.execution.route import route_of

Place = tuple[int, int]
"""(mesh, its register)."""


def seconds_of(compiled: Compiled, chip: Chip, devices: int, link: Link) -> float:
    """How long a function runs on each of its devices.

    What the compiler says, where it does; loops, which it counts once, by their FLOPs. Otherwise the time of the
    products, that of the memory that operations read and write, and that of the collectives, one after the other, each
    at its share of the peak (`Efficiency`).

    Args:
        compiled: the function.
        chip: each device.
        devices: how many share its products.
        link: over which its devices send to each other.
    """
    if compiled.optimal_seconds:
        return compiled.optimal_seconds * compiled.trips
    share = chip.efficiency
    products = sum(count / chip.peak(element) for element, count in compiled.products.items())
    return (
        products / devices / share.products
        + compiled.trips * compiled.accessed_bytes / chip.memory_bandwidth / share.memory
        + compiled.trips * compiled.collective_bytes / link.bandwidth / share.links
    )


@dataclass(frozen=True)
class Network:
    """The links of the meshes of a program on a target."""

    target: Target
    hosts: tuple[frozenset[int], ...]
    """Of each mesh, the hosts of its devices."""

    def within(self, mesh: int) -> Link:
        """The link over which the devices of a mesh send to each other."""
        return self.target.chip.inside if len(self.hosts[mesh]) == 1 else self.target.chip.between

    def across(self, source: int, target: int) -> Link:
        """The link from a device of a mesh to one of another."""
        same = self.hosts[source] == self.hosts[target] and len(self.hosts[source]) == 1
        return self.target.chip.inside if same else self.target.chip.between


def busiest_bytes(program: Program, channel: int) -> int:
    """What the device that sends most of a message sends of it."""
    hop = program.hops[channel]
    sent: Counter[int] = Counter()
    for piece in route_of(program, channel).pieces:
        sent[piece.source] += math.prod(piece.shape)
    return program.registers[hop.source][hop.operand].dtype.itemsize * max(sent.values(), default=0)


def message_seconds(program: Program, channel: int, network: Network) -> float:
    """How long a transfer is under way: its devices send side by side, the busiest one decides."""
    hop = program.hops[channel]
    link = network.across(hop.source, hop.target)
    return link.latency + busiest_bytes(program, channel) / link.bandwidth / network.target.chip.efficiency.links


def copy_seconds(program: Program, mesh: int, call: Call, chip: Chip) -> float:
    """How long a copy between the memories of a device and its host takes; one that stays on the device takes none."""
    function = program.functions[call.function]
    pairs = zip(function.arguments, function.results, strict=True)
    moved = sum(sum(program.shard_bytes(mesh, to)) for of, to in pairs if of.memory != to.memory)
    return chip.host.latency + moved / chip.host.bandwidth if moved else 0.0


def predict(program: Program, seconds: Mapping[str, float], network: Network) -> list[Event]:
    """A step as it would be traced: each mesh runs its tasks in order, each as soon as its operands are there.

    Of two meshes one message is under way at a time in each direction; copies to and from the host stand beside the
    tasks of their mesh, one at a time.

    seconds: of each compiled function.
    """
    clocks = [0.0] * program.meshes
    copies = [0.0] * program.meshes
    links: dict[tuple[int, int], float] = {}
    ready: dict[Place, tuple[float, Call | None]] = {}
    arrived: dict[int, tuple[float, Call | None]] = {}
    events: list[Event] = []
    for mesh, each in merged_order(program):
        if isinstance(each, Send):
            start, maker = ready.get((mesh, each.operand), (0.0, None))
            pair = (mesh, each.destination)
            start = max(start, links.get(pair, 0.0))
            taken = message_seconds(program, each.channel, network)
            links[pair] = start + taken
            arrived[each.channel] = start + taken, maker
            events.append(_event(mesh, maker, start, taken, each.destination))
        elif isinstance(each, Receive):
            ready[mesh, each.result] = arrived[each.channel]
        else:
            function = program.functions[each.function]
            start = max([0.0, *(ready.get((mesh, register), (0.0, None))[0] for register in each.operands)])
            clock = copies if function.is_copy else clocks
            start = max(start, clock[mesh])
            taken = (
                copy_seconds(program, mesh, each, network.target.chip)
                if function.is_copy
                else seconds.get(each.function, 0.0)
            )
            clock[mesh] = start + taken
            ready.update({(mesh, register): (start + taken, each) for register in each.results})
            events.append(_event(mesh, each, start, taken))
    return events


def _event(mesh: int, call: Call | None, start: float, seconds: float, target: int | None = None) -> Event:
    kind = "send" if target is not None else call.kind if call else ""
    stage, microbatch = (call.stage, call.microbatch) if call else (None, None)
    fused = call.fused if call and target is None else ()
    return Event(mesh, kind, stage, microbatch, start, start + seconds, seconds, target, fused=fused)
