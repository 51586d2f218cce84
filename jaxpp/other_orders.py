"""Orders of the tasks of a schedule in which meshes keep fewer activations."""

from collections.abc import Iterator, Sequence

from jaxpp import schedules
from jaxpp.schedules import Costs, Schedule, ScheduleError

_SHARES = (0.75, 0.5, 0.25, 0.0)
"""Of the activations that a mesh keeps, so many are tried where it needs too much memory."""
_SECONDS = 0.2
"""What each search may take: counted work, so that every process finds the same."""


def other_orders(plan: Schedule, over: Sequence[bool], costs: Costs) -> list[Schedule]:
    """Schedules of the same tasks on the same meshes that keep fewer activations on a mesh that needs too much memory.

    They are those of the library, and what `schedules.search` finds with as few as a share of the activations on such
    meshes. Only a schedule of the library gets others, task for task: the user wrote or chose the order of any other.

    Args:
        plan: the schedule.
        over: of each mesh whether it needs too much.
        costs: of the tasks.
    """
    tasks = set(plan)
    if not _may_be_changed(plan):
        return []
    kept, found = schedules.activations(plan), list[Schedule]()
    for other in (*_published(plan), *_searched(plan, over, costs)):
        same = other.placement == plan.placement and set(other) == tasks and other.skipped == plan.skipped
        if same and other.cells not in [plan.cells, *(each.cells for each in found)]:
            fewer = zip(schedules.activations(other), kept, over, strict=True)
            if any(now < before for now, before, matters in fewer if matters):
                found.append(other)
    return found


def _may_be_changed(plan: Schedule) -> bool:
    """Whether a schedule is of the library, task for task, with each stage on one mesh."""
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
            continue  # not for as many


def _searched(plan: Schedule, over: Sequence[bool], costs: Costs) -> Iterator[Schedule]:
    """What the search finds with fewer activations on the meshes that are over, on all meshes, and on each one alone.

    The last two do not depend on the limits: what a refusal says is enough has to be found for that limit too.
    """
    share, kept = plan.meshes / plan.stages, schedules.activations(plan)
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
            continue  # no order keeps as few
