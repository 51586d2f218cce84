"""The cells of a schedule, which a local search orders, with the constraints that hold in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TypeAlias

from jaxpp.schedules.between_runs import BetweenRuns, Touched
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.pools import Sizes, byte_sizes, changes
from jaxpp.schedules.problem import Objective, Orders, Problem
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.simulate import task_times, transfer_times

Rows: TypeAlias = list[list[int]]
"""For each mesh its cells, in the order in which it runs them."""


@dataclass(frozen=True)
class Cells:
    """The cells of a schedule as indices. A cell is one task, or several tasks that run as one.

    Attributes:
        rows: the initial orders.
        times: the duration of each cell.
        waits: for each cell the (cell, delay) pairs that it waits for beside its turn. A delay counts from the end of
            that cell.
        needed: for each cell, the cells of its mesh that come before it in any order.
        before: the same, and the cells that come before it in all orders of the search.
        types: an integer per cell, equal for cells of equal kinds and stages.
        microbatches: the microbatch of each cell; of several tasks, that of the first.
        takes: the memory of its mesh that each cell takes at its start.
        gives: the change of that memory at its end, zero or negative.
        rooms: the memory limit of each mesh and then, if hosts are limited, the limit of each mesh's host.
        objective: the value to minimize.
        tracks: for cells that use more than the turn of their mesh, the numbers of the tracks that they use.
        asides: the cells that run beside their mesh, without its turn.
        partners: for cells that run on several meshes at once, the cells on all of these meshes.
        by_time: for memories that depend on times, and not only on the order of one mesh: the cells that change them.
            An entry has the cell, what it takes at its start, and what it takes at its end.
        between: the work of meshes between runs of tasks of one stage; None if that takes no time.
        touched: the stages whose weights each cell reads, and those whose gradients it adds to.
    """

    rows: Rows
    times: list[float]
    waits: list[tuple[tuple[int, float], ...]]
    needed: list[frozenset[int]]
    before: list[frozenset[int]]
    types: list[int]
    microbatches: list[int]
    takes: list[float]
    gives: list[float]
    rooms: list[float]
    objective: Objective
    tracks: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    asides: frozenset[int] = frozenset()
    partners: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    by_time: dict[int, list[tuple[int, float, float]]] = field(
        default_factory=dict[int, list[tuple[int, float, float]]]
    )
    between: BetweenRuns | None = None
    touched: Sequence[Touched] = ()

    @cached_property
    def needs(self) -> list[dict[int, float]]:
        """For each cell the cells that end before it begins, in any order, with the delay from that end."""
        return [
            {**dict.fromkeys(before - self.asides, 0.0), **dict(waits)}
            for before, waits in zip(self.needed, self.waits, strict=True)
        ]

    @cached_property
    def in_turn(self) -> list[int]:
        """All cells, each after the cells that it needs."""
        return list(TopologicalSorter(dict(enumerate(self.needs))).static_order())

    def leads(self, row: Sequence[int]) -> dict[int, float]:
        """Returns for each cell of a mesh's order how long the mesh scatters and gathers before it."""
        if not self.between:
            return {}
        cells = [cell for cell in row if cell not in self.asides]
        return dict(zip(cells, self.between.leads(self.touched[cell] for cell in cells), strict=True))


def cells_of_problem(problem: Problem, orders: Orders) -> Cells:
    """Returns the tasks of a problem as cells: cell `type * microbatches + microbatch`."""
    most = problem.microbatches
    rows: Rows = []
    counts = [0] * problem.types
    for order in orders:
        row: list[int] = []
        for each in order:
            row.append(each * most + counts[each])
            counts[each] += 1
        rows.append(row)
    waits: list[tuple[tuple[int, float], ...]] = []
    before: list[frozenset[int]] = []
    for each, need in enumerate(problem.needs):
        here = need >= 0 and problem.mesh_of[need] == problem.mesh_of[each]
        for number in range(most):
            needed = need * most + number
            waits.append(() if need < 0 or here else ((needed, problem.delays[each]),))
            ahead = [each * most + number - 1] if number else []
            before.append(frozenset([*ahead, needed] if here else ahead))

    def repeated(values: Sequence[float]) -> list[float]:
        return [value for value in values for _ in range(most)]

    return Cells(
        rows,
        repeated(problem.times),
        waits,
        needed=before,  # all microbatches are equal, so they keep their order
        before=before,
        types=[each for each in range(problem.types) for _ in range(most)],
        microbatches=list(range(most)) * problem.types,
        takes=repeated([max(0.0, size) for size in problem.memory]),
        gives=repeated([min(0.0, size) for size in problem.memory]),
        rooms=problem.rooms,
        objective=problem.objective,
        between=problem.between,
        touched=[touched for touched in problem.touched for _ in range(most)],
    )


