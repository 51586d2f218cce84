"""Places the instructions of a step in time: the one way from durations, measured or estimated, to events."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jaxpp.ir.program import Call, Place, Program, Receive, Send, TaskName
from jaxpp.schedules.engine.spans import Label


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
        function: the name of the called function; "" for a send.
        after: the index, among the events of the step, of the event that this one waited for last: the one before it
            on its mesh, or the maker of an operand. None if it waited for nothing.
        channel: of a send, the channel of the program that it uses.
        awaited: the channel of the transfer that the event waited for last, if another process sent it.
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
    function: str = ""
    after: int | None = None
    channel: int | None = None
    awaited: int | None = None

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


class _Time(NamedTuple):
    """A time, and what happened then: the end of an event of this process, or the arrival from another process."""

    at: float
    event: int | None = None
    channel: int | None = None


class StepEvents:
    """Places the instructions of a step in time, in their order of dispatch.

    Each one starts as soon as its operands are there and its line is free. A line, such as a mesh, runs one event at a
    time.

    Attributes:
        events: the events so far.
    """

    def __init__(self, program: Program) -> None:
        self.events: list[Event] = []
        self._program = program
        self._ends: dict[object, _Time] = {}
        """The end of the last event of each line."""
        self._ready: dict[Place, _Time] = {}
        self._makers: dict[Place, TaskName | None] = {}
        self._arrivals: dict[int, _Time] = {}
        self._bytes: dict[Place, int] = {}
        """The bytes of each register that the step has allocated."""
        self._results = {
            name: [(donor, spec.device_bytes) for donor, spec in zip(each.donors, each.results, strict=True)]
            for name, each in program.functions.items()
        }

    def receive(self, mesh: int, receive: Receive, arrival: float = 0.0) -> None:
        """Receives a value. `arrival` is the time of its arrival if its send is in another process."""
        place, channel = (mesh, receive.result), receive.channel
        self._ready[place] = self._arrivals.setdefault(channel, _Time(arrival, channel=channel))
        self._bytes[place] = self._program.registers[mesh][receive.result].device_bytes

    def send(self, mesh: int, send: Send, seconds: float, line: object, processor_seconds: float = 0.0) -> None:
        """Adds a send, which takes no time of its mesh. If `line` is None, it waits for no other send."""
        place = mesh, send.operand
        last = self._latest([] if line is None else [line], [place])
        end = self._arrivals[send.channel] = self._ends[line] = _Time(last.at + seconds, len(self.events))
        maker = self._makers.get(place)
        stage, microbatch, part = maker[1:] if maker else (None, None, 0)
        made, freed = self._program.registers[mesh][send.operand].device_bytes, self._free(mesh, send.frees)
        self.events.append(
            Event(
                *(mesh, "send", stage, microbatch, last.at, end.at, seconds, send.destination, made, freed),
                slice=part,
                processor_seconds=processor_seconds,
                after=last.event,
                channel=send.channel,
                awaited=last.channel,
            )
        )

    def call(self, mesh: int, call: Call, seconds: float, line: object, processor_seconds: float = 0.0) -> None:
        """Adds a call, which runs on `line`."""
        last = self._latest([line], [(mesh, register) for register in call.operands])
        end = self._ends[line] = _Time(last.at + seconds, len(self.events))
        made = self._make(mesh, call)
        freed = self._free(mesh, call.frees)
        task = call.kind, call.stage, call.microbatch
        what = *task, last.at, end.at, seconds, None, made, freed, call.fused, call.slice, processor_seconds
        self.events.append(Event(mesh, *what, call.function, last.event, awaited=last.channel))
        for number, register in enumerate(call.results):
            self._ready[mesh, register] = end
            self._makers[mesh, register] = call.maker(number, self._program.functions[call.function])

    def _latest(self, lines: Sequence[object], operands: Sequence[Place]) -> _Time:
        """Returns the latest of the ends of lines and of the arrivals of operands. Of equal times, a line's counts."""
        ends = [self._ends[line] for line in lines if line in self._ends]
        ends += [self._ready[place] for place in operands if place in self._ready]
        return max(ends, key=lambda each: each.at, default=_Time(0.0))

    def _make(self, mesh: int, call: Call) -> int:
        """Returns the bytes of the results that take no operand's buffer; the other results inherit a count."""
        made = 0
        for register, (donor, size) in zip(call.results, self._results[call.function], strict=True):
            if donor is None:
                self._bytes[mesh, register] = size
                made += size
            else:
                self._bytes[mesh, register] = self._bytes.pop((mesh, call.operands[donor]), 0)
        return made

    def _free(self, mesh: int, registers: Sequence[int]) -> int:
        return sum(self._bytes.pop((mesh, register), 0) for register in registers)


def joined(parts: Iterable[Sequence[Event]]) -> list[Event]:
    """Joins the events of the processes of a step. Of a mesh that several processes share, the first events count."""
    names: list[list[tuple[int, int]]] = []
    numbers: dict[tuple[int, int], int] = {}
    found: list[tuple[Event, list[tuple[int, int]]]] = []
    for events in parts:
        counts: Counter[int] = Counter()
        names.append([])
        for event in events:
            name = event.mesh, counts[event.mesh]  # all processes of a mesh run its events in one order
            counts[event.mesh] += 1
            names[-1].append(name)
            if numbers.setdefault(name, len(found)) == len(found):
                found.append((event, names[-1]))
    sends = {event.channel: number for number, (event, _) in enumerate(found) if event.channel is not None}

    def after(event: Event, own: Sequence[tuple[int, int]]) -> int | None:
        if event.after is not None:
            return numbers[own[event.after]]
        return None if event.awaited is None else sends.get(event.awaited)

    return [dataclasses.replace(event, after=after(event, own), awaited=None) for event, own in found]
