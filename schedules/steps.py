"""Schedules of several optimizer steps: microbatches are numbered through all of them, each step has as many.

    repeat(schedule, 3)                   three steps, each mesh runs one after the other
    in_steps(schedule, 3, delay=1)        a schedule of all microbatches, with the updates of three steps put into it

An `optimizer` task, the update of a stage, has the number of the last microbatch of its step. The forwards of a step
wait for the update `delay` + 1 steps before: with a delay two versions of the weights are alive, or more, and the next
step begins before the last one ends (PipeDream-2BW, arXiv 2006.09503).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from jaxpp.schedules.check import check
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.kinds import BUILTIN_KINDS, Kind, Need
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Cell, Task

UPDATE = "optimizer"
_GRADIENTS = ("backward", "weight_grad")
_CHANGED = (UPDATE, "forward")


def repeat(schedule: Schedule, steps: int) -> Schedule:
    """The schedule of one step, so often: each mesh goes on to the next step as soon as its weights are updated.

    Args:
        schedule: of one step.
        steps: how many, at least 1.

    Raises:
        ScheduleError: the count is below 1, or the schedule has updates already.
    """
    steps = whole_number(steps, "steps", least=1)
    count = schedule.microbatches

    def later(cell: Cell, step: int) -> Cell:
        return tuple(replace(task, microbatch=task.microbatch + step * count) for task in cell)

    rows = [[later(cell, step) for step in range(steps) for cell in row] for row in schedule.cells]
    skipped = (task for step in range(steps) for task in later(tuple(schedule.skipped), step))
    return in_steps(Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds, skipped), steps)


def in_steps(schedule: Schedule, steps: int, delay: int = 0, time: float = 0.001) -> Schedule:
    """Put the updates of several steps into a schedule of all their microbatches.

    Args:
        schedule: runs each stage on one mesh.
        steps: how many, at least 1; they have equal numbers of microbatches.
        delay: how many updates are missing in the weights of a step, at least 0.
        time: how long an update takes where the costs don't say; a microbatch takes 3 in all.

    Raises:
        ScheduleError: the steps don't divide the microbatches, a stage is on several meshes, the schedule has updates
            already, or a forward stands before the update that it waits for.
    """
    steps, delay = whole_number(steps, "steps", least=1), whole_number(delay, "delay", least=0)
    count, rest = divmod(schedule.microbatches, steps)
    if rest or not count:
        raise ScheduleError(f"{schedule.name}: {schedule.microbatches} microbatches are not {steps} equal steps")
    if any(task.kind == UPDATE for task in schedule):
        raise ScheduleError(f"{schedule.name} has updates already: expected a schedule without {UPDATE} tasks")
    several = next((stage for stage, homes in enumerate(schedule.placement.homes) if len(homes) > 1), None)
    if several is not None:
        homes = len(schedule.placement.homes[several])
        raise ScheduleError(f"{schedule.name}: stage {several} is on {homes} meshes, a loop over steps needs it on one")
    first, last = dict[tuple[int, int], Task](), dict[tuple[int, int], Task]()
    for task in schedule:
        unit = task.stage, task.microbatch // count
        if task.kind == "forward":
            first.setdefault(unit, task)
        elif task.kind in _GRADIENTS:
            last[unit] = task
    rows = [list(_with_updates(row, last, count)) for row in schedule.cells]
    kinds = [kind for kind in schedule.kinds if kind.name not in _CHANGED]
    known = {kind.name: kind for kind in (*BUILTIN_KINDS, *schedule.kinds)}
    ends = {task.microbatch % count - (count - 1) for task in last.values()}
    waits = {-(count * delay + 1 + task.microbatch % count) for task in first.values()}
    update = Kind(UPDATE, tuple(Need(_GRADIENTS, microbatch=offset) for offset in sorted(ends)), time=time)
    needs = (*known["forward"].needs, *(Need((UPDATE,), optional=True, microbatch=offset) for offset in sorted(waits)))
    kinds += [update, Kind("forward", needs)] if steps > 1 else [update]
    made = Schedule.of(schedule.name, schedule.placement, rows, kinds, schedule.skipped)
    check(made)
    return made


def _with_updates(row: Iterable[Cell], last: dict[tuple[int, int], Task], count: int) -> Iterable[Cell]:
    for cell in row:
        yield cell
        for task in cell:
            step = task.microbatch // count
            if last.get((task.stage, step)) == task:
                yield (Task(UPDATE, task.stage, (step + 1) * count - 1),)


def steps_of(schedule: Schedule) -> int:
    """How many steps a schedule has: that of the updates of a stage, or 1."""
    return max(Counter(task.stage for task in schedule if task.kind == UPDATE).values(), default=1)


def first_step(schedule: Schedule) -> Schedule:
    """The first of the steps that `in_steps` made, without its update: the others run the same tasks in its order.

    Raises:
        ScheduleError: another step has another order.
    """
    steps = steps_of(schedule)
    count = schedule.microbatches // steps
    rows = [[_of_step(row, step, count) for row in schedule.cells] for step in range(steps)]
    for step, other in enumerate(rows):
        for mesh, (expected, found) in enumerate(zip(rows[0], other, strict=True)):
            if expected != found:
                raise ScheduleError(
                    f"{schedule.name}: mesh {mesh} runs step {step} in another order than step 0; "
                    "a loop over steps needs one order for all"
                )
    kinds = [kind for kind in schedule.kinds if kind.name not in _CHANGED]
    skipped = [task for task in schedule.skipped if task.microbatch < count]
    return Schedule.of(schedule.name, schedule.placement, rows[0], kinds, skipped)


def _of_step(row: Iterable[Cell], step: int, count: int) -> list[Cell]:
    """The tasks of a step, with the numbers of its microbatches."""
    tasks = ([task for task in cell if task.microbatch // count == step and task.kind != UPDATE] for cell in row)
    return [tuple(replace(task, microbatch=task.microbatch - step * count) for task in cell) for cell in tasks if cell]