def cells_of(schedule: Schedule, costs: Costs, sizes: Sizes, rooms: Sequence[float], objective: Objective) -> Cells:
    """Returns the cells of a schedule, mesh by mesh in its order.

    Args:
        schedule: a valid one.
        costs: the costs of its tasks.
        sizes: the sizes of its activations, in the unit of the limits of meshes.
        rooms: the memory limit of each mesh and then, if hosts are limited, the bytes of each mesh's host.
        objective: the value to minimize.
    """
    graph = schedule.graph
    durations, delays = task_times(schedule, costs), transfer_times(schedule, costs)
    heads = [number for number, span in enumerate(graph.spans) if span]
    cell_of = [cell for cell, head in enumerate(heads) for _ in range(graph.spans[head])]
    groups = [range(head, head + graph.spans[head]) for head in heads]

    def awaited(slot: int) -> tuple[int, float]:
        transfer = slot - len(graph.tasks)
        if transfer < 0:
            return cell_of[slot], 0.0
        return cell_of[graph.transfers[transfer][0]], delays[transfer] if delays else 0.0

    numbers: dict[tuple[object, ...], int] = {}
    words = [tuple((task.kind, task.stage) for task in graph.tasks[group.start : group.stop]) for group in groups]
    names: dict[tuple[int, str], int] = {}
    takes, gives, by_time = _memory(schedule, sizes, cell_of)
    for mesh in range(schedule.meshes if len(rooms) > schedule.meshes else 0):
        found = changes(graph, mesh, byte_sizes(schedule, costs), "host")
        by_time[schedule.meshes + mesh] = [(cell_of[number], start, end) for number, start, end in found]
    return Cells(
        rows=[[cell_of[number] for number in row if graph.spans[number]] for row in graph.rows],
        times=[sum(durations[group.start : group.stop]) for group in groups],
        waits=[tuple(dict.fromkeys(map(awaited, graph.waits[head]))) for head in heads],
        needed=_before(schedule, cell_of, in_turn=False),
        before=_before(schedule, cell_of, in_turn=not costs.microbatches and _in_turn(schedule)),
        types=[numbers.setdefault(word, len(numbers)) for word in words],
        microbatches=[graph.tasks[head].microbatch for head in heads],
        takes=takes,
        gives=gives,
        rooms=list(rooms),
        objective=objective,
        tracks={
            cell: tuple(names.setdefault((graph.homes[head], name), len(names)) for name in graph.tracks[head])
            for cell, head in enumerate(heads)
            if head in graph.tracks
        },
        asides=frozenset(cell for cell, head in enumerate(heads) if head in graph.asides),
        by_time=by_time,
        between=costs.between_runs(schedule),
        touched=[Touched.by(graph.tasks[group.start : group.stop]) for group in groups],
    )


def _in_turn(schedule: Schedule) -> bool:
    """Whether each mesh runs the microbatches of each kind and stage in ascending order."""
    last: dict[tuple[object, ...], int] = {}
    for mesh, row in enumerate(schedule.cells):
        for task in (task for cell in row for task in cell):
            if last.get((mesh, task.kind, task.stage), 0) > task.microbatch:
                return False
            last[mesh, task.kind, task.stage] = task.microbatch
    return True


def _before(schedule: Schedule, cell_of: Sequence[int], *, in_turn: bool) -> list[frozenset[int]]:
    """Returns for each cell the cells of its mesh that must come before it.

    A cell must come after the cells that it needs, and after earlier cells that change the same stored activation. With
    `in_turn` it also comes after earlier cells of its kind and stage.
    """
    graph, rules = schedule.graph, schedule.rules
    found: list[set[int]] = [set() for _ in range(1 + max(cell_of))]
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


def _memory(
    schedule: Schedule, sizes: Sizes, cell_of: Sequence[int]
) -> tuple[list[float], list[float], dict[int, list[tuple[int, float, float]]]]:
    """Returns the memory that each cell takes and releases on its mesh.

    The third result has the changes of memories that depend on more than the order of their mesh.
    """
    graph = schedule.graph
    takes, gives = [0.0] * (1 + max(cell_of)), [0.0] * (1 + max(cell_of))
    by_time: dict[int, list[tuple[int, float, float]]] = {}
    for mesh, row in enumerate(graph.rows):
        found = [each for each in changes(graph, mesh, sizes) if each.start or each.end]
        if any(number not in row or number in graph.asides for number, _, _ in found):
            by_time[mesh] = [(cell_of[number], start, end) for number, start, end in found]
            continue
        for number, start, end in found:
            takes[cell_of[number]] += start
            gives[cell_of[number]] += end
    return takes, gives, by_time
