"""Changes of a finished schedule, whether it comes from the library, a search, or the user.

    recompute(schedule, 1, 2)               these stages run forward again before they run backward
    split_backward(schedule, delay=1)       weight gradients run as separate tasks, one backward later
    freeze(schedule, 0)                     the weight gradients of stage 0 are left out
    insert(schedule, operation, 3, after="forward")   a user's operation
    subdivide(schedule, 2)                  each stage becomes two, one after the other on its mesh

Each function returns a new, checked schedule. Without stages it changes all stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxpp.schedules.builders.language import Operation
from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.kinds import ALL, INPUT_GRADIENTS, Kind
from jaxpp.schedules.model.schedule import Schedule, check_type
from jaxpp.schedules.model.task import Cell, Placement, Task

_DIVISIBLE = ("forward", *INPUT_GRADIENTS, "weight_grad")


def recompute(schedule: Schedule, *stages: int) -> Schedule:
    """Runs the forward again right before each backward, so that its activation need not be kept.

    The recompute comes after any task that brings back its input. A forward and its backward that are fused keep no
    activation, and stay as they are.

    Raises:
        ScheduleError: when a stage does not exist, or already recomputes.
    """
    held = held_stages(schedule, stages)
    made = next((task for task in schedule if task.kind == "recompute" and task.stage in held), None)
    if made is not None:
        raise ScheduleError(f"recompute: {schedule.name} has {made.words} already")
    kept = {task.unit for row in schedule.cells for cell in row for task in cell if _follows_in(cell, task)}

    def around(task: Task) -> tuple[list[Task], list[Task]]:
        again = task.kind in INPUT_GRADIENTS and task.stage in held and task.unit not in kept
        return [_like(task, "recompute")] * again, []

    return _checked(schedule, [_around(row, around) for row in schedule.cells])


def insert(
    schedule: Schedule, operation: Operation | str, *stages: int, after: str | None = None, before: str | None = None
) -> Schedule:
    """Puts a task of another kind right after, or right before, each task of a kind.

    A kind that needs tasks of all microbatches, such as "optimizer", gets one task per stage, on the stage's home mesh.
    It follows the last task there of the kind that `after` names.

    Args:
        schedule: the schedule to change.
        operation: the kind of the new tasks, or the name of a built-in kind.
        stages: the stages that get the tasks.
        after: the kind of task that each new task follows, or
        before: the kind of task that each new task precedes; "backward" also stands for input gradients.

    Raises:
        ScheduleError: when both or neither of `after` and `before` are given, or there is no such task or stage. Also
            when `before` is given for a kind that needs all microbatches, or the result is not valid.
    """
    if (after is None) == (before is None):
        raise ScheduleError(f"insert: expected either after or before, found after={after!r} and before={before!r}")
    held = held_stages(schedule, stages)
    name, kind = (operation, None) if isinstance(operation, str) else (operation.name, operation.kind)
    anchors = INPUT_GRADIENTS if "backward" in (after, before) else (after or before,)

    if not any(task.kind in anchors and task.stage in held for task in schedule):
        raise ScheduleError(f"{schedule.name} has no {after or before!r} task of these stages to put {name!r} at")

    rule = kind or schedule.rules.get(name)
    once = rule is not None and any(need.microbatch == ALL for need in rule.needs)
    if once and before:
        raise ScheduleError(f"insert: {name} needs tasks of all microbatches: give after, not before")
    orders = {stage: schedule.orders[schedule.placement[stage]] for stage in held}
    last = {each: task for each in held for task in orders[each] if task.stage == each and task.kind in anchors}
    if once and (missing := held - last.keys()):
        stage = min(missing)
        where = f"stage {stage} has none on mesh {schedule.placement[stage]}, where it is at home"
        raise ScheduleError(f"insert: {name} goes after the last {after} task of each stage: {where}")

    def around(task: Task) -> tuple[list[Task], list[Task]]:
        if once:
            return [], [Task(name, task.stage, 0)] * (task.stage in held and last[task.stage] == task)
        new = [_like(task, name)] * (task.kind in anchors and task.stage in held)
        return (new, []) if before else ([], new)

    return _checked(schedule, [_around(row, around) for row in schedule.cells], kind)


def split_backward(schedule: Schedule, *stages: int, delay: int = 0) -> Schedule:
    """Splits each backward into input gradient and weight gradient.

    A weight gradient runs right after its own input gradient, or after the input gradient `delay` split backwards
    later. At the end of its mesh's tasks the remaining weight gradients follow.

    Raises:
        ScheduleError: when a stage does not exist, or the delay is not a whole number of at least 0.
    """
    delay, held = whole_number(delay, "delay", least=0), held_stages(schedule, stages)
    rows: list[list[Cell]] = []
    for cells in schedule.cells:
        row: list[Cell] = []
        owed: list[Cell] = []
        for cell in cells:
            halved = [task for task in cell if task.kind == "backward" and task.stage in held]
            row.append(tuple(_like(task, "input_grad") if task in halved else task for task in cell))
            for task in halved:
                owed.append((_like(task, "weight_grad"),))
                if len(owed) > delay:
                    row.append(owed.pop(0))
        rows.append(row + owed)
    return _checked(schedule, rows)


def freeze(schedule: Schedule, *stages: int) -> Schedule:
    """Removes the weight gradients of frozen stages (TimelyFreeze, arXiv 2602.05754).

    The backwards of these stages become input gradients.

    Raises:
        ScheduleError: when a stage does not exist.
    """
    held = held_stages(schedule, stages)
    rows: list[list[Cell]] = []
    skipped = set(schedule.skipped)
    for cells in schedule.cells:
        row: list[Cell] = []
        for cell in cells:
            frozen = {task for task in cell if task.stage in held and task.kind in ("backward", "weight_grad")}
            skipped |= {_like(task, "weight_grad") for task in frozen}
            stay = [task for task in cell if task not in frozen or task.kind == "backward"]
            kept = [_like(task, "input_grad") if task in frozen else task for task in stay]
            row += [tuple(kept)] * bool(kept)
        rows.append(row)
    return _checked(replace(schedule, skipped=frozenset(skipped)), rows)


def subdivide(schedule: Schedule, parts: int) -> Schedule:
    """Divides each stage into several stages on the same mesh, for smaller offloads and recomputes.

    Each task becomes its parts, one after the other; the parts of a backward run in reverse. Of fused tasks, each new
    cell has one part each. Tasks of one microbatch, such as a forward and its own backward, are an exception: only the
    last part of the first task and the first part of the second task are fused. The time of a task and the order of
    the schedule stay the same.

    The model must have `parts` times as many marks. On the result, `offload` with `ahead=0` brings back one part at a
    time, and `recompute` makes the residuals of one part at a time. A task has the temporaries of one part.

    Args:
        schedule: a schedule of forwards and backwards, whole or split.
        parts: the number of new stages for each stage.

    Raises:
        ScheduleError: when `parts` is not a whole number of at least 1 or too large, or the schedule has other kinds of
            tasks.
    """
    check_type(schedule)
    parts = whole_number(parts, "subdivide: parts", least=1)
    check_size("subdivide", stages=schedule.stages, microbatches=schedule.microbatches, parts=parts)
    other = next((task for task in schedule if task.kind not in _DIVISIBLE), None)
    if other is not None:
        raise ScheduleError(
            f"subdivide: expected forwards and backwards alone, found {other}: divide the stages first, and do to the "
            "result what else is to be done"
        )

    def part(task: Task, number: int) -> Task:
        number = number if task.kind == "forward" else parts - 1 - number
        return replace(task, stage=task.stage * parts + number)

    numbers, old = range(parts), schedule.placement
    placement = Placement(
        tuple(homes for homes in old.homes for _ in numbers),
        tuple(
            (stage * parts + number - 1,) if number else tuple(other * parts + parts - 1 for other in read)
            for stage, read in enumerate(old.after)
            for number in numbers
        ),
    )

    def divided(cell: Cell) -> list[Cell]:
        cells: dict[int, list[Task]] = {}
        last: dict[tuple[int, int], int] = {}  # the index of the cell that ends each microbatch's latest task
        for task in cell:
            end = last.get((task.microbatch, task.slice), 0)
            start = max(0, end - (parts - 1)) if task.kind == "weight_grad" else end
            last[task.microbatch, task.slice] = start + parts - 1
            for number in numbers:
                cells.setdefault(start + number, []).append(part(task, number))
        return [tuple(cells[number]) for number in sorted(cells)]

    rows = [[new for cell in row for new in divided(cell)] for row in schedule.cells]
    skipped = frozenset(part(task, number) for task in schedule.skipped for number in numbers)
    made = Schedule.of(schedule.name, placement, rows, schedule.kinds, skipped)
    check(made)
    return made


def _follows_in(cell: Cell, task: Task) -> bool:
    """Whether `task` is a backward whose forward is in the same cell, so that no activation is kept between them."""
    return task.kind in INPUT_GRADIENTS and any(other.kind == "forward" and other.unit == task.unit for other in cell)


def _like(task: Task, kind: str) -> Task:
    return Task(kind, task.stage, task.microbatch, task.slice)


def held_stages(schedule: Schedule, stages: tuple[int, ...]) -> frozenset[int]:
    """Returns the given stages, or all stages if none is given.

    Raises:
        ScheduleError: when a stage does not exist.
    """
    check_type(schedule)
    for stage in stages:
        if whole_number(stage, "a stage", least=0) >= schedule.stages:
            raise ScheduleError(f"{schedule.name} has no stage {stage}: there are {schedule.stages}")
    return frozenset(stages or range(schedule.stages))


def _around(cells: tuple[Cell, ...], around: Callable[[Task], tuple[list[Task], list[Task]]]) -> list[Cell]:
    row: list[Cell] = []
    for cell in cells:
        sides = [around(task) for task in cell]
        row += [(task,) for side in sides for task in side[0]]
        row.append(cell)
        row += [(task,) for side in sides for task in side[1]]
    return row


def _checked(schedule: Schedule, rows: list[list[Cell]], kind: Kind | None = None) -> Schedule:
    kinds = [*schedule.kinds, *([kind] if kind and kind not in schedule.kinds else [])]
    made = Schedule.of(schedule.name, schedule.placement, rows, kinds, schedule.skipped)
    check(made)
    return made
