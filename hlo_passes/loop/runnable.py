"""Refuses schedules that programs can't run yet, with errors that name the task."""

from collections.abc import Collection

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.ir.errors import PassError
from jaxpp.ir.kinds import FORMS, form_of
from jaxpp.schedules.engine.merged_order import merged_numbers


def check_runnable(schedule: schedules.Schedule, loop: ir.Operation, operations: Collection[str]) -> None:
    """Raises PassError for a schedule into which no pass can cut the loop.

    Args:
        schedule: the schedule.
        loop: the microbatch loop.
        operations: the kinds that are bound to the user's functions.
    """
    _check_kinds(schedule, loop, operations)
    _check_order(schedule, loop)
    _check_copies(schedule, loop)


def _check_kinds(schedule: schedules.Schedule, loop: ir.Operation, operations: Collection[str]) -> None:
    """Raises PassError for a task of an unknown kind that is bound to no function, and for a function that no task
    calls.
    """
    for mesh, order in enumerate(schedule.orders):
        task = next((task for task in order if task.kind not in FORMS and task.kind not in operations), None)
        if task:
            given = f"operations={{{task.kind!r}: function}}"
            raise PassError(
                f"the schedule {schedule.name} has a task that is bound to no function: {task.words} on mesh {mesh}",
                location=loop.location,
                hint=f"give one to mpmd_jit_with_loop: options=jaxpp.StepOptions({given})",
            )
    kinds = {task.kind for task in schedule}
    for name in operations:
        if name not in kinds:
            raise PassError(
                f"there is a function for {name!r}, the schedule {schedule.name} has no such task",
                location=loop.location,
                hint=f"it has: {', '.join(sorted(kinds))}; schedules.rewrites.insert puts tasks into a schedule",
            )


def _check_order(schedule: schedules.Schedule, loop: ir.Operation) -> None:
    """Raises PassError for a task with the user's function that needs a task of another mesh and does not wait for it.

    No value goes to such a task. It is ordered only after the earlier tasks of its mesh, and so after the tasks that
    these need.
    """
    graph = schedule.graph
    needed = {
        number: [need for need in graph.needs[number] if graph.homes[need] != graph.homes[number]]
        for kind, numbers in graph.numbers.items()
        for number in (numbers.values() if kind not in FORMS else ())
    }
    if not any(needed.values()):
        return
    done: list[list[int]] = [[]] * len(graph.tasks)
    clocks = [[-1] * schedule.meshes for _ in graph.rows]
    for mesh, number in merged_numbers(schedule):
        for need in needed.get(number, ()):
            if clocks[mesh][graph.homes[need]] < need:
                task, other = graph.tasks[number].words, graph.tasks[need].words
                raise PassError(
                    f"the schedule {schedule.name} has {task} on mesh {mesh}, which needs {other} of mesh "
                    f"{graph.homes[need]}: no task of mesh {mesh} before it waits for that",
                    location=loop.location,
                    hint="put it on that mesh, or behind a task that needs the other",
                )
        earlier = [] if number in needed else [done[need] for need in graph.needs[number]]
        done[number] = clocks[mesh] = [max(column) for column in zip(clocks[mesh], *earlier, strict=True)]
        done[number][mesh] = number


def _check_copies(schedule: schedules.Schedule, loop: ir.Operation) -> None:
    """Raises PassError for residuals that are moved away and never brought back, and for fused tasks that can't be
    fused.
    """
    back = {kind: form.back for kind, form in FORMS.items() if form.back}
    leaving = [task for task in schedule if task.kind in back]
    returning = {"recompute", *back.values()}
    found = {(task.kind, task.unit) for task in schedule if task.kind in returning}
    stages = {task.stage for task in schedule if task.kind == "recompute"}
    for task in leaving:
        if task.stage in stages and ("recompute", task.unit) not in found:
            raise PassError(
                f"the schedule {schedule.name} has {task.words}, and recomputes other microbatches of that stage",
                location=loop.location,
                hint="let the residuals of a stage either move or be made again",
            )
    for task in leaving:
        if (back[task.kind], task.unit) not in found:
            raise PassError(
                f"the schedule {schedule.name} has {task.words} and no {back[task.kind]} of it",
                location=loop.location,
                hint="the backward reads what has left: bring it back before",
            )
    for task in (task for cell in schedule.fused for task in cell):
        if form_of(task.kind).is_copy or task.kind not in FORMS:
            raise PassError(
                f"the schedule {schedule.name} fuses {task.words} with another task",
                location=loop.location,
                hint="only what is compiled is fused, and this is not: give it a cell of its own",
            )
