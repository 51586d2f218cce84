"""A run over a schedule that finds when each task starts and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from jaxpp.schedules.graph import Graph

NEVER: Final = -1.0
"""The start of a task that never runs."""


@dataclass(frozen=True, slots=True)
class SweptTimes:
    """The times of a run, counted from 0.

    Attributes:
        starts: the start of each task; `NEVER` for a task that a deadlock stops.
        ends: the end of each task; fused tasks end together.
        sent: the start of each transfer of the graph.
        received: the arrival of each transfer of the graph.
        heads: for each mesh the number of the task that it is stuck at, or the end of its row.
    """

    starts: list[float]
    ends: list[float]
    sent: list[float]
    received: list[float]
    heads: list[int]


def sweep(
    graph: Graph,
    durations: Sequence[float],
    delays: Sequence[float] = (),
    one_track: bool = False,
    leads: Mapping[int, float] = MappingProxyType({}),
) -> SweptTimes:
    """Runs every mesh in its order, each cell as soon as its mesh is free and its needs have arrived.

    A task that runs beside its mesh (a copy) starts when the previous cell has ended and its resources are free. The
    next cell does not wait for it.

    Args:
        graph: the schedule. A need that it lacks is not waited for.
        durations: the duration of each task; a fused cell takes the sum.
        delays: for each transfer, the time from its start to its arrival. Empty: no time.
        one_track: whether all tasks of a mesh run one after the other, also copies.
        leads: for the first task of a cell, how long its mesh does other work before it. That work waits for nothing.
    """
    run = _Sweep(graph, durations, delays or [0.0] * len(graph.transfers), leads)
    if one_track:
        run.tracks, run.asides = {}, set()
    while run.runnable:
        run.advance(run.runnable.pop())
    tasks = len(graph.tasks)
    return SweptTimes(run.starts, run.ready[:tasks], run.sent, run.ready[tasks:], run.heads)


class _Sweep:
    """The state of a run. A task takes about a microsecond, so the loop works on local names."""

    def __init__(
        self,
        graph: Graph,
        durations: Sequence[float],
        delays: Sequence[float],
        leads: Mapping[int, float],
    ) -> None:
        self.graph, self.durations, self.delays, self.leads = graph, durations, delays, leads
        self.starts = [NEVER] * len(graph.tasks)
        # The end of each task, followed by the arrival of each transfer.
        self.ready = [NEVER] * (len(graph.tasks) + len(graph.transfers))
        self.sent = [NEVER] * len(graph.transfers)
        self.heads = [row.start for row in graph.rows]
        self.clocks = [0.0] * len(graph.rows)
        self.runnable = list(range(len(graph.rows)))
        self.waiting: dict[int, list[int]] = {}
        self.tracks, self.asides = graph.tracks, graph.asides
        self.track_clocks: dict[tuple[int, str], float] = {}

    def advance(self, mesh: int) -> None:
        """Runs the cells of one mesh until a cell has to wait."""
        graph, ready, durations = self.graph, self.ready, self.durations
        waits, spans, finish = graph.waits, graph.spans, self.finish
        tracks, asides, leads = self.tracks, self.asides, self.leads
        head, stop, clock = self.heads[mesh], graph.rows[mesh].stop, self.clocks[mesh]
        while head < stop:
            start = clock + leads[head] if head in leads else clock
            for slot in waits[head]:
                if ready[slot] > start:
                    start = ready[slot]
                elif ready[slot] == NEVER:
                    self.waiting.setdefault(slot, []).append(mesh)
                    break
            else:
                span = spans[head]
                duration = durations[head] if span == 1 else sum(durations[head : head + span])
                if head in tracks:
                    start = self.occupy(mesh, head, start, duration)
                if head not in asides:
                    clock = start + duration
                for number in range(head, head + span):
                    finish(number, start, start + duration)
                head += span
                continue
            break
        self.heads[mesh], self.clocks[mesh] = head, clock

    def occupy(self, mesh: int, number: int, start: float, duration: float) -> float:
        """Occupies the resources of a cell besides the turn of its mesh.

        Returns the time from which all of them were free.
        """
        clocks, keys = self.track_clocks, [(mesh, name) for name in self.tracks[number]]
        start = max([start, *(clocks.get(key, 0.0) for key in keys)])
        clocks.update(dict.fromkeys(keys, start + duration))
        return start

    def finish(self, number: int, start: float, end: float) -> None:
        """Records the times of a task, sends its result, and wakes the meshes that wait for it."""
        ready, waiting = self.ready, self.waiting
        self.starts[number] = start
        ready[number] = end
        if number in waiting:
            self.runnable += waiting.pop(number)
        for transfer in self.graph.sends[number]:
            slot = len(self.starts) + transfer
            self.sent[transfer] = end
            ready[slot] = end + self.delays[transfer]
            if slot in waiting:
                self.runnable += waiting.pop(slot)
