"""Estimates the times of functions, transfers and copies on a target, and predicts a step."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxpp.ir.program import Call, Place, Program, Receive, Send
from jaxpp.planning.chips import Chip, Link
from jaxpp.planning.compiling import Compiled
from jaxpp.planning.sharing import Activity, times
from jaxpp.planning.target import Target
from jaxpp.runtime import Event
from jaxpp.runtime.execution.order import merged_order
from jaxpp.runtime.execution.route import route_of


def seconds_of(compiled: Compiled, chip: Chip) -> float:
    """Returns the seconds of one call of a function, on each of its devices.

    This is the compiler's estimate, if there is one, multiplied by the trips of loops, which the compiler counts once.
    Otherwise it is the sum of the times of matrix products and of memory accesses. Collectives, which no compiler's
    estimate includes, are added. Peak rates are multiplied by their `Efficiency`.
    """
    share = chip.efficiency
    inside = (compiled.collective_bytes - compiled.between_bytes) / chip.inside.bandwidth
    collectives = (inside + compiled.between_bytes / chip.between.bandwidth) / chip.rings / share.links
    if compiled.optimal_seconds:
        return compiled.trips * (compiled.optimal_seconds + collectives)
    products = sum(count / chip.peak(element) for element, count in compiled.device_products.items())
    memory = compiled.accessed_bytes / chip.memory_bandwidth / share.memory
    return products / share.products + compiled.trips * (memory + collectives)


@dataclass(frozen=True)
class Network:
    """The links of the meshes of a program on a target.

    Attributes:
        target: the target, whose chip has the links.
        hosts: for each mesh the hosts of its devices.
        ends: how long a message keeps the processor busy at each end, as on CPUs: a latency, and a bandwidth for its
            bytes. None: no processor is busy.
    """

    target: Target
    hosts: tuple[frozenset[int], ...]
    ends: Link | None = None

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


def end_seconds(program: Program, channel: int, network: Network) -> float:
    """Returns the seconds for which a transfer keeps the processor busy at each end, at most half of its time."""
    if network.ends is None:
        return 0.0
    taken = network.ends.latency + busiest_bytes(program, channel) / network.ends.bandwidth
    return min(taken, message_seconds(program, channel, network) / 2)


def copy_seconds(program: Program, mesh: int, call: Call, chip: Chip) -> float:
    """Returns the seconds of a copy between a device and its host; 0 if all values stay in their memory."""
    function = program.functions[call.function]
    pairs = zip(function.arguments, function.results, strict=True)
    moved = sum(sum(program.shard_bytes(mesh, to)) for of, to in pairs if of.memory != to.memory)
    return chip.host.latency + moved / chip.host.bandwidth if moved else 0.0


def predict(
    program: Program, seconds: Mapping[str, float], network: Network, processors: Sequence[int] | None = None
) -> list[Event]:
    """Predicts the events of a step. Each mesh runs its tasks in order, each as soon as its operands are there.

    A pair of meshes has one message under way at a time in each direction. Copies to and from the host run beside the
    tasks of their mesh, one at a time in each direction.

    Args:
        program: the program of the step.
        seconds: the seconds of each compiled function, if nothing else runs on its mesh.
        network: the links of the messages.
        processors: the index of the processor that runs each mesh. Tasks on one processor share it equally, as when a
            machine runs more processes than it has cores (`benchmarks/truth.py`). None: each mesh has its own
            processor, as on all targets.
    """
    step = _Step(program, seconds, network, processors or range(program.meshes))
    for mesh, each in merged_order(program):
        if isinstance(each, Send):
            step.send(mesh, each)
        elif isinstance(each, Receive):
            step.receive(mesh, each)
        else:
            step.call(mesh, each)
    run = times(step.activities)
    return [
        _event(mesh, call, run[number][0], run[number][1] - run[number][0], target)
        for number, mesh, call, target in step.events
    ]


class _Step:
    """The activities of a step.

    events: (index of the activity, mesh, call, receiving mesh of a message or None), for each event.
    """

    def __init__(
        self, program: Program, seconds: Mapping[str, float], network: Network, processors: Sequence[int]
    ) -> None:
        self.program, self.seconds, self.network, self.processors = program, seconds, network, processors
        self.activities: list[Activity] = []
        self.events: list[tuple[int, int, Call | None, int | None]] = []
        self.lines: dict[object, int] = {}
        """The last activity of each mesh, of its copies in each direction, and of each link."""
        self.makers: dict[Place, tuple[int, Call | None]] = {}
        self.sent: dict[int, tuple[int, Call | None]] = {}

    def add(self, seconds: float, processor: int | None, after: Iterable[int], line: object) -> int:
        number, last = len(self.activities), self.lines.get(line)
        before = dict.fromkeys(after if last is None else (*after, last))
        self.activities.append(Activity(seconds, processor, tuple(before)))
        self.lines[line] = number
        return number

    def send(self, mesh: int, send: Send) -> None:
        maker = self.makers.get((mesh, send.operand))
        call = maker[1] if maker else None
        made = () if maker is None else (maker[0],)
        taken, end = (each(self.program, send.channel, self.network) for each in (message_seconds, end_seconds))
        if end:
            made = (self.add(end, self.processors[mesh], made, ("end", mesh)),)
        number = self.add(taken - 2 * end, None, made, (mesh, send.destination))
        self.events.append((number, mesh, call, send.destination))
        if end:
            number = self.add(end, self.processors[send.destination], (number,), ("end", send.destination))
        self.sent[send.channel] = number, call

    def receive(self, mesh: int, receive: Receive) -> None:
        self.makers[mesh, receive.result] = self.sent[receive.channel]

    def call(self, mesh: int, call: Call) -> None:
        made = [self.makers[mesh, register][0] for register in call.operands if (mesh, register) in self.makers]
        function = self.program.functions[call.function]
        if function.is_copy:
            taken = copy_seconds(self.program, mesh, call, self.network.target.chip)
            leaves = any(each.memory for each in function.results)
            number = self.add(taken, None, made, ("copy_out" if leaves else "copy_in", mesh))
        else:
            taken = self.seconds.get(call.function, 0.0)
            number = self.add(taken, self.processors[mesh], made, mesh)
        self.makers.update({(mesh, register): (number, call) for register in call.results})
        self.events.append((number, mesh, call, None))


def _event(mesh: int, call: Call | None, start: float, seconds: float, target: int | None = None) -> Event:
    kind = "send" if target is not None else call.kind if call else ""
    stage, microbatch = (call.stage, call.microbatch) if call else (None, None)
    fused = call.fused if call and target is None else ()
    part = call.slice if call else 0
    return Event(mesh, kind, stage, microbatch, start, start + seconds, seconds, target, fused=fused, slice=part)
