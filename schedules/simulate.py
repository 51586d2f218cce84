"""The simulator: exact times of every task under given costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from jaxpp._system import collector_paused
from jaxpp.schedules.between_runs import Touched
from jaxpp.schedules.check import check
from jaxpp.schedules.costs import Costs, given_costs, one
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.pools import byte_sizes, moved
from jaxpp.schedules.report import Report
from jaxpp.schedules.schedule import Schedule, check_type
from jaxpp.schedules.sweep import NEVER, sweep


def simulate(schedule: Schedule, costs: Costs | None = None) -> Report:
    """Runs the schedule: each mesh runs its tasks in order, each as soon as its inputs have arrived.

    A hop between meshes overlaps with compute. The time is linear in the number of tasks; a million take a few seconds.

    Args:
        schedule: the schedule. It is only checked if it cannot run to its end; `check` finds every error.
        costs: times and bytes; by default every forward, input gradient and weight gradient of a whole mesh takes 1.

    Raises:
        ScheduleError: when the schedule deadlocks, or the costs are for other stages or meshes, or lack a kind of task.
    """
    check_type(schedule)
    costs, graph = given_costs(costs), schedule.graph
    kinds_known = graph.rules.keys() >= graph.numbers.keys()
    if not graph.tasks or graph.lacking or not kinds_known or max(t.stage for t in graph.tasks) >= schedule.stages:
        check(schedule)
    with collector_paused():
        durations = task_times(schedule, costs)
        leads = leads_of(schedule, costs)
        run = sweep(graph, durations, transfer_times(schedule, costs), leads=leads)
    if NEVER in run.starts:
        check(schedule)
    if not math.isfinite(max(run.ends)):
        raise ScheduleError("the costs are too large: the times have no finite sum")
    return Report(schedule, costs, run)


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


def leads_of(schedule: Schedule, costs: Costs) -> dict[int, float]:
    """Returns how long a mesh scatters and gathers before each run of tasks of one stage, by the run's first task.

    Raises:
        ScheduleError: when the costs are for other stages.
    """
    graph, between = schedule.graph, costs.between_runs(schedule)
    found: dict[int, float] = {}
    if between is None:
        return found
    for row in graph.rows:
        heads = [number for number in row if graph.spans[number] and number not in graph.asides]
        cells = [Touched.by(graph.tasks[head : head + graph.spans[head]]) for head in heads]
        leads = zip(heads, between.leads(cells), strict=True)
        found.update((head, lead) for head, lead in leads if lead)
    return found


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
    sizes, size = costs.bytes("message_bytes", schedule), costs.size(schedule) or one
    delays: list[float] = []
    for (number, end), border in zip(graph.transfers, graph.borders, strict=True):
        start = graph.homes[number]
        # Between two stages go the outputs of the lower stage, or their gradients.
        sent = sizes[border] * size(graph.tasks[number]) if border >= 0 else 0.0
        delays.append(latency[start][end] + sent / bandwidth[start][end])
    return delays
