"""Schedules of all steps of a `jaxpp.train_loop`."""

from dataclasses import replace

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.ir.errors import PassError
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.schedules.given import library_name
from jaxpp.schedules.library import options_of


def resolved(module: ir.Module, loop: ir.Operation, given: str, meshes: int, microbatches: int) -> schedules.Schedule:
    """Returns the schedule for a name of the library or a file.

    In a `jaxpp.train_loop` of several steps with a delay, a schedule by name becomes one of all steps.

    Args:
        module: the module, which may be a `jaxpp.train_loop`.
        loop: the loop over microbatches.
        given: a name of the library, or a file.
        meshes: the number of meshes.
        microbatches: the number of microbatches of one step.

    Raises:
        PassError: when the schedule overlaps steps, but the train loop has no delay.
        ScheduleError: when no such schedule exists for these numbers, or its steps can't overlap.
    """
    found, name = TrainLoopAttr.of(module), library_name(given)
    if found is None or found.steps == 1 or name is None:
        return schedules.resolve(given, meshes=meshes, microbatches=microbatches)
    if "steps" in options_of(name):
        if not found.delay:
            raise PassError(
                f"the schedule {name} overlaps steps, whose gradients are not delayed",
                location=loop.location,
                hint="give the train_loop a delay, or a schedule of one step, such as 1f1b",
            )
        options = {"steps": found.steps, "delay": found.delay}
        return schedules.resolve(given, meshes=meshes, microbatches=microbatches, **options)
    if not found.delay:
        return schedules.resolve(given, meshes=meshes, microbatches=microbatches)
    every = schedules.resolve(given, meshes=meshes, microbatches=microbatches * found.steps)
    return schedules.in_steps(every, found.steps, found.delay)


def takes_steps(module: ir.Module, schedule: schedules.Schedule, loop: ir.Operation) -> bool:
    """Whether `schedule` is of several steps. If so, writes its text on the `jaxpp.train_loop` of `module`.

    Raises:
        PassError: when the schedule has several steps, but not as many as the train loop. Also when the train loop has
            a delay, but the schedule has one step.
    """
    found, steps = TrainLoopAttr.of(module), schedules.steps_of(schedule)
    if steps != 1 and (found is None or found.steps != steps):
        expected, hint = "one training step", f"give it to mpmd_jit_with_loop(train_loop(step, {steps}, delay), ...)"
        if found is not None:
            expected = f"{found.steps}, as many as the train_loop has"
            hint = f"make the schedule with steps={found.steps}, or the loop with train_loop(step, {steps}, ...)"
        raise PassError(
            f"the schedule {schedule.name} is of {steps} steps, expected {expected}", location=loop.location, hint=hint
        )
    if found is not None and steps == 1 and found.delay and found.steps > 1:
        raise PassError(
            f"the gradients are delayed by {found.delay}, but the schedule {schedule.name} is of one step: nothing "
            "would overlap",
            location=loop.location,
            hint='give one by name, such as "1f1b", which is then of all steps, or an object of several, such as '
            f"jaxpp.PipeDream2BW({schedule.meshes}, steps={found.steps}, delay={found.delay}); or leave the delay out",
        )
    if steps > 1 and found is not None:
        replace(found, schedule=str(schedule)).write(module)
    return steps > 1
