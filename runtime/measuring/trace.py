"""Traces one step: the time and the memory of every task and copy, each measured while nothing else runs."""

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxpp._system import write_file
from jaxpp.ir.program import Call, Receive, Send, TaskName
from jaxpp.runtime.execution.execute import Executable
from jaxpp.runtime.execution.steps import StepLabel
from jaxpp.schedules.formats.chrome_trace import COMPUTE, Arrow, Bar, Label, Memory, curve, in_order, print_chrome_trace


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A task, or a copy to another mesh (kind "send"), of one step.

    Attributes:
        mesh: the mesh that runs the task or sends the copy.
        kind: the kind of the task: "forward", "backward", ...
        stage: the stage of the task, or of the task that made the sent value; None outside the microbatch loop.
        microbatch: the microbatch of that task; None outside the microbatch loop.
        start: seconds since the beginning of the step. Start and end are computed: each mesh runs its tasks in order,
            each as soon as its operands are there, and copies take no time of a mesh.
        end: the start plus `seconds`.
        seconds: the measured duration, with nothing else running.
        target: of a send, the mesh that receives.
        made: bytes that are allocated at the start, on `mesh` or, for a send, on `target`. They are the bytes of whole
            values, not of shards. A result that takes the buffer of an operand allocates nothing.
        freed: bytes on `mesh`, made by this step, whose last use is this event.
        fused: the names of the tasks if one call runs several. The call then has no stage and no microbatch.
        slice: the slice of the sequence, where the schedule cuts it.
        processor_seconds: the processor time of this process during the event.
    """

    mesh: int
    kind: str
    stage: int | None
    microbatch: int | None
    start: float
    end: float
    seconds: float
    target: int | None = None
    made: int = 0
    freed: int = 0
    fused: tuple[TaskName, ...] = ()
    slice: int = 0
    processor_seconds: float = 0.0

    @property
    def label(self) -> Label:
        """The name of the event in a trace."""
        return Label(self.kind, self.stage, self.microbatch, self.slice)

    @property
    def labels(self) -> list[Label]:
        """The names of the event's tasks in a trace; a fused call has several."""
        return [Label(*task) for task in self.fused] or [self.label]

    def __str__(self) -> str:
        """Returns `forward 0, 3` for stage 0, microbatch 3, or `forward 0, 3 + backward 1, 2` for two fused tasks."""
        return " + ".join(map(str, self.labels))


def trace_step(executable: Executable, arguments: Sequence[Any]) -> tuple[list[jax.Array], list[Event]]:
    """Runs one step, waiting for each instruction; returns its results and its events, in the order of dispatch.

    This is a real training step, only slower: the results are valid, and donated arguments are deleted.

    Several processes call it together. If the executable has a `gather`, each process gets the events of all.
    Otherwise each gets its own events, and a copy to another process takes no time.
    """
    tracer = _Tracer(executable)
    if executable.gather is not None:
        executable.gather("")  # all processes begin together
    results = executable.run(arguments, tracer.on_step, tracer.on_start)
    if executable.gather is None:
        return results, tracer.events
    parts = [json.loads(part) for part in executable.gather(json.dumps(tracer.part()))]
    return results, _merged([part for part in parts if part["events"]])


def write_chrome_trace(events: Sequence[Event], path: str | Path) -> None:
    """Writes the events for Perfetto or chrome://tracing, in the same form as `Report.to_chrome_trace`.

    The counter of live bytes leaves out the arguments of the step.
    """
    bars = (Bar(each.mesh, COMPUTE, each.labels, each.start, each.end) for each in events if each.target is None)
    arrows = [
        Arrow(each.label, each.mesh, each.target, each.start, each.end) for each in events if each.target is not None
    ]
    write_file(str(path), print_chrome_trace(bars, arrows, _memory(events), seconds=1.0).encode())


def _memory(events: Sequence[Event]) -> Memory:
    """Returns the bytes of the values that the step made, on each mesh, over time."""
    meshes = 1 + max((mesh for each in events for mesh in (each.mesh, each.target or 0)), default=-1)
    changes: list[list[tuple[float, int]]] = [[] for _ in range(meshes)]
    for each in events:
        if each.made:
            changes[each.mesh if each.target is None else each.target].append((each.start, each.made))
        if each.freed:
            changes[each.mesh].append((each.end, -each.freed))
    lines = [([time for time, _ in line], [change for _, change in line]) for line in changes]
    return Memory("bytes", [curve(*in_order(*line)) for line in lines])


def _since_epoch() -> float:
    """Returns the number to add to `time.perf_counter()` to get the time of the system clock.

    The two clocks are read in turn, ten times. The reading that took the shortest time counts, because an interruption
    between two readings adds an error.
    """
    readings: list[tuple[float, float]] = []
    for _ in range(10):
        before, now, after = time.perf_counter(), time.time(), time.perf_counter()
        readings.append((after - before, now - before))
    return min(readings)[1]


