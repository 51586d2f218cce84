"""Chrome's trace format, which Perfetto opens; simulated and measured steps have the same form.

A process stands for a mesh. It has separate tracks for the mesh's tasks, its sends, its receives, and its
copies to and from the host, and a counter of live bytes. Sends or receives that overlap get more tracks. An arrow leads
from each send to its receive. Times are microseconds.

`forward 0, 3` is the forward of stage 0 for microbatch 3, and `send 0, 3` sends its result. Both have the stage, the
microbatch and the seconds as arguments, and the task or transfer that each waited for last. A send also has its target.

`Report.to_chrome_trace` writes simulated steps, `jaxpp.runtime.write_chrome_trace` measured steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from jaxpp.schedules.engine.spans import COMPUTE, Label, Span, waited_for

JsonEvent: TypeAlias = dict[str, object]
Curve: TypeAlias = tuple[list[float], list[float]]


class Memory(NamedTuple):
    """The memory in use on each mesh, as curves of the times of its changes and the amounts from these times on.

    Attributes:
        unit: "bytes", or "microbatches", each of which is the activations of all stages of a mesh for one microbatch.
        curves: (times, amounts) of each mesh.
    """

    unit: str
    curves: list[Curve]


COUNTERS: Final = {"bytes": "live bytes", "microbatches": "live activations"}
"""The name of the counter for each unit of memory."""


def curve(changes: Iterable[tuple[float, float]]) -> Curve:
    """Returns the distinct times of changes, given as (time, change) in order, and the amounts from then on."""
    amounts: dict[float, float] = {}
    amount = 0.0
    for time, change in changes:
        amounts[time] = amount = amount + change
    # Sums of shares may differ from 0 in their last digits.
    return [*amounts], [round(max(each, 0.0), 9) for each in amounts.values()]


def print_chrome_trace(spans: Sequence[Span], memory: Memory, seconds: float) -> str:
    """Returns the trace as JSON; it has as many meshes as `memory` has curves.

    Args:
        spans: the tasks and transfers; transfers that overlap get separate tracks.
        memory: the curves of the counters.
        seconds: the unit of all times, in seconds.
    """
    tracks = _Tracks(1e6 * seconds, len(memory.curves))
    for number, span in enumerate(spans):
        if span.target is None:
            tracks.add(span.mesh, span.track, span.labels, span, waited_for(spans, number))
    _add_transfers(tracks, spans)
    _add_memory(tracks, memory)
    found = {"traceEvents": [*tracks.names(), *tracks.events], "displayTimeUnit": "ms"}
    return json.dumps(found, allow_nan=False)


class _Tracks:
    """The events, and the tracks (threads) of each mesh (process), numbered in the order of their first use."""

    def __init__(self, scale: float, meshes: int) -> None:
        self.scale = scale
        self.events: list[JsonEvent] = []
        self._tids: list[dict[str, int]] = [{COMPUTE: 0} for _ in range(meshes)]
        self._ends: dict[tuple[int, str], list[float]] = {}

    def lane(self, mesh: int, track: str, start: float, end: float) -> str:
        """Returns a free track: `send`, or `send 2` while `send` is busy. Calls must be in the order of `start`."""
        ends = self._ends.setdefault((mesh, track), [])
        free = next((lane for lane, last in enumerate(ends) if last <= start), len(ends))
        ends[free:] = [end, *ends[free + 1 :]]
        return f"{track} {free + 1}" if free else track

    def add(
        self,
        mesh: int,
        track: str,
        labels: Sequence[Label],
        span: Span,
        waited: str,
        other: Mapping[str, object] = MappingProxyType({}),
    ) -> JsonEvent:
        """Adds a bar for a span to a track; it has these labels, waited for `waited` last, and has other arguments."""
        args: JsonEvent = {name: _one([getattr(label, name) for label in labels]) for name in ("stage", "microbatch")}
        if any(label.slice for label in labels):
            args["slice"] = _one([label.slice for label in labels])
        if waited:
            args["waited for"] = waited
        args |= {name: value for name, value in (("bytes", span.bytes), ("function", span.function)) if value}
        args |= other
        tids, start, end = self._tids[mesh], span.start, span.end
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


def _add_transfers(tracks: _Tracks, spans: Sequence[Span]) -> None:
    sends = sorted((span.start, span.end, number) for number, span in enumerate(spans) if span.target is not None)
    for arrow, (start, end, number) in enumerate(sends):
        span = spans[number]
        (label,) = span.labels
        assert span.target is not None
        ends: list[JsonEvent] = []
        for mesh, kind, other in ((span.mesh, "send", {"to": span.target}), (span.target, "recv", {"from": span.mesh})):
            lane = tracks.lane(mesh, kind, start, end)
            ends.append(tracks.add(mesh, lane, [label._replace(kind=kind)], span, waited_for(spans, number), other))
        # An arrow is bound to the bar at its time, so both of its ends are at the start of a bar.
        for phase, event in zip(({"ph": "s"}, {"ph": "f", "bp": "e"}), ends, strict=True):
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            tracks.events.append({"name": "transfer", "cat": "transfer", "id": arrow} | place | phase)


def _add_memory(tracks: _Tracks, memory: Memory) -> None:
    """Adds a counter of memory for each mesh."""
    name = COUNTERS[memory.unit]
    for mesh, (times, amounts) in enumerate(memory.curves):
        for time, amount in zip(times, amounts, strict=True):
            value = {memory.unit: amount}
            tracks.events.append(
                {"name": name, "ph": "C", "pid": mesh, "tid": 0, "ts": time * tracks.scale, "args": value}
            )
