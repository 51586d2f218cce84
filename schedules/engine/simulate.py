"""The simulator: exact times of every task under given costs."""

from __future__ import annotations

import math

from jaxpp._system import collector_paused
from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.engine.durations import cells_of, transfer_times
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.run import SimulatedTimes, run
from jaxpp.schedules.model.schedule import Schedule, check_type


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
        cells = cells_of(schedule, costs)
        found = run(cells, cells.rows)
        starts, ends = found.starts, found.ends
        if len(starts) < len(graph.tasks):
            starts, ends = ([times[cell] for cell in graph.cell_of] for times in (starts, ends))
    if not math.isfinite(max(ends)):
        check(schedule)
        raise ScheduleError("the costs are too large: the times have no finite sum")
    sent = [ends[number] for number, _ in graph.transfers]
    delays = transfer_times(schedule, costs) or [0.0] * len(sent)
    received = [start + delay for start, delay in zip(sent, delays, strict=True)]
    return Report(schedule, costs, SimulatedTimes(starts, ends, sent, received))
