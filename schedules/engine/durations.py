"""The durations of tasks and transfers of a schedule under given costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from jaxpp.schedules.costs import Costs, one
from jaxpp.schedules.engine.memory import byte_sizes, moved
from jaxpp.schedules.model.run import Cells, cells_of_graph
from jaxpp.schedules.model.schedule import Schedule


def cells_of(schedule: Schedule, costs: Costs) -> Cells:
    """Returns the cells of a schedule with their durations.

    Raises:
        ScheduleError: when the costs are for other stages or meshes, or lack a kind of task.
    """
    durations, delays = task_times(schedule, costs), transfer_times(schedule, costs)
    return cells_of_graph(schedule.graph, durations, delays, costs.between_runs(schedule))


def task_times(schedule: Schedule, costs: Costs) -> list[float]:
    """Returns the duration of each task of `schedule.graph`; the tasks of a fused cell add up to its duration.

    Raises:
        ScheduleError: when the costs are for other stages, or lack a kind of task.
    """
    graph = schedule.graph
    times = [
        {kind: costs.on_mesh(kind, mesh, schedule) for kind in graph.numbers if kind in graph.rules}
        for mesh in range(schedule.meshes)
    ]
    rows = zip(times, graph.rows, strict=True)
    tasks = graph.tasks
    durations = [here[task.kind][task.stage] for here, row in rows for task in tasks[row.start : row.stop]]
    if size := costs.size(schedule):
        durations = [time * size(task) for time, task in zip(durations, tasks, strict=True)]
    for number, share in _copied(schedule, costs):
        durations[number] *= share
    for number, time in _moves(schedule, costs):
        durations[number] = time
    if costs.fused != 1 and schedule.fused:
        for number, span in enumerate(graph.spans):
            for part in range(number, number + span if span > 1 else number):
                durations[part] *= costs.factor([task.kind for task in tasks[number : number + span]])
    return durations


def _copied(schedule: Schedule, costs: Costs) -> Iterator[tuple[int, float]]:
    """Yields (number, share) for each copy that moves only a share of an activation and has no time of its own."""
    graph = schedule.graph
    rules = [graph.rules[kind] for kind in graph.numbers if kind in graph.rules and not graph.rules[kind].moves]
    copies = {rule.name for rule in rules if rule.amount("host") and not costs.is_told(rule.name, schedule)}
    if copies:
        sizes = byte_sizes(schedule, costs)
        copied, whole = moved(graph, sizes), moved(graph, replace(sizes, input=sizes.activation))
        for number, task in enumerate(graph.tasks):
            if task.kind in copies and copied(task) != whole(task):
                yield number, copied(task) / whole(task)


def _moves(schedule: Schedule, costs: Costs) -> Iterator[tuple[int, float]]:
    """Yields (number, time) for each task that takes memory from a peer and has no time of its own."""
    graph = schedule.graph
    rules = [graph.rules[kind] for kind in graph.numbers if kind in graph.rules and graph.rules[kind].moves]
    amounts = {rule.name: abs(rule.amount("peer")) for rule in rules if not costs.is_told(rule.name, schedule)}
    if not amounts:
        return
    latency, bandwidth = costs.pair("hop", schedule), costs.pair("bandwidth", schedule)
    size = moved(graph, byte_sizes(schedule, costs))
    for number, source in graph.sources.items():
        task, start, end = graph.tasks[number], graph.homes[source], graph.homes[number]
        if task.kind in amounts:
            seconds = amounts[task.kind] * size(task) / bandwidth[start][end]
            yield number, latency[start][end] + seconds if start != end else 0.0


def transfer_times(schedule: Schedule, costs: Costs) -> list[float]:
    """Returns the time of each transfer of `schedule.graph`; empty if transfers take no time."""
    graph = schedule.graph
    if costs.hop == 0 and costs.bandwidth == math.inf:
        return []
    latency, bandwidth = costs.pair("hop", schedule), costs.pair("bandwidth", schedule)
    ways = ((graph.homes[number], end) for number, end in graph.transfers)
    sizes = transfer_bytes(schedule, costs)
    return [latency[i][j] + sent / bandwidth[i][j] for (i, j), sent in zip(ways, sizes, strict=True)]


def transfer_bytes(schedule: Schedule, costs: Costs) -> list[float]:
    """Returns the bytes of each transfer of `schedule.graph`."""
    graph = schedule.graph
    sizes, size = costs.bytes("message_bytes", schedule), costs.size(schedule) or one
    # Between two stages go the outputs of the lower stage, or their gradients.
    return [
        sizes[border] * size(graph.tasks[number]) if border >= 0 else 0.0
        for (number, _), border in zip(graph.transfers, graph.borders, strict=True)
    ]
