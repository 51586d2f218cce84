"""Schedules of several optimizer steps of equally many microbatches, which are numbered through all steps.

    repeat(schedule, 3)                   three steps, each mesh runs one after the other
    in_steps(schedule, 3, delay=1)        a schedule of all microbatches, with the updates of three steps put into it

An `optimizer` task is the update of a stage, and has the index of the last microbatch of its step. The forwards of a
step wait for the update of the step `delay` + 1 steps earlier. With a delay, several versions of the weights are alive,
and a step begins before the previous step ends (PipeDream-2BW, arXiv 2006.09503).

All steps have the same tasks, but their order may differ: a V-shaped schedule fills and drains in another order than in
its steady state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.kinds import BUILTIN_KINDS, COMPUTE, Kind, Need
from jaxpp.schedules.model.schedule import Schedule, check_type
from jaxpp.schedules.model.task import Cell, Task

UPDATE = "optimizer"
_GRADIENTS = ("backward", "weight_grad")
_CHANGED = (UPDATE, "forward")
_MOVES = ("evict", "load", "offload", "reload")


def repeat(schedule: Schedule, steps: int, waits: bool = False) -> Schedule:
    """Repeats the schedule of one step; each mesh starts the next step as soon as its weights are updated.

    Args:
        schedule: the schedule of one step.
        steps: the number of steps, at least 1.
        waits: whether an update waits for the gradients of all stages, as an update that clips by their norm does.

    Raises:
        ScheduleError: when `steps` is below 1 or too large, or the schedule already has updates.
    """
    check_type(schedule)
    steps = whole_number(steps, "steps", least=1)
    check_size("repeat", stages=schedule.stages, microbatches=schedule.microbatches, steps=steps)
    count = schedule.microbatches

    def later(cell: Cell, step: int) -> Cell:
        return tuple(replace(task, microbatch=task.microbatch + step * count) for task in cell)

    rows = [[later(cell, step) for step in range(steps) for cell in row] for row in schedule.cells]
    skipped = (task for step in range(steps) for task in later(tuple(schedule.skipped), step))
    return in_steps(Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds, skipped), steps, waits=waits)


def in_steps(schedule: Schedule, steps: int, delay: int = 0, time: float = 0.001, waits: bool = False) -> Schedule:
    """Puts the updates of several steps into a schedule of all their microbatches.

    A backward stays whole, and a group of tasks stays fused, if it is so in all steps.

    Args:
        schedule: a schedule that runs each stage on one mesh.
        steps: the number of steps, at least 1; they have equal numbers of microbatches.
        delay: the number of updates that the weights of a step lack, at least 0.
        time: the time of an update if the costs give none; the forward and backward of a microbatch take 3.
        waits: whether an update waits for the gradients of all stages, as an update that clips by their norm does.

    Raises:
        ScheduleError: when the steps don't divide the microbatches, a stage is on several meshes, or the schedule
            already has updates. Also when it starts a step before the update that this step waits for.
    """
    steps, delay = whole_number(steps, "steps", least=1), whole_number(delay, "delay", least=0)
    check_type(schedule)
    count, rest = divmod(schedule.microbatches, steps)
    if rest or not count:
        raise ScheduleError(f"{schedule.name}: {schedule.microbatches} microbatches are not {steps} equal steps")
    if any(task.kind == UPDATE for task in schedule):
        raise ScheduleError(f"{schedule.name} has updates already: expected a schedule without {UPDATE} tasks")
    several = next((stage for stage, homes in enumerate(schedule.placement.homes) if len(homes) > 1), None)
    if several is not None:
        homes = len(schedule.placement.homes[several])
        raise ScheduleError(f"{schedule.name}: stage {several} is on {homes} meshes, a loop over steps needs it on one")
    schedule = _with_equal_steps(schedule, steps)
    first, last = dict[tuple[int, int], Task](), dict[tuple[int, int], Task]()
    for task in schedule:
        unit = task.stage, task.microbatch // count
        if task.kind == "forward":
            first.setdefault(unit, task)
        elif task.kind in _GRADIENTS:
            last[unit] = task
    rows = [list(_with_updates(row, last, count, waits)) for row in schedule.cells]
    kinds = [kind for kind in schedule.kinds if kind.name not in _CHANGED]
    known = {kind.name: kind for kind in (*BUILTIN_KINDS, *schedule.kinds)}
    ends = {task.microbatch % count - (count - 1) for task in last.values()}
    starts = {-(count * delay + 1 + task.microbatch % count) for task in first.values()}
    others = range(1 - schedule.stages, schedule.stages) if waits else range(1)
    gradients = tuple(Need(_GRADIENTS, stage=stage, microbatch=offset) for stage in others for offset in sorted(ends))
    update = Kind(UPDATE, gradients, time=time)
    needs = (*known["forward"].needs, *(Need((UPDATE,), optional=True, microbatch=offset) for offset in sorted(starts)))
    kinds += [update, Kind("forward", needs)] if steps > 1 else [update]
    made = Schedule.of(schedule.name, schedule.placement, rows, kinds, schedule.skipped)
    _check_updates(made, count, delay)
    check(made)
    return made


def _with_equal_steps(schedule: Schedule, steps: int) -> Schedule:
    """Splits each backward that another step splits, and takes apart tasks that another step does not fuse."""
    count = schedule.microbatches // steps

    def in_first(task: Task) -> Task:
        return replace(task, microbatch=task.microbatch % count)

    split = {in_first(task) for task in schedule if task.kind == "weight_grad"}
    cells = [cell for row in schedule.cells for cell in row if len({task.microbatch // count for task in cell}) == 1]
    fused = Counter(tuple(map(in_first, cell)) for cell in cells if len(cell) > 1)

    def halves(task: Task) -> Sequence[Task]:
        weight_grad = replace(task, kind="weight_grad")
        whole = task.kind != "backward" or in_first(weight_grad) not in split
        return (task,) if whole else (replace(task, kind="input_grad"), weight_grad)

    def parts(cell: Cell) -> Iterable[Cell]:
        tasks = [part for task in cell for part in halves(task)]
        is_kept = len(tasks) == len(cell) and fused.get(tuple(map(in_first, cell)), steps) == steps
        return [cell] if is_kept else [(task,) for task in tasks]

    rows = [[part for cell in row for part in parts(cell)] for row in schedule.cells]
    return Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds, schedule.skipped)


def _check_updates(schedule: Schedule, count: int, delay: int) -> None:
    """Checks that a mesh runs no forward before the update that the forward waits for.

    Raises:
        ScheduleError: when a mesh runs a forward of a step before the stage's update of the step `delay` + 1 steps
            earlier.
    """
    for order in schedule.orders:
        updated = {task.stage: 0 for task in order}
        for task in order:
            step = task.microbatch // count
            updated[task.stage] += task.kind == UPDATE
            if task.kind == "forward" and step > updated[task.stage] + delay:
                raise ScheduleError(
                    f"{schedule.name}: stage {task.stage} begins step {step} before the update of step "
                    f"{step - delay - 1}, whose weights it reads with a delay of {delay}: give each step more "
                    f"microbatches than {count}, a larger delay, or a schedule that keeps fewer activations"
                )


def _with_updates(row: Sequence[Cell], last: Mapping[tuple[int, int], Task], count: int, waits: bool) -> Iterable[Cell]:
    """Yields the cells of a mesh, with the update of each stage after its last gradient of a step.

    If updates wait, all updates of a step come after the mesh's last gradient of that step.
    """
    lasts = set(last.values())
    ends = {task: position for position, cell in enumerate(row) for task in cell if task in lasts}
    step_ends = {task.microbatch // count: ends[task] for task in sorted(ends, key=ends.__getitem__)}
    behind = defaultdict[int, list[Task]](list)
    for (stage, step), task in last.items():
        if task in ends:
            update = Task(UPDATE, stage, (step + 1) * count - 1)
            behind[step_ends[step] if waits else ends[task]].append(update)
    for position, cell in enumerate(row):
        yield cell
        yield from ((update,) for update in behind[position])


def steps_of(schedule: Schedule) -> int:
    """Returns the number of steps of a schedule: the number of updates of a stage, or 1 without updates."""
    return max(Counter(task.stage for task in schedule if task.kind == UPDATE).values(), default=1)


def first_step(schedule: Schedule) -> Schedule:
    """Returns the first of the steps that `in_steps` made, without its update. The other steps run the same tasks.

    Raises:
        ScheduleError: when another step has other tasks, or runs the tasks of one kind and stage in another order.
    """
    steps = steps_of(schedule)
    count = schedule.microbatches // steps
    rows = [[_of_step(row, step, count) for row in schedule.cells] for step in range(steps)]
    beside = {name for name, rule in schedule.rules.items() if COMPUTE not in rule.uses}
    for step, other in enumerate(rows):
        for mesh, (expected, found) in enumerate(zip(rows[0], other, strict=True)):
            sets = [{task for cell in cells for task in cell} for cells in (expected, found)]
            if sets[0] != sets[1]:
                raise ScheduleError(_other_tasks(schedule.name, mesh, step, *sets))
            if _of_each_stage(expected, beside) != _of_each_stage(found, beside):
                raise ScheduleError(
                    f"{schedule.name}: mesh {mesh} runs the microbatches of a stage in another order in step {step} "
                    "than in step 0; a loop over steps needs the same in all"
                )
    kinds = [kind for kind in schedule.kinds if kind.name not in _CHANGED]
    skipped = [task for task in schedule.skipped if task.microbatch < count]
    return Schedule.of(schedule.name, schedule.placement, rows[0], kinds, skipped)


def _other_tasks(name: str, mesh: int, step: int, first: Collection[Task], other: Collection[Task]) -> str:
    """Returns the message for a step that has other tasks than the first step."""
    task = min((task for task in (*first, *other) if (task in first) != (task in other)), key=str)
    where = ("0", step) if task in first else (step, "0")
    reason = ", and what is moved differs while the pipeline fills and drains" * (task.kind in _MOVES)
    return (
        f"{name}: mesh {mesh} runs other tasks in step {step} than in step 0: {task.words} in step {where[0]}, not in "
        f"step {where[1]}; a loop over steps needs the same in all{reason}"
    )


def is_in_one_order(schedule: Schedule) -> bool:
    """Whether each mesh runs the tasks of each step in the order of the first step; copies beside them may differ."""
    count = schedule.microbatches // steps_of(schedule)
    beside = {name for name, rule in schedule.rules.items() if COMPUTE not in rule.uses}

    def turns(row: Sequence[Cell], step: int) -> list[Cell]:
        cells = (tuple(task for task in cell if task.kind not in beside) for cell in _of_step(row, step, count))
        return [cell for cell in cells if cell]

    return all(turns(row, step) == turns(row, 0) for row in schedule.cells for step in range(1, steps_of(schedule)))


def _of_each_stage(row: Iterable[Cell], beside: Collection[str]) -> Mapping[tuple[str, int], list[tuple[int, int]]]:
    """Returns for each kind and stage the (microbatch, slice) of its tasks in order, without kinds beside the mesh."""
    found = defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for cell in row:
        for task in cell:
            if task.kind not in beside:
                found[task.kind, task.stage].append((task.microbatch, task.slice))
    return found


def _of_step(row: Iterable[Cell], step: int, count: int) -> list[Cell]:
    """Returns the cells of a step, with microbatches counted from the first of the step."""
    tasks = ([task for task in cell if task.microbatch // count == step and task.kind != UPDATE] for cell in row)
    return [tuple(replace(task, microbatch=task.microbatch - step * count) for task in cell) for cell in tasks if cell]
