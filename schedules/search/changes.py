"""Changes of the tasks of a finished schedule: recomputes, offloads, fused tasks, and other meshes for microbatches.

A change applies to one stage or to all stages, or to the fused tasks of one mesh or of all meshes. A change of `homes`
applies to a microbatch whose stages are on several meshes. A change is made or undone, and the search keeps a change
that gains.

First, changes bring the schedule into its limits. Then changes make it faster within the limits, or reduce its work. So
a stage stops a useless recompute, and if one of two stages must save memory, the cheaper stage does so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from typing import Final, NamedTuple, TypeAlias, cast

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.problem import Objective
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError, counted, one_of
from jaxpp.schedules.model.kinds import INPUT_GRADIENTS
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Cell
from jaxpp.schedules.rewrites.host import offload
from jaxpp.schedules.rewrites.tasks import recompute
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.homes import at_other_homes

CHANGES: Final = ("recompute", "offload", "fuse", "homes")

_COPIES: Final = ("offload", "reload")

_BYTE: Final = ("byte", "s")

_UNITS: Final = 300
"""The units of effort to change and run a task."""


_Make: TypeAlias = Callable[..., Schedule]
_Change: TypeAlias = tuple[frozenset[str], _Make, tuple[int, ...], tuple[int, ...]]
"""The kinds of tasks, the function that adds them, the stages that lose them, and the stages that get them."""


class Kept(NamedTuple):
    """The limits of what the meshes of a schedule may keep and, if they are limited, their hosts."""

    memory: MemoryLimits
    hosts: Sequence[float] = ()

    def peaks(self, report: Report) -> Iterator[tuple[str, tuple[str, str], int, float, float]]:
        """Yields for each limit the location, its unit with the plural ending, the mesh, the peak, and the limit."""
        at = self.memory.released_at
        here = report.peak_activations(at) if at else report.peak_bytes()
        unit = ("microbatch", "es") if at else _BYTE
        for mesh, (peak, limit) in enumerate(zip(here, self.memory.limits, strict=True)):
            yield "on", unit, mesh, peak, limit
        in_hosts = report.peak_host_bytes() if self.hosts else ()
        for mesh, (peak, limit) in enumerate(zip(in_hosts, self.hosts, strict=True)):
            yield "in the host of", _BYTE, mesh, peak, limit

    def excess(self, report: Report) -> str:
        """Returns which mesh keeps too much, how much, and its limit; empty if all limits hold."""
        for where, unit, mesh, peak, limit in self.peaks(report):
            if peak > limit * (1 + TOLERANCE):
                return f"{counted(peak, *unit)} {where} mesh {mesh}, its limit is {limit:g}"
        return ""

    def surplus(self, report: Report) -> float:
        """Returns the sum over all finite limits of the excess, as a share of the limit."""
        over = (peak / limit - 1 for *_, peak, limit in self.peaks(report) if limit < math.inf)
        return math.fsum(share for share in over if share > TOLERANCE)


def check_changes(change: Collection[str], costs: Costs) -> None:
    """Checks the changes that a caller allows.

    Raises:
        ScheduleError: a change is not in `CHANGES`, or the costs lack the time of an offload.
    """
    if isinstance(cast("object", change), str) or not isinstance(cast("object", change), Collection):
        example = change if change in CHANGES else CHANGES[0]
        raise ScheduleError(f"change must be a list of what may change, found {change!r}: give [{example!r}]")
    for name in change:
        one_of(CHANGES, name, "change")
    if "offload" in change and costs.copy_bandwidth == math.inf and not costs.kinds.keys() >= {*_COPIES}:
        raise ScheduleError(
            "change: the costs do not say how long an offload takes: give copy_bandwidth, or kinds with both ways"
        )


def with_other_tasks(
    schedule: Schedule, costs: Costs, limits: Kept, change: Collection[str], objective: Objective, effort: Effort
) -> Schedule:
    """Returns the schedule after one gaining change after another, until no change gains or the budget is spent.

    Args:
        schedule: a valid one, within the limits or not.
        costs: the costs of its tasks.
        limits: the limits that the result should meet.
        change: the allowed changes, from `CHANGES`.
        objective: the value to minimize.
        effort: the budget.
    """

    def rank(made: Schedule) -> tuple[float, float, float]:
        report = simulate(made, costs)
        # Fused tasks have less work, but may be a worse start for further changes.
        return limits.surplus(report), getattr(report, objective), 0.0 if "fuse" in change else report.busy

    def gains(found: tuple[float, float, float]) -> bool:
        if found[0] > best[0]:
            return False
        faster, idler = (new < old * (1 - TOLERANCE) for new, old in zip(found[1:], best[1:], strict=True))
        return found[0] < best[0] - TOLERANCE or faster or (found[1] <= best[1] and idler)

    best, has_gained = rank(schedule), True
    while has_gained:
        has_gained = False
        for made in _changed(schedule, costs, change):
            if not effort.spend(sum(map(len, schedule.orders)) * _UNITS):
                return schedule
            found = rank(made)
            if gains(found):
                schedule, best, has_gained = made, found, True
                break
    return schedule


def stripped(schedule: Schedule, change: Collection[str]) -> Schedule:
    """Returns the schedule without optional tasks, and with fused cells split if they may change."""
    rows = [
        [part for cell in row for part in (_apart([cell]) if _may_change(cell, change) else [cell])]
        for row in schedule.cells
    ]
    apart = Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds, schedule.skipped)
    return _without(apart, _optional(change), range(schedule.stages))


def least_factor(schedule: Schedule, costs: Costs, change: Collection[str]) -> float:
    """Returns the least share of its time that a task of a changeable or new cell may take.

    If a cell loses some tasks, the remaining tasks have the mean factor of their pairs, which is at least the least
    factor.
    """
    cells = [[task.kind for task in cell] for row in schedule.cells for cell in row if _may_change(cell, change)]
    pairs = {pair for kinds in cells for pair in combinations(kinds, 2)}
    if "fuse" in change:
        pairs |= {("forward", kind) for kind in INPUT_GRADIENTS}
    return min([1.0, *map(costs.factor, pairs)])


def _optional(change: Collection[str]) -> set[str]:
    """Returns the kinds of tasks that may be left out, or take less time.

    Copies are among them with "recompute", because a stage that recomputes has less to copy.
    """
    return {
        *(["recompute"] if "recompute" in change else []),
        *(_COPIES if {"recompute", "offload"} & {*change} else ()),
    }


def _may_change(cell: Cell, change: Collection[str]) -> bool:
    """Whether a cell may be split, or lose a task."""
    return "fuse" in change or not _optional(change).isdisjoint(task.kind for task in cell)


def _changed(schedule: Schedule, costs: Costs, change: Collection[str]) -> Iterator[Schedule]:
    """Yields the schedule with one change: of all stages, of one stage, or of two stages that swap roles."""
    stages = range(schedule.stages)
    made: list[tuple[frozenset[str], _Make]] = []
    if "recompute" in change:
        made.append((frozenset({"recompute"}), recompute))
    if "offload" in change:
        # The reload starts early enough for equally long forwards and backwards, or one cell before its use, or
        # directly before it.
        made += [(frozenset(_COPIES), make) for make in (offload, partial(offload, ahead=1), partial(offload, ahead=0))]
    everywhere: list[_Change] = []
    single: list[_Change] = []
    for kinds, make in made:
        having = tuple(sorted({task.stage for task in schedule if task.kind in kinds}))
        lacking = tuple(stage for stage in stages if stage not in having)
        one = [(stage,) for stage in having], [(stage,) for stage in lacking]
        everywhere += [(kinds, make, having, into) for into in ((), tuple(stages))]
        pairs = (*product(one[0], [()]), *product([()], one[1]), *product(*one))
        single += [(kinds, make, out, into) for out, into in pairs]
        if "offload" in kinds:  # the same stage with its copies at other times
            single += [(kinds, make, each, each) for each in one[0]]
    for kinds, make, out, into in everywhere + single:
        try:
            less = _without(schedule, kinds, out) if out else schedule
            if (found := make(less, *into) if into else less) != schedule:
                yield found
        except ScheduleError:  # another task of the schedule does not allow this change
            continue
    if "fuse" in change:
        every_mesh = range(schedule.meshes)
        together = partial(_together, costs=costs)
        for meshes, fuse in product((every_mesh, *([mesh] for mesh in every_mesh)), (together, _apart)):
            rows = [fuse(row) if mesh in meshes else row for mesh, row in enumerate(schedule.cells)]
            if tuple(rows) != schedule.cells and (fused := _if_it_runs(schedule, rows)):
                yield fused
    if "homes" in change:
        yield from filter(None, (_if_it_runs(schedule, rows) for rows in at_other_homes(schedule, costs)))


def _without(schedule: Schedule, kinds: Collection[str], stages: Collection[int]) -> Schedule:
    """Returns the schedule without tasks of these kinds of some stages."""
    rows = [
        [tuple(task for task in cell if task.kind not in kinds or task.stage not in stages) for cell in row]
        for row in schedule.cells
    ]
    cells = [[cell for cell in row if cell] for row in rows]
    return Schedule.of(schedule.name, schedule.placement, cells, schedule.kinds, schedule.skipped)


def _if_it_runs(schedule: Schedule, rows: Sequence[Sequence[Cell]]) -> Schedule | None:
    """Returns the schedule with these cells; None if they have a deadlock."""
    made = Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds, schedule.skipped)
    try:
        simulate(made)
    except ScheduleError:
        return None
    return made


def _apart(row: Sequence[Cell]) -> tuple[Cell, ...]:
    """Returns each task in a cell of its own."""
    return tuple((task,) for cell in row for task in cell)


def _together(row: Sequence[Cell], costs: Costs) -> tuple[Cell, ...]:
    """Fuses each forward with a neighbouring backward of another microbatch, if the costs say that this is faster."""
    found: list[Cell] = []
    for cell in row:
        pair = (*found[-1], *cell) if found else cell
        kinds = [task.kind for task in pair]
        is_pair = len(pair) == 2 and "forward" in kinds and any(kind in INPUT_GRADIENTS for kind in kinds)
        if is_pair and pair[0].microbatch != pair[1].microbatch and costs.factor(kinds) < 1:
            found[-1] = pair
        else:
            found.append(cell)
    return tuple(found)
