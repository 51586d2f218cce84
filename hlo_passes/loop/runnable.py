"""Refuses, by name, what a schedule may ask for and programs can't do yet."""

from typing import Final

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.ir.errors import PassError

_COMPUTED: Final = ("forward", "backward", "input_grad", "weight_grad", "recompute", "offload", "reload")


def check_runnable(schedule: schedules.Schedule, loop: ir.Operation) -> None:
    """Raise PassError for what no pass can cut a loop into."""
    if schedule.slices > 1:
        raise PassError(
            f"the schedule {schedule.name} cuts each microbatch into {schedule.slices} slices of its sequence",
            location=loop.location,
            hint="that needs a model that hands keys and values from slice to slice; take a schedule without slices",
        )
    if schedule.placement.spread:
        raise PassError(
            f"the schedule {schedule.name} spreads stage {min(schedule.placement.spread)} over several meshes",
            location=loop.location,
            hint="put each stage on one mesh, or a copy of it on each of several",
        )
    _check_copies(schedule, loop)
    for mesh, order in enumerate(schedule.orders):
        task = next((task for task in order if task.kind not in _COMPUTED), None)
        if task:
            raise PassError(
                f"the schedule {schedule.name} has a task that does not run yet: {task.words} on mesh {mesh}",
                location=loop.location,
                hint="tasks of your own kinds are for the simulator: give the schedule without them",
            )


def _check_copies(schedule: schedules.Schedule, loop: ir.Operation) -> None:
    """Raise PassError for residuals that stay in the memory of the host, and for copies that are part of a task."""
    back = {(task.stage, task.microbatch) for task in schedule if task.kind == "reload"}
    for task in schedule:
        if task.kind == "offload" and (task.stage, task.microbatch) not in back:
            raise PassError(
                f"the schedule {schedule.name} has {task.words} and no reload of it",
                location=loop.location,
                hint="the backward reads what was offloaded: bring it back before",
            )
    for task in (task for cell in schedule.fused for task in cell):
        if task.kind in ("offload", "reload"):
            raise PassError(
                f"the schedule {schedule.name} fuses {task.words} with another task",
                location=loop.location,
                hint="copies run beside the tasks of their mesh: give each a cell of its own",
            )
