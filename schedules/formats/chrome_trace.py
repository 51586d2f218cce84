"""Chrome's trace format, which Perfetto opens: a simulated step as it would be measured.

One process per mesh, in it a track for its tasks, one for what it sends and one for what it receives (more where these
overlap), one for copies to and from the host, and a counter of live bytes. Arrows lead from each send to its receipt.
Times are microseconds. Names and arguments are those of `jaxpp.runtime.trace`: `forward 0, 3` is the forward of stage 0
for microbatch 3, with its stage, microbatch and seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.graph import Graph
from jaxpp.schedules.sweep import Run
from jaxpp.schedules.task import Task

Event: TypeAlias = dict[str, object]

_NAMES: Final = {"": "compute", "copy": "offload"}


class Memory(NamedTuple):
    """What is alive on each mesh: the times at which that changes, in order, and how much it is from then on.

    Attributes:
        unit: "bytes", or "microbatches", whose activations fill one mesh's stages.
        curves: (times, amounts) of each mesh.
    """

    unit: str
    curves: list[tuple[NDArray[np.float64], NDArray[np.float64]]]


def print_chrome_trace(graph: Graph, run: Run, memory: Memory, seconds: float) -> str:
    """The trace of a run, as JSON; `seconds` is the unit of its times."""
    tracks = _Tracks(1e6 * seconds, len(graph.rows))
    for mesh in range(len(graph.rows)):
        tracks.tid(mesh, "compute")
    _add_tasks(tracks, graph, run)
    _add_transfers(tracks, graph, run)
    _add_memory(tracks, memory)
    found = {"traceEvents": [*tracks.names(), *tracks.events], "displayTimeUnit": "ms"}
    return json.dumps(found, allow_nan=False)


class _Tracks:
    """The events so far, and the tracks (threads) of each mesh (process), numbered as they are first met."""

    def __init__(self, scale: float, meshes: int) -> None:
        self.scale = scale
        self.events: list[Event] = []
        self._tids: list[dict[str, int]] = [{} for _ in range(meshes)]
        self._ends: dict[tuple[int, str], list[float]] = {}

    def tid(self, mesh: int, track: str) -> int:
        return self._tids[mesh].setdefault(track, len(self._tids[mesh]))

    def lane(self, mesh: int, track: str, start: float, end: float) -> str:
        """A track on which nothing overlaps: `send`, or `send 2` while that is busy. Called in order of start."""
        ends = self._ends.setdefault((mesh, track), [])
        free = next((lane for lane, last in enumerate(ends) if last <= start), len(ends))
        ends[free:] = [end, *ends[free + 1 :]]
        return f"{track} {free + 1}" if free else track

    def add(self, mesh: int, track: str, tasks: Sequence[Task], kind: str, start: float, end: float) -> Event:
        """A slice of a track, for one task or several that are fused."""
        args: Event = {name: _one([getattr(task, name) for task in tasks]) for name in ("stage", "microbatch")}
        if any(task.slice for task in tasks):
            args["slice"] = _one([task.slice for task in tasks])
        event: Event = {
            "name": " + ".join(_name(task, kind) for task in tasks),
            "cat": kind or "+".join(task.kind for task in tasks),
            "ph": "X",
            "pid": mesh,
            "tid": self.tid(mesh, track),
            "ts": start * self.scale,
            "dur": (end - start) * self.scale,
            "args": args | {"seconds": (end - start) * self.scale / 1e6},
        }
        self.events.append(event)
        return event

    def names(self) -> Iterable[Event]:
        for mesh, tids in enumerate(self._tids):
            yield {"name": "process_name", "ph": "M", "pid": mesh, "tid": 0, "args": {"name": f"mesh {mesh}"}}
            yield {"name": "process_sort_index", "ph": "M", "pid": mesh, "tid": 0, "args": {"sort_index": mesh}}
            for track, tid in tids.items():
                yield {"name": "thread_name", "ph": "M", "pid": mesh, "tid": tid, "args": {"name": track}}
                yield {"name": "thread_sort_index", "ph": "M", "pid": mesh, "tid": tid, "args": {"sort_index": tid}}


def _name(task: Task, kind: str) -> str:
    part = f", {task.slice}" if task.slice else ""
    return f"{kind or task.kind} {task.stage}, {task.microbatch}{part}"


def _one(values: list[int]) -> object:
    return values[0] if len(values) == 1 else values


def _add_tasks(tracks: _Tracks, graph: Graph, run: Run) -> None:
    for mesh, row in enumerate(graph.rows):
        for number in row:
            if graph.spans[number]:
                track = graph.tracks.get(number, "")
                cell = graph.tasks[number : number + graph.spans[number]]
                tracks.add(mesh, _NAMES.get(track, track), cell, "", run.starts[number], run.ends[number])


def _add_transfers(tracks: _Tracks, graph: Graph, run: Run) -> None:
    homes = [mesh for mesh, row in enumerate(graph.rows) for _ in row]
    moved = sorted(zip(run.sent, run.received, graph.transfers, strict=True), key=lambda each: each[:2])
    for number, (start, end, (made, target)) in enumerate(moved):
        ends = [
            tracks.add(mesh, tracks.lane(mesh, kind, start, end), [graph.tasks[made]], kind, start, end)
            for mesh, kind in ((homes[made], "send"), (target, "recv"))
        ]
        # An arrow is bound to the slice that its time falls into, so both of its ends stand at a start.
        for phase, event in zip(({"ph": "s"}, {"ph": "f", "bp": "e"}), ends, strict=True):
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            tracks.events.append({"name": "transfer", "cat": "transfer", "id": number} | place | phase)


def _add_memory(tracks: _Tracks, memory: Memory) -> None:
    """A counter per mesh."""
    name = "live bytes" if memory.unit == "bytes" else "live activations"
    for mesh, (times, amounts) in enumerate(memory.curves):
        for time, amount in zip(times.tolist(), amounts.tolist(), strict=True):
            value = {memory.unit: amount}
            tracks.events.append(
                {"name": name, "ph": "C", "pid": mesh, "tid": 0, "ts": time * tracks.scale, "args": value}
            )
