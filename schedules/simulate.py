"""The simulator: exact times of every task under given costs."""

from __future__ import annotations

import math

from jaxpp._system import collector_paused
from jaxpp.schedules.check import check
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.report import Report
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.sweep import NEVER, sweep


def simulate(schedule: Schedule, costs: Costs | None = None) -> Report:
    """Run the schedule: each mesh runs its tasks in order, each as soon as its inputs are there.

    A hop between meshes overlaps with compute. Linear in the number of tasks; a million take a few seconds.

    Args:
        schedule: what to run. It is checked only where it cannot run to its end; `check` finds every mistake.
        costs: times and bytes; by default every forward, input gradient and weight gradient of a whole mesh takes 1.

    Raises:
        ScheduleError: the schedule deadlocks, or the costs are for other stages or meshes, or lack a kind of task.
    """
    costs = costs or Costs()
    graph = schedule.graph
    kinds_known = graph.rules.keys() >= graph.numbers.keys()
    if not graph.tasks or graph.lacking or not kinds_known or max(t.stage for t in graph.tasks) >= schedule.stages:
        check(schedule)
    with collector_paused():
        durations = task_times(schedule, costs)
        delays, busy = transfer_times(schedule, costs)
        run = sweep(graph, durations, delays, busy)
    if NEVER in run.starts:
        check(schedule)
    if not math.isfinite(max(run.ends)):
        raise ScheduleError("the costs are too large: the times have no finite sum")
    return Report(schedule, costs, run)


def task_times(schedule: Schedule, costs: Costs) -> list[float]:
    """How long each task of `schedule.graph` takes; those of a fused cell take its time together.

    Raises:
        ScheduleError: the costs are for other stages, or lack a kind of task.
    """
    graph = schedule.graph
    shares = costs.shares(schedule)
    if schedule.slices == 1:
        times = {kind: costs.time(kind, schedule) for kind in graph.numbers if kind in graph.rules}
        durations = [times[task.kind][task.stage] for task in graph.tasks]
    else:
        parts = {
            kind: [[time * share for share in shares] for time in costs.time(kind, schedule)]
            for kind in graph.numbers
            if kind in graph.rules
        }
        durations = [parts[task.kind][task.stage][task.slice] for task in graph.tasks]
    _add_moves(schedule, costs, durations)
    if costs.fused != 1 and schedule.fused:
        for number, span in enumerate(graph.spans):
            for part in range(number, number + span if span > 1 else number):
                durations[part] *= costs.fused
    return durations


def _add_moves(schedule: Schedule, costs: Costs, durations: list[float]) -> None:
    """Let what moves memory from mesh to mesh take its hop, where neither the costs nor its kind say how long it is."""
    graph = schedule.graph
    kinds = [rule for rule in graph.rules.values() if rule.source and rule.time is None]
    moving = [rule for rule in kinds if rule.name in graph.numbers and rule.name not in costs.kinds]
    if not moving:
        return
    latency, bandwidth = costs.pair("hop", schedule), costs.pair("bandwidth", schedule)
    sizes, shares = costs.bytes("activation_bytes", schedule), costs.shares(schedule)
    for rule in moving:
        for key, number in graph.numbers[rule.name].items():
            task = graph.tasks[number]
            start, end = graph.homes[graph.numbers[rule.source][key]], graph.homes[number]
            size = rule.memory * sizes[task.stage] * shares[task.slice]
            durations[number] = latency[start][end] + size / bandwidth[start][end]


def transfer_times(schedule: Schedule, costs: Costs) -> tuple[list[float], list[float]]:
    """For each transfer how long it takes, and for how long it occupies its link (empty: links have no limit)."""
    graph = schedule.graph
    if costs.hop == 0 and costs.bandwidth == math.inf:
        return [], []
    latency, bandwidth = costs.pair("hop", schedule), costs.pair("bandwidth", schedule)
    sizes, shares = costs.bytes("message_bytes", schedule), costs.shares(schedule)
    delays: list[float] = []
    busy: list[float] = []
    for number, end in graph.transfers:
        task, start = graph.tasks[number], graph.homes[number]
        # Up go the outputs of a stage, down the gradients of its inputs: the outputs of the stage before it.
        carrier = task.stage if task.kind == "forward" else task.stage - 1
        known = task.kind in ("forward", "backward", "input_grad") and carrier >= 0
        size = sizes[carrier] * shares[task.slice] if known else 0.0
        busy.append(size / bandwidth[start][end])
        delays.append(latency[start][end] + busy[-1])
    return delays, busy if costs.contention else []
