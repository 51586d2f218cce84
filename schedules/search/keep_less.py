"""A finished schedule within a limit in bytes: which stages recompute, and which offload to the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.memory import MemoryLimits, byte_sizes
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.rewrites.host import offload
from jaxpp.schedules.rewrites.tasks import recompute
from jaxpp.schedules.search.changes import Kept
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.stagewise import Search, StageChoices

_WHOLE: Final = 1 << 30

_UNITS: Final = 300
"""The units of effort to rewrite and run a task."""


def fits_bytes(schedule: Schedule, costs: Costs, limits: Sequence[float]) -> bool:
    """Whether no mesh ever keeps more bytes of activations than its limit."""
    return not Kept(MemoryLimits(tuple(limits), None)).excess(simulate(schedule, costs))


def keep_less(schedule: Schedule, costs: Costs, limits: Sequence[float], effort: Effort) -> Schedule | None:
    """Returns the fastest schedule with recomputes and offloads that keeps each mesh within its limit.

    A stage recomputes all of its forward or nothing. A stage may offload its residuals if the costs have the time of
    the copies (`copy_bandwidth`, or `kinds`).

    Args:
        schedule: a schedule with each stage on one mesh, without recomputes or offloads.
        costs: the costs of its stages, with bytes.
        limits: bytes of activations, one per mesh.
        effort: the budget. It may be exceeded.

    Returns:
        The schedule; None if no choice fits.
    """
    stages = range(schedule.stages)
    groups = [([mesh], [s for s in stages if schedule.placement[s] == mesh]) for mesh in range(schedule.meshes)]
    sizes = byte_sizes(schedule, costs)
    again = costs.at_home("recompute", schedule)
    # `Search` needs integers, so bytes and times are scaled to the largest of them.
    bytes_, times = _WHOLE / (max(sizes.activation) or 1.0), _WHOLE / max(again)
    levels = {
        s: [(int(sizes.activation[s] * bytes_), 0), (int(sizes.input[s] * bytes_), max(1, int(again[s] * times)))]
        for s in stages
    }
    can_move = costs.copy_bandwidth != math.inf or {"offload", "reload"} <= costs.kinds.keys()

    def chosen_stages(choice: StageChoices) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(s for s in stages if choice[s].level), tuple(s for s in stages if choice[s].offload)

    def changed(again: tuple[int, ...], moved: tuple[int, ...]) -> Schedule:
        plan = recompute(schedule, *again) if again else schedule
        return offload(plan, *moved) if moved else plan

    @cache
    def measured(again: tuple[int, ...], moved: tuple[int, ...]) -> tuple[list[int], tuple[float, float]]:
        effort.spend(sum(map(len, schedule.orders)) * _UNITS)
        report = simulate(changed(again, moved), costs)
        return [int(peak * bytes_) for peak in report.peak_bytes()], (report.makespan, report.busy)

    whole = [int(limit * bytes_) if limit < math.inf else 1 << 62 for limit in limits]
    search = Search(
        groups,
        levels,
        recomputed=(),
        stays=() if can_move else stages,
        limits=whole,
        peaks=lambda choice: measured(*chosen_stages(choice))[0],
        time=lambda choice: measured(*chosen_stages(choice))[1],
    )
    try:
        chosen = search.run()
    except ScheduleError:  # the tasks of this schedule can't be offloaded
        return None
    return None if chosen is None else changed(*chosen_stages(chosen))
