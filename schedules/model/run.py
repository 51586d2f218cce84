"""A run of cells in given orders: each starts as soon as its mesh is free and its inputs are there.

A cell is one task of a schedule, or several tasks that run as one. Everything that needs the times of tasks uses this
run: the check, the grid, the merged order, the simulator, and the searches for orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from jaxpp.schedules.model.between_runs import BetweenRuns, Touched
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.task import Cell


@dataclass(frozen=True)
class Cells:
    """The cells of a schedule as indices, with the constraints that hold in any order.

    Attributes:
        rows: for each mesh its cells, in the order of the schedule.
        times: the duration of each cell.
        waits: for each cell the (cell, delay) pairs that it waits for beside its turn. A delay counts from the end of
            that cell.
        tracks: for cells that use more than the turn of their mesh, the resources that they use, as (mesh, name).
        asides: the cells that run beside their mesh, without its turn. Each starts after the previous cell has ended,
            and the next cell does not wait for it.
        between: the work of meshes between runs of tasks of one stage; None if that takes no time.
        touched: the stages whose weights each cell reads, and those whose gradients it adds to.
    """

    rows: Sequence[Sequence[int]]
    times: Sequence[float]
    waits: Sequence[Sequence[tuple[int, float]]]
    tracks: Mapping[int, Sequence[tuple[int, str]]] = field(default_factory=dict[int, "Sequence[tuple[int, str]]"])
    asides: AbstractSet[int] = frozenset()
    between: BetweenRuns | None = None
    touched: Sequence[Touched] = ()

    def leads(self, row: Sequence[int]) -> dict[int, float]:
        """Returns for each cell of a mesh's order how long the mesh scatters and gathers before it."""
        if not self.between:
            return {}
        cells = [cell for cell in row if cell not in self.asides]
        return dict(zip(cells, self.between.leads(self.touched[cell] for cell in cells), strict=True))


@dataclass(slots=True)
class Run:
    """The times of cells, counted from 0.

    Attributes:
        starts: the start of each cell; infinite for cells that do not run.
        ends: the end of each cell; infinite for cells that do not run.
        counts: for each mesh the number of its cells that have run. Its next cell waits, if there is one.
        clocks: when each mesh is free.
    """

    starts: list[float]
    ends: list[float]
    counts: list[int]
    clocks: list[float]

    @property
    def whole(self) -> bool:
        """Whether all cells have run."""
        return math.inf not in self.starts


@dataclass(frozen=True, slots=True)
class SimulatedTimes:
    """The times of a simulated schedule, by the numbers of its graph.

    Attributes:
        starts: the start of each task.
        ends: the end of each task; fused tasks end together.
        sent: the start of each transfer.
        received: the arrival of each transfer.
    """

    starts: list[float]
    ends: list[float]
    sent: list[float]
    received: list[float]


def run(cells: Cells, rows: Sequence[Sequence[int]], most: float = math.inf, *, from_first: bool = False) -> Run:
    """Runs every mesh in its order. A cell takes less than a microsecond.

    Args:
        cells: the cells.
        rows: for each mesh its cells, in the order in which it runs them.
        most: the run stops when a mesh takes longer.
        from_first: whether the time of a mesh counts from the start of its first cell for `most`, and not from 0.
    """
    times, waits, tracks, asides = cells.times, cells.waits, cells.tracks, cells.asides
    never = math.inf
    starts, ends = [never] * len(times), [never] * len(times)
    counts, clocks, runnable = [0] * len(rows), [0.0] * len(rows), list(range(len(rows)))
    leads = [cells.leads(row) for row in rows] if cells.between else None
    waiting: dict[int, list[int]] = {}
    free: dict[tuple[int, str], float] = {}
    while runnable:
        mesh = runnable.pop()
        row, clock, position = rows[mesh], clocks[mesh], counts[mesh]
        for cell in row[position:]:
            start = clock + leads[mesh].get(cell, 0.0) if leads else clock
            for need, delay in waits[cell]:
                arrives = ends[need] + delay
                if arrives > start:
                    start = arrives
            if start == never:
                for need, _ in waits[cell]:
                    if ends[need] == never:
                        waiting.setdefault(need, []).append(mesh)
                        break
                break
            if cell in tracks:
                start = max(start, *(free.get(used, 0.0) for used in tracks[cell]))
                free.update(dict.fromkeys(tracks[cell], start + times[cell]))
            starts[cell] = start
            ends[cell] = end = start + times[cell]
            position += 1
            if cell not in asides:
                clock = end
            if cell in waiting:
                runnable += waiting.pop(cell)
        counts[mesh], clocks[mesh] = position, clock
        if clock > most:
            first = next((starts[cell] for cell in row if cell not in asides), 0.0) if from_first else 0.0
            if clock - first > most:
                break
    return Run(starts, ends, counts, clocks)


def cells_of_graph(
    graph: Graph,
    durations: Sequence[float],
    delays: Sequence[float] = (),
    between: BetweenRuns | None = None,
    *,
    one_track: bool = False,
) -> Cells:
    """Returns the cells of a schedule, mesh by mesh in its order.

    Args:
        graph: the schedule. A need that it lacks is not waited for.
        durations: the duration of each task; a fused cell takes the sum.
        delays: for each transfer, the time from its start to its arrival. Empty: no time.
        between: the work of meshes between runs of tasks of one stage.
        one_track: whether all tasks of a mesh run one after the other, also copies.
    """
    heads, cell_of, spans, homes = graph.heads, graph.cell_of, graph.spans, graph.homes
    lags = delays or [0.0] * len(graph.transfers)
    awaited = [(cell, 0.0) for cell in cell_of]
    awaited += [(cell_of[number], lag) for (number, _), lag in zip(graph.transfers, lags, strict=True)]
    waits = [[awaited[slot] for slot in graph.waits[head]] for head in heads]
    rows: Sequence[Sequence[int]] = graph.rows
    if len(heads) < len(spans):
        rows = [[cell_of[number] for number in row if spans[number]] for row in rows]
        durations = [sum(durations[head : head + spans[head]]) for head in heads]
        waits = [list(dict.fromkeys(pairs)) for pairs in waits]
    own = {} if one_track else graph.tracks
    return Cells(
        rows,
        durations,
        waits,
        {cell_of[each]: [(homes[each], name) for name in own[each]] for each in own if spans[each]},
        frozenset(() if one_track else (cell_of[each] for each in graph.asides)),
        between,
        [Touched.by(graph.tasks[head : head + spans[head]]) for head in heads] if between else (),
    )


def time_slots(graph: Graph, word: Callable[[Cell], str], bubble: str) -> list[list[str]]:
    """Returns for each mesh the words of its time slots, if every cell takes one. Cells that never run come last."""
    cells = cells_of_graph(graph, [float(span > 0) for span in graph.spans], one_track=True)
    starts = iter(run(cells, cells.rows).starts)
    rows: list[list[str]] = []
    for row in graph.cells:
        slots: list[str] = []
        for cell, start in zip(row, starts, strict=False):
            if start < math.inf:
                slots += [bubble] * (int(start) - len(slots))
            slots.append(word(cell))
        rows.append(slots)
    return rows
