"""How long the parts of a program take on a target, and a step as a whole."""

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
    """How long a function runs on each of its devices.

    What the compiler says, where it does; loops, which it counts once, by their FLOPs. Otherwise the time of the
    products, and that of the memory that operations read and write. After that come the collectives, which no compiler
    has in its times. What is not the compiler's time is taken at its share of the peak (`Efficiency`).

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
        target: whose chip has the links.
        hosts: of each mesh, the hosts of its devices.
        ends: what of a message's time the processors of its meshes work, each at its end, as CPUs do; None: nothing.
    """

    target: Target
    hosts: tuple[frozenset[int], ...]
    ends: Link | None = None

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


def end_seconds(program: Program, channel: int, network: Network) -> float:
    """How long each end of a transfer keeps its processor busy, of the time that it is under way."""
    if network.ends is None:
        return 0.0
    taken = network.ends.latency + busiest_bytes(program, channel) / network.ends.bandwidth
    return min(taken, message_seconds(program, channel, network) / 2)


def copy_seconds(program: Program, mesh: int, call: Call, chip: Chip) -> float:
    """How long a copy between the memories of a device and its host takes; one that stays on the device takes none."""
    function = program.functions[call.function]
    pairs = zip(function.arguments, function.results, strict=True)
    moved = sum(sum(program.shard_bytes(mesh, to)) for of, to in pairs if of.memory != to.memory)
    return chip.host.latency + moved / chip.host.bandwidth if moved else 0.0


def predict(
    program: Program, seconds: Mapping[str, float], network: Network, processors: Sequence[int] | None = None
) -> list[Event]:
    """A step as it would be traced: each mesh runs its tasks in order, each as soon as its operands are there.

    Of two meshes one message is under way at a time in each direction; copies to and from the host stand beside the
    tasks of their mesh, one at a time in each direction.

    Args:
        program: what runs.
        seconds: of each compiled function, alone on its mesh.
        network: what messages take.
        processors: the number of the processor that runs each mesh; tasks that run on one at the same time have equal
            shares of it, as where CPUs run more processes than they have cores (`benchmarks/truth.py`). None: each mesh
            has its own, as on all targets.
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

    events: the number of the activity of each event, its mesh, the call, and of a message where it goes.
    """

    def __init__(
        self, program: Program, seconds: Mapping[str, float], network: Network, processors: Sequence[int]
    ) -> None:
        self.program, self.seconds, self.network, self.processors = program, seconds, network, processors
        self.activities: list[Activity] = []
        self.events: list[tuple[int, int, Call | None, int | None]] = []
        self.lines: dict[object, int] = {}
        """The last activity of each mesh, of its copies each way, and of each link."""
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
