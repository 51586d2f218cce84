"""The start times of tasks, and the one order over all meshes in which a single process dispatches them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.run import cells_of_graph, run
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Task


def unit_cost(task: Task) -> float:
    """Returns a rough cost of a task: 2 for a full backward, otherwise 1."""
    return 2.0 if task.kind == "backward" else 1.0


def start_times(schedule: Schedule, cost: Callable[[Task], float] = unit_cost) -> list[list[float]]:
    """Returns for each mesh, in its order, the start of every task if each runs as soon as its needs are done.

    A hop between meshes takes no time. Fused tasks start together and take the sum of their costs.

    Raises:
        ScheduleError: when the schedule deadlocks, or a cost is not a positive number.
    """
    graph = schedule.graph
    durations = [cost(task) for task in graph.tasks]
    for task, duration in zip(graph.tasks, durations, strict=True):
        if not 0 < duration < math.inf:
            raise ScheduleError(f"the cost of {task.words} must be a positive number, found {duration!r}")
    cells = cells_of_graph(graph, durations)
    starts = run(cells, cells.rows).starts
    if math.inf in starts:
        check(schedule)
    return [[starts[graph.cell_of[number]] for number in row] for row in graph.rows]


def merged_order(schedule: Schedule) -> list[tuple[int, Task]]:
    """Returns all tasks as (mesh, task), by start time and then by mesh, which is a topological order.

    It keeps the order of every mesh, with one exception. A task that runs beside its mesh and waits for another mesh,
    such as `load`, may come after tasks that follow it.

    A single thread that dispatches in this order never lets a mesh wait while it could start an earlier task. Fused
    tasks are neighbours.

    Raises:
        ScheduleError: when the schedule deadlocks.
    """
    tasks = schedule.graph.tasks
    return [(mesh, tasks[number]) for mesh, number in merged_numbers(schedule)]


def merged_numbers(schedule: Schedule) -> list[tuple[int, int]]:
    """Returns the order of `merged_order`, as (mesh, number in `schedule.graph`).

    Raises:
        ScheduleError: when the schedule deadlocks.
    """
    starts = list(itertools.chain.from_iterable(start_times(schedule)))
    graph, homes = schedule.graph, schedule.graph.homes
    if graph.asides:
        local = _local_asides(graph)
        for row in graph.rows:
            for number in reversed(row[:-1]):
                if number in local:  # dispatched in its turn, though it starts once its track is free
                    starts[number] = min(starts[number], starts[number + 1])
    return [(homes[number], number) for number in sorted(range(len(starts)), key=starts.__getitem__)]


def _local_asides(graph: Graph) -> set[int]:
    """Returns the tasks that run beside their mesh and need only tasks that precede them on that mesh."""
    local: set[int] = set()
    for row in graph.rows:
        for head in row:
            cell = range(head, head + graph.spans[head])
            needs = {need for number in cell for need in graph.needs[number]}.difference(cell)
            if graph.asides.issuperset(cell) and all(
                row.start <= need < head and (need in local or need not in graph.asides) for need in needs
            ):
                local.update(cell)
    return local