def _merged(parts: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Merges the events of several processes. Of a mesh that several processes share, the events of the first count.

    A copy between processes begins when it is both offered and asked for, and ends on arrival. So the clocks of the
    hosts must agree. The channels are strings here, as JSON writes keys as strings.
    """
    arrived: dict[str, list[float]] = {}
    for part in parts:
        arrived.update(part["arrived"])
    begin = min(part["begin"] for part in parts)
    found: list[Event] = []
    for part in parts:
        shift = part["begin"] - begin
        events = [
            Event(
                **each
                | {"start": each["start"] + shift, "end": each["end"] + shift}
                | {"fused": tuple(TaskName(*task) for task in each["fused"])}
            )
            for each in part["events"]
        ]
        for channel, (number, offered) in part["offered"].items():
            asked, there = arrived[channel]
            seconds = max(there - max(offered, asked), 0.0)
            events[number] = dataclasses.replace(events[number], seconds=seconds, end=events[number].start + seconds)
        known = {each.mesh for each in found}
        found += [each for each in events if each.mesh not in known]
    return found


class _Tracer:
    """Times the instructions of a step as they run, and places them as if each mesh had its own processors."""

    def __init__(self, executable: Executable) -> None:
        self.events: list[Event] = []
        self.program, self.crosses = executable.program, executable.crosses
        self.last = self.last_processor = math.nan
        self.processor_seconds = 0.0
        self.clocks = [0.0] * self.program.meshes
        self.ready: dict[tuple[int, int], float] = {}
        self.makers: dict[tuple[int, int], TaskName | None] = {}
        self.arrivals: dict[int, float] = {}
        self.bytes: dict[tuple[int, int], int] = {}
        """The bytes of each (mesh, register) that the step has allocated."""
        self.begin = math.nan
        self.offered: dict[int, tuple[int, float]] = {}
        """For each channel to another process: the index of the send's event, and when the value was there."""
        self.arrived: dict[int, tuple[float, float]] = {}
        """For each channel from another process: when the value was asked for, and when it arrived."""

    def on_start(self, registers: Sequence[Any]) -> None:
        """Waits for the arguments, then starts the clock."""
        jax.block_until_ready(registers)
        self.begin, self.last_processor = time.perf_counter(), time.process_time()
        self.last = self.begin

    def part(self) -> dict[str, Any]:
        """Returns the events and times of this process for `_merged`, by the system clock."""
        shift = _since_epoch()
        return {
            "begin": self.begin + shift,
            "events": [dataclasses.asdict(each) for each in self.events],
            "offered": {channel: (number, offered + shift) for channel, (number, offered) in self.offered.items()},
            "arrived": {channel: (asked + shift, there + shift) for channel, (asked, there) in self.arrived.items()},
        }

    def on_step(self, label: StepLabel, made: Sequence[Any], _: object) -> None:
        """Records the instructions of one dispatched step, after waiting for its results."""
        jax.block_until_ready(made)
        seconds, self.processor_seconds = time.perf_counter() - self.last, time.process_time() - self.last_processor
        for mesh, instruction in label:
            if isinstance(instruction, Receive):
                self.receive(mesh, instruction, seconds)
            elif isinstance(instruction, Send):
                self.send(mesh, instruction, seconds)
            elif isinstance(instruction, Call):
                self.call(mesh, instruction, seconds)
        self.last, self.last_processor = time.perf_counter(), time.process_time()

    def receive(self, mesh: int, receive: Receive, seconds: float) -> None:
        place, channel, there = (mesh, receive.result), receive.channel, self.last + seconds
        if self.crosses(channel):
            self.arrived[channel] = self.last, there
        self.ready[place] = self.arrivals.setdefault(channel, there - self.begin)
        self.bytes[place] = self.program.registers[mesh][receive.result].device_bytes

    def send(self, mesh: int, send: Send, seconds: float) -> None:
        if self.crosses(send.channel):
            self.offered[send.channel] = len(self.events), self.last
        place = (mesh, send.operand)
        start = self.ready.get(place, 0.0)
        end = self.arrivals[send.channel] = start + seconds
        maker = self.makers.get(place)
        stage, microbatch, part = maker[1:] if maker else (None, None, 0)
        made, freed = self.program.registers[mesh][send.operand].device_bytes, self.free(mesh, send.frees)
        task = "send", stage, microbatch
        place = *task, start, end, seconds, send.destination, made, freed
        self.events.append(Event(mesh, *place, slice=part, processor_seconds=self.processor_seconds))

    def call(self, mesh: int, call: Call, seconds: float) -> None:
        start = max([self.clocks[mesh], *(self.ready.get((mesh, register), 0.0) for register in call.operands)])
        end = self.clocks[mesh] = start + seconds
        made = self.make(mesh, call)
        freed = self.free(mesh, call.frees)
        where = mesh, call.kind, call.stage, call.microbatch
        more = call.fused, call.slice, self.processor_seconds
        self.events.append(Event(*where, start, end, seconds, None, made, freed, *more))
        for number, register in enumerate(call.results):
            self.ready[mesh, register] = end
            self.makers[mesh, register] = call.maker(number, self.program.functions[call.function])

    def make(self, mesh: int, call: Call) -> int:
        """Returns the bytes of the results that take no operand's buffer; the other results inherit a count."""
        function = self.program.functions[call.function]
        made = 0
        for register, spec, donor in zip(call.results, function.results, function.donors, strict=True):
            if donor is None:
                self.bytes[mesh, register] = spec.device_bytes
                made += spec.device_bytes
            else:
                self.bytes[mesh, register] = self.bytes.pop((mesh, call.operands[donor]), 0)
        return made

    def free(self, mesh: int, registers: Sequence[int]) -> int:
        return sum(self.bytes.pop((mesh, register), 0) for register in registers)
