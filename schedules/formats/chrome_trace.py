"""Chrome's trace format, which Perfetto opens: a simulated step and a measured one in the same shape.

One process per mesh, in it a track for its tasks, one for what it sends and one for what it receives (more where these
overlap), one for copies to and from the host, and a counter of live bytes. Arrows lead from each send to its receipt.
Times are microseconds. `forward 0, 3` is the forward of stage 0 for microbatch 3, `send 0, 3` sends what it made; the
stage, the microbatch and the seconds are arguments of both.

`Report.to_chrome_trace` writes what was simulated, `jaxpp.runtime.write_chrome_trace` what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

JsonEvent: TypeAlias = dict[str, object]
Floats: TypeAlias = NDArray[np.float64]

COMPUTE: Final = "compute"
"""The track of a mesh's own tasks."""


class Label(NamedTuple):
    """Names a task: its kind, stage, microbatch and slice; stage and microbatch are None where it has none."""

    kind: str
    stage: int | None
    microbatch: int | None
    slice: int = 0

    def __str__(self) -> str:
        """Return `forward 0, 3`, or `forward 0, 3, 1` for a later slice; the kind alone where there is no stage."""
        numbers = [str(number) for number in (self.stage, self.microbatch, self.slice or None) if number is not None]
        return f"{self.kind} {', '.join(numbers)}".rstrip()


class Bar(NamedTuple):
    """Shows one task, or several that are fused, on a track of a mesh."""

    mesh: int
    track: str
    labels: Sequence[Label]
    start: float
    end: float


class Arrow(NamedTuple):
    """Shows that the result of the task `label` goes from one mesh to another."""

    label: Label
    source: int
    target: int
    start: float
    end: float


class Memory(NamedTuple):
    """Holds the memory in use on each mesh: the times at which it changes, in order, and how much it is from then on.

    Attributes:
        unit: "bytes", or "microbatches", whose activations fill one mesh's stages.
        curves: (times, amounts) of each mesh.
    """

    unit: str
    curves: list[tuple[Floats, Floats]]


def in_order(times: Sequence[float], changes: Sequence[float]) -> tuple[Floats, Floats]:
    """Sort the changes of a memory by their times; at one time, freeing comes before allocating."""
    at, change = np.array(times, np.float64), np.array(changes, np.float64)
    order = np.lexsort((change, at))
    return at[order], change[order]


def curve(times: Floats, changes: Floats) -> tuple[Floats, Floats]:
    """Return the times of the changes, each once, and the amount after all changes at that time."""
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    # Sums of shares differ from 0 in their last digits.
    return times[last], np.maximum(changes.cumsum(), 0.0).round(9)[last]


def print_chrome_trace(bars: Iterable[Bar], arrows: Iterable[Arrow], memory: Memory, seconds: float) -> str:
    """Return the trace as JSON; it has as many meshes as `memory` has curves.

    Args:
        bars: the tasks; those on one track do not overlap.
        arrows: the transfers; those that overlap get tracks of their own.
        memory: the curves of the counters.
        seconds: the unit of all times, in seconds.
    """
    tracks = _Tracks(1e6 * seconds, len(memory.curves))
    for bar in bars:
        tracks.add(bar.mesh, bar.track, bar.labels, bar.start, bar.end)
    _add_transfers(tracks, arrows)
    _add_memory(tracks, memory)
    found = {"traceEvents": [*tracks.names(), *tracks.events], "displayTimeUnit": "ms"}
    return json.dumps(found, allow_nan=False)


class _Tracks:
    """Collects the events, and numbers the tracks (threads) of each mesh (process) in the order of their first use."""

    def __init__(self, scale: float, meshes: int) -> None:
        self.scale = scale
        self.events: list[JsonEvent] = []
        self._tids: list[dict[str, int]] = [{COMPUTE: 0} for _ in range(meshes)]
        self._ends: dict[tuple[int, str], list[float]] = {}

    def lane(self, mesh: int, track: str, start: float, end: float) -> str:
        """Return a track that is free: `send`, or `send 2` while that is busy. Calls come in order of their start."""
        ends = self._ends.setdefault((mesh, track), [])
        free = next((lane for lane, last in enumerate(ends) if last <= start), len(ends))
        ends[free:] = [end, *ends[free + 1 :]]
        return f"{track} {free + 1}" if free else track

    def add(self, mesh: int, track: str, labels: Sequence[Label], start: float, end: float) -> JsonEvent:
        """Add a bar to a track, for one task or several that are fused."""
        args: JsonEvent = {name: _one([getattr(label, name) for label in labels]) for name in ("stage", "microbatch")}
        if any(label.slice for label in labels):
            args["slice"] = _one([label.slice for label in labels])
        tids = self._tids[mesh]
        event: JsonEvent = {
            "name": " + ".join(map(str, labels)),
            "cat": "+".join(label.kind for label in labels),
            "ph": "X",
            "pid": mesh,
            "tid": tids.setdefault(track, len(tids)),
            "ts": start * self.scale,
            "dur": (end - start) * self.scale,
            "args": args | {"seconds": (end - start) * self.scale / 1e6},
        }
        self.events.append(event)
        return event

    def names(self) -> Iterable[JsonEvent]:
        for mesh, tids in enumerate(self._tids):
            yield {"name": "process_name", "ph": "M", "pid": mesh, "tid": 0, "args": {"name": f"mesh {mesh}"}}
            yield {"name": "process_sort_index", "ph": "M", "pid": mesh, "tid": 0, "args": {"sort_index": mesh}}
            for track, tid in tids.items():
                yield {"name": "thread_name", "ph": "M", "pid": mesh, "tid": tid, "args": {"name": track}}
                yield {"name": "thread_sort_index", "ph": "M", "pid": mesh, "tid": tid, "args": {"sort_index": tid}}


def _one(values: list[object]) -> object:
    return values[0] if len(values) == 1 else values


def _add_transfers(tracks: _Tracks, arrows: Iterable[Arrow]) -> None:
    for number, (label, source, target, start, end) in enumerate(sorted(arrows, key=lambda each: each[-2:])):
        ends = [
            tracks.add(mesh, tracks.lane(mesh, kind, start, end), [label._replace(kind=kind)], start, end)
            for mesh, kind in ((source, "send"), (target, "recv"))
        ]
        # An arrow is bound to the bar that its time falls into, so both of its ends stand at a start.
        for phase, event in zip(({"ph": "s"}, {"ph": "f", "bp": "e"}), ends, strict=True):
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            tracks.events.append({"name": "transfer", "cat": "transfer", "id": number} | place | phase)


def _add_memory(tracks: _Tracks, memory: Memory) -> None:
    """Add a counter of memory for each mesh."""
    name = "live bytes" if memory.unit == "bytes" else "live activations"
    for mesh, (times, amounts) in enumerate(memory.curves):
        for time, amount in zip(times.tolist(), amounts.tolist(), strict=True):
            value = {memory.unit: amount}
            tracks.events.append(
                {"name": name, "ph": "C", "pid": mesh, "tid": 0, "ts": time * tracks.scale, "args": value}
            )
