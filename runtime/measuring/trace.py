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
from jaxpp.runtime.measuring.events import Event, StepEvents, joined
from jaxpp.schedules.engine.chrome_trace import Memory, curve, print_chrome_trace
from jaxpp.schedules.engine.spans import COMPUTE, Span


def trace_step(executable: Executable, arguments: Sequence[Any]) -> tuple[list[jax.Array], list[Event]]:
    """Runs one step, waiting for each instruction; returns its results and its events, in the order of dispatch.

    This is a real training step, only slower: the results are valid, and donated arguments are deleted.

    If the executable has not run yet, it runs another step before, because the first run of a function takes much
    longer (`Executable.warm_up`).

    Several processes call it together. If the executable has a `gather`, each process gets the events of all.
    Otherwise each gets its own events, and a copy to another process takes no time.
    """
    if not executable.has_run:
        executable.warm_up(arguments)
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
    text = print_chrome_trace(spans_of(events), _memory(events), seconds=1.0)
    write_file(str(path), text.encode())


def spans_of(events: Sequence[Event]) -> list[Span]:
    """Returns the events as tasks and transfers, in the same order."""
    return [
        Span(
            event.mesh,
            COMPUTE if event.target is None else "",
            tuple(event.labels) if event.target is None else (event.label,),
            event.start,
            event.end,
            event.after,
            event.target,
            event.made if event.target is not None else 0,
            event.function,
        )
        for event in events
    ]


def _memory(events: Sequence[Event]) -> Memory:
    """Returns the bytes of the values that the step made, on each mesh, over time."""
    meshes = 1 + max((mesh for each in events for mesh in (each.mesh, each.target or 0)), default=-1)
    changes: list[list[tuple[float, int]]] = [[] for _ in range(meshes)]
    for each in events:
        if each.made:
            changes[each.mesh if each.target is None else each.target].append((each.start, each.made))
        if each.freed:
            changes[each.mesh].append((each.end, -each.freed))
    return Memory("bytes", [curve(sorted(line)) for line in changes])


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
    """Merges the events of several processes.

    A copy between processes begins when it is both offered and asked for, and ends on arrival. So the clocks of the
    hosts must agree. The channels are strings here, as JSON writes keys as strings.
    """
    arrived: dict[str, list[float]] = {}
    for part in parts:
        arrived.update(part["arrived"])
    begin = min(part["begin"] for part in parts)
    found: list[list[Event]] = []
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
        found.append(events)
    return joined(found)


class _Tracer:
    """Times the instructions of a step as they run."""

    def __init__(self, executable: Executable) -> None:
        self.step, self.crosses = StepEvents(executable.program), executable.crosses
        self.events = self.step.events
        self.begin = self.last = self.last_processor = math.nan
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
        seconds, processor_seconds = time.perf_counter() - self.last, time.process_time() - self.last_processor
        for mesh, instruction in label:
            if isinstance(instruction, Receive):
                there = self.last + seconds
                if self.crosses(instruction.channel):
                    self.arrived[instruction.channel] = self.last, there
                self.step.receive(mesh, instruction, there - self.begin)
            elif isinstance(instruction, Send):
                if self.crosses(instruction.channel):
                    self.offered[instruction.channel] = len(self.events), self.last
                self.step.send(mesh, instruction, seconds, None, processor_seconds)
            elif isinstance(instruction, Call):
                self.step.call(mesh, instruction, seconds, mesh, processor_seconds)
        self.last, self.last_processor = time.perf_counter(), time.process_time()
