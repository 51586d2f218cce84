"""Estimates the times of functions, transfers and copies on a target, and predicts a step."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxpp.ir.program import Call, Program, Receive, Send
from jaxpp.planning.compiling import Compiled
from jaxpp.runtime import Event
from jaxpp.runtime.execution.order import merged_order
from jaxpp.runtime.execution.route import route_of
from jaxpp.runtime.measuring.events import StepEvents
from jaxpp.targets.chips import Chip, Link
from jaxpp.targets.target import Target


class CallSeconds(NamedTuple):
    """The seconds of one call of a function, on each of its devices.

    Attributes:
        products: the seconds of matrix products and convolutions.
        memory: the seconds of memory accesses.
        collectives: the seconds of collectives.
    """

    products: float
    memory: float
    collectives: float

    @property
    def total(self) -> float:
        """The seconds of the call, if its parts run one after the other."""
        return sum(self)

    @property
    def hidden(self) -> float:
        """The seconds of the call, if the longest part hides the others."""
        return max(self)


def seconds_of(compiled: Compiled, chip: Chip) -> CallSeconds:
    """Returns the seconds of one call of a function, on each of its devices.

    Products and memory accesses take as long as the compiler estimates, if it does, multiplied by the trips of loops,
    which the compiler counts once. What the products do not explain counts as memory accesses. Collectives, which no
    compiler's estimate includes, take a latency each, and the time of their bytes. Peak rates are multiplied by their
    `Efficiency`.
    """
    share = chip.efficiency
    products = sum(count / chip.peak(element) for element, count in compiled.device_products.items()) / share.products
    memory = compiled.trips * compiled.accessed_bytes / chip.memory_bandwidth / share.memory
    if compiled.optimal_seconds:
        total = compiled.trips * compiled.optimal_seconds
        products = min(products, total)
        memory = total - products
    inside = (compiled.collective_bytes - compiled.between_bytes) / chip.inside.bandwidth
    sent = (inside + compiled.between_bytes / chip.between.bandwidth) / chip.rings / share.links
    latency = (compiled.collectives - compiled.between_collectives) * chip.inside.latency
    latency += compiled.between_collectives * chip.between.latency
    return CallSeconds(products, memory, compiled.trips * (sent + latency))


@dataclass(frozen=True)
class Network:
    """The links of the meshes of a program on a target.

    Attributes:
        target: the target, whose chip has the links.
        hosts: for each mesh the hosts of its devices.
    """

    target: Target
    hosts: tuple[frozenset[int], ...]

    def across(self, source: int, target: int) -> Link:
        """Returns the link between devices of two meshes: `inside` if both meshes are on the same single host."""
        same = self.hosts[source] == self.hosts[target] and len(self.hosts[source]) == 1
        return self.target.chip.inside if same else self.target.chip.between


def busiest_bytes(program: Program, channel: int) -> int:
    """Returns the bytes that the busiest sender of a transfer sends."""
    hop = program.hops[channel]
    sent: Counter[int] = Counter()
    for piece in route_of(program, channel).pieces:
        sent[piece.source] += math.prod(piece.shape)
    return program.registers[hop.source][hop.operand].dtype.itemsize * max(sent.values(), default=0)


def message_seconds(program: Program, channel: int, network: Network) -> float:
    """Returns the seconds of a transfer. Its devices send in parallel, so the busiest one determines the time."""
    hop = program.hops[channel]
    link = network.across(hop.source, hop.target)
    return link.latency + busiest_bytes(program, channel) / link.bandwidth / network.target.chip.efficiency.links


def copy_seconds(program: Program, mesh: int, call: Call, chip: Chip) -> float:
    """Returns the seconds of a copy between a device and its host; 0 if all values stay in their memory."""
    function = program.functions[call.function]
    pairs = zip(function.arguments, function.results, strict=True)
    moved = sum(sum(program.shard_bytes(mesh, to)) for of, to in pairs if of.memory != to.memory)
    return chip.host.latency + moved / chip.host.bandwidth if moved else 0.0


def predict(program: Program, seconds: Mapping[str, float], network: Network) -> list[Event]:
    """Predicts the events of a step. Each mesh runs its tasks in order, each as soon as its operands are there.

    A pair of meshes has one message under way at a time in each direction. Copies to and from the host run beside the
    tasks of their mesh, one at a time in each direction.

    Args:
        program: the program of the step.
        seconds: the seconds of each compiled function, if nothing else runs on its mesh.
        network: the links of the messages.
    """
    step = StepEvents(program)
    for mesh, each in merged_order(program):
        if isinstance(each, Send):
            step.send(mesh, each, message_seconds(program, each.channel, network), (mesh, each.destination))
        elif isinstance(each, Receive):
            step.receive(mesh, each)
        else:
            step.call(mesh, each, *call_seconds(program, mesh, each, seconds, network))
    return step.events


def call_seconds(
    program: Program, mesh: int, call: Call, seconds: Mapping[str, float], network: Network
) -> tuple[float, object]:
    """Returns the seconds of a call, and its line: the mesh, or its copies from or to the host."""
    function = program.functions[call.function]
    if not function.is_copy:
        return seconds.get(call.function, 0.0), mesh
    is_leaving = any(each.memory for each in function.results)
    return copy_seconds(program, mesh, call, network.target.chip), ("out" if is_leaving else "in", mesh)
