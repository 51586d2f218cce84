"""The cells of a schedule for a local search, with the constraints and the memory limits that hold in any order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from graphlib import TopologicalSorter
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.durations import cells_of
from jaxpp.schedules.engine.memory import Sizes, byte_sizes, changes
from jaxpp.schedules.engine.problem import Objective, Orders, Problem
from jaxpp.schedules.model.run import Cells, Run
from jaxpp.schedules.model.schedule import Schedule

Rows: TypeAlias = list[list[int]]
"""For each mesh its cells, in the order in which it runs them."""

CellChange: TypeAlias = tuple[int, float, float]
"""A cell, what it takes of a memory at its start, and what it takes at its end."""

EARLY: Final = 0.02
"""The weight of the average end of meshes in the cost, relative to the last end. It guides the search among orders of
equal value."""


class Measured(NamedTuple):
    """The value of a run.

    Attributes:
        value: the value of the objective.
        average: the average time of a mesh.
        last: a cell that ends last, and when the time of its mesh begins.
        starts: when the time of each mesh begins.
    """

    value: float
    average: float
    last: tuple[int, float]
    starts: Sequence[float]

    @property
    def cost(self) -> float:
        """The value to minimize: the objective, plus a small share of the average time of a mesh."""
        return self.value + EARLY * self.average


@dataclass(frozen=True, kw_only=True)
class OrderedCells(Cells):
    """The cells of a schedule, which a local search orders.

    Attributes:
        before: for each cell, the cells of its mesh that come before it in all orders of the search.
        types: an integer per cell, equal for cells of equal kinds and stages.
        microbatches: the microbatch of each cell; of several tasks, that of the first.
        takes: the memory of its mesh that each cell takes at its start.
        gives: the change of that memory at its end, zero or negative.
        rooms: the memory limit of each mesh and then, if hosts are limited, the limit of each mesh's host.
        objective: the value to minimize.
        by_time: the changes of memories that depend on times, and not only on the order of one mesh.
    """

    before: Sequence[frozenset[int]]
    types: Sequence[int]
    microbatches: Sequence[int]
    takes: Sequence[float]
    gives: Sequence[float]
    rooms: Sequence[float]
    objective: Objective
    by_time: Mapping[int, Sequence[CellChange]] = field(default_factory=dict[int, "Sequence[CellChange]"])

    def measured(self, rows: Rows, ends: Sequence[float], clocks: Sequence[float]) -> Measured:
        """Returns the value of a run of these orders, from the end of each cell and of each mesh."""
        starts = [0.0] * len(rows)
        if self.objective == "longest_stage":
            own = [next((cell for cell in row if cell not in self.asides), None) for row in rows]
            # An end minus a duration is not exactly the start.
            starts = [0.0 if cell is None else ends[cell] - self.times[cell] for cell in own]
        lengths = [clock - start if clock else 0.0 for clock, start in zip(clocks, starts, strict=True)]
        value = max(lengths)
        mesh = lengths.index(value)
        last = rows[mesh][-1], starts[mesh]
        if self.asides and self.objective == "makespan":
            latest = max(self.asides, key=ends.__getitem__)
            if ends[latest] > value:
                value, last = ends[latest], (latest, 0.0)
        return Measured(value, sum(lengths) / len(rows), last, starts)

    def fits_by_time(self, found: Run) -> bool:
        """Whether each memory that depends on times has room in a run."""
        for pool, deltas in self.by_time.items():
            moments = [(found.starts[cell], taken) for cell, taken, _ in deltas if taken]
            moments += [(found.ends[cell], given) for cell, _, given in deltas if given]
            if max(accumulate(change for _, change in sorted(moments)), default=0.0) > self.rooms[pool]:
                return False
        return True


def ordered_cells_of_problem(problem: Problem, orders: Orders) -> OrderedCells:
    """Returns the tasks of a problem as cells: cell `type * microbatches + microbatch`."""
    cells, most = problem.cells, problem.microbatches
    before: list[frozenset[int]] = []
    for each, need in enumerate(problem.needs):
        here = need >= 0 and problem.mesh_of[need] == problem.mesh_of[each]
        for number in range(most):
            ahead = [each * most + number - 1] if number else []
            before.append(frozenset([*ahead, need * most + number] if here else ahead))

    def repeated(values: Iterable[float]) -> list[float]:
        return [value for value in values for _ in range(most)]

    # The previous cells of the mesh have ended, so only cells of other meshes are waited for.
    mesh_of = repeated(problem.mesh_of)
    waits = [
        [(need, delay) for need, delay in pairs if mesh_of[need] != mesh_of[cell]]
        for cell, pairs in enumerate(cells.waits)
    ]
    return OrderedCells(
        problem.rows(orders),
        cells.times,
        waits,
        between=cells.between,
        touched=cells.touched,
        before=before,  # all microbatches are equal, so they keep their order
        types=[each for each in range(problem.types) for _ in range(most)],
        microbatches=list(range(most)) * problem.types,
        takes=repeated(max(0.0, size) for size in problem.memory),
        gives=repeated(min(0.0, size) for size in problem.memory),
        rooms=problem.rooms,
        objective=problem.objective,
    )


def ordered_cells(
    schedule: Schedule, costs: Costs, sizes: Sizes, rooms: Sequence[float], objective: Objective
) -> OrderedCells:
    """Returns the cells of a schedule, mesh by mesh in its order.

    Args:
        schedule: a valid one.
        costs: the costs of its tasks.
        sizes: the sizes of its activations, in the unit of the limits of meshes.
        rooms: the memory limit of each mesh and then, if hosts are limited, the bytes of each mesh's host.
        objective: the value to minimize.
    """
    graph, cells = schedule.graph, cells_of(schedule, costs)
    numbers: dict[tuple[object, ...], int] = {}
    groups = [graph.tasks[head : head + graph.spans[head]] for head in graph.heads]
    words = [tuple((task.kind, task.stage) for task in group) for group in groups]
    takes, gives, by_time = _memory(schedule, sizes)
    for mesh in range(schedule.meshes if len(rooms) > schedule.meshes else 0):
        found = changes(graph, mesh, byte_sizes(schedule, costs), "host")
        by_time[schedule.meshes + mesh] = [(graph.cell_of[number], start, end) for number, start, end in found]
    return OrderedCells(
        **{each.name: getattr(cells, each.name) for each in fields(Cells)},
        before=_before(schedule, in_turn=not costs.microbatches and _in_turn(schedule)),
        types=[numbers.setdefault(word, len(numbers)) for word in words],
        microbatches=[group[0].microbatch for group in groups],
        takes=takes,
        gives=gives,
        rooms=list(rooms),
        objective=objective,
        by_time=by_time,
    )


def needs_in_any_order(schedule: Schedule, cells: Cells) -> dict[int, dict[int, float]]:
    """Returns for each cell the cells that end before it begins in any order, with the delay from that end.

    Each cell comes after the cells that it needs.
    """
    needs = [
        {**dict.fromkeys(before - cells.asides, 0.0), **dict(waits)}
        for before, waits in zip(_before(schedule, in_turn=False), cells.waits, strict=True)
    ]
    return {cell: needs[cell] for cell in TopologicalSorter(dict(enumerate(needs))).static_order()}


def _in_turn(schedule: Schedule) -> bool:
    """Whether each mesh runs the microbatches of each kind and stage in ascending order."""
    last: dict[tuple[object, ...], int] = {}
    for mesh, row in enumerate(schedule.cells):
        for task in (task for cell in row for task in cell):
            if last.get((mesh, task.kind, task.stage), 0) > task.microbatch:
                return False
            last[mesh, task.kind, task.stage] = task.microbatch
    return True


def _before(schedule: Schedule, *, in_turn: bool) -> list[frozenset[int]]:
    """Returns for each cell the cells of its mesh that must come before it.

    A cell must come after the cells that it needs, and after earlier cells that change the same stored activation. With
    `in_turn` it also comes after earlier cells of its kind and stage.
    """
    graph, rules, cell_of = schedule.graph, schedule.rules, schedule.graph.cell_of
    found: list[set[int]] = [set() for _ in graph.heads]
    for row in graph.rows:
        last: dict[tuple[object, ...], int] = {}
        for number in row:
            task, cell = graph.tasks[number], cell_of[number]
            ahead = [cell_of[need] for need in graph.needs[number] if need in row]
            keys: list[tuple[object, ...]] = [(task.kind, task.stage)] if in_turn else []
            if rules[task.kind].makes or rules[task.kind].holds:
                keys.append(task.unit)
            found[cell].update(ahead, (last[key] for key in keys if key in last))
            last.update(dict.fromkeys(keys, cell))
    return [frozenset(each - {cell}) for cell, each in enumerate(found)]


def _memory(schedule: Schedule, sizes: Sizes) -> tuple[list[float], list[float], dict[int, list[CellChange]]]:
    """Returns the memory that each cell takes and releases on its mesh.

    The third result has the changes of memories that depend on more than the order of their mesh.
    """
    graph, cell_of = schedule.graph, schedule.graph.cell_of
    takes, gives = [0.0] * len(graph.heads), [0.0] * len(graph.heads)
    by_time: dict[int, list[CellChange]] = {}
    for mesh, row in enumerate(graph.rows):
        found = [each for each in changes(graph, mesh, sizes) if each.start or each.end]
        if any(number not in row or number in graph.asides for number, _, _ in found):
            by_time[mesh] = [(cell_of[number], start, end) for number, start, end in found]
            continue
        for number, start, end in found:
            takes[cell_of[number]] += start
            gives[cell_of[number]] += end
    return takes, gives, by_time
