"""Orders of the tasks of a schedule in which meshes keep fewer activations."""

from collections.abc import Iterator, Sequence

from jaxpp import schedules
from jaxpp.schedules import Costs, Schedule, ScheduleError
from jaxpp.schedules.engine.activations import activations

_SHARES = (0.75, 0.5, 0.25, 0.0)
"""The shares of its activations that a mesh with too little memory may keep in a search."""
_SECONDS = 0.2
"""The `seconds` of each search. They count work instead of time, so that every process finds the same order."""


def other_orders(plan: Schedule, over: Sequence[bool], costs: Costs) -> list[Schedule]:
    """Returns other orders of the same tasks on the same meshes, in which a mesh over its limit keeps less.

    The candidates are the schedules of the library, and the results of `schedules.search` with limits on the
    activations of meshes. The list is empty unless `plan` equals a schedule of the library: any other order is the
    user's choice.

    Args:
        plan: the schedule.
        over: for each mesh whether it needs too much memory.
        costs: the costs of the tasks.
    """
    tasks = set(plan)
    if not _may_be_changed(plan):
        return []
    kept, found = activations(plan), list[Schedule]()
    for other in (*_published(plan), *_searched(plan, over, costs)):
        same = other.placement == plan.placement and set(other) == tasks and other.skipped == plan.skipped
        if same and other.cells not in [plan.cells, *(each.cells for each in found)]:
            fewer = zip(activations(other), kept, over, strict=True)
            if any(now < before for now, before, matters in fewer if matters):
                found.append(other)
    return found


def _may_be_changed(plan: Schedule) -> bool:
    """Whether a schedule without slices equals the schedule of the library that has its name."""
    if plan.slices > 1 or not {task.kind for task in plan} <= {"forward", "backward", "input_grad", "weight_grad"}:
        return False
    try:
        made = schedules.make(plan.name, meshes=plan.meshes, microbatches=plan.microbatches)
    except (ScheduleError, ValueError):
        return False
    return made.cells == plan.cells and made.placement == plan.placement


def _published(plan: Schedule) -> Iterator[Schedule]:
    for name in schedules.names():
        try:
            yield schedules.make(name, meshes=plan.meshes, microbatches=plan.microbatches)
        except (ScheduleError, ValueError):
            continue  # it does not exist for so many meshes and microbatches


def _searched(plan: Schedule, over: Sequence[bool], costs: Costs) -> Iterator[Schedule]:
    """Yields orders from searches with fewer activations: on the meshes over their limits, on all, and on each one.

    The last two do not depend on the memory limits. A LimitError names a limit that is enough, and the same order must
    be found under that limit.
    """
    share, kept = plan.meshes / plan.stages, activations(plan)
    meshes = range(plan.meshes)
    fewer_on = [mesh for mesh in meshes if over[mesh]], meshes, *([mesh] for mesh in meshes)
    limits = [
        tuple(share * (max(1, int(part * count)) if mesh in chosen else count) for mesh, count in enumerate(kept))
        for chosen in fewer_on
        for part in _SHARES
    ]
    for each in dict.fromkeys(limits):
        try:
            yield schedules.search(
                plan.meshes,
                plan.microbatches,
                costs,
                each,
                placement=plan.placement,
                split_backward=not any(task.kind == "backward" for task in plan),
                seconds=_SECONDS,
            )
        except ScheduleError:
            continue  # no order keeps so few activations
