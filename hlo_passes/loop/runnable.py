"""What a schedule may have that no program has yet: refused by name, never left out in silence."""

from typing import Final

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import PassError

_COMPUTED: Final = ("forward", "backward", "input_grad", "weight_grad")
_NO_COPIES: Final = "copies to the host are for the simulator: give the schedule without schedules.offload"
_INSTEAD: Final = {
    "offload": _NO_COPIES,
    "reload": _NO_COPIES,
    "recompute": "give the schedule without schedules.recompute; jax.checkpoint between two marks does the same",
}


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
    for mesh, order in enumerate(schedule.orders):
        task = next((task for task in order if task.kind not in _COMPUTED), None)
        if task:
            own = "tasks of your own kinds are for the simulator: give the schedule without them"
            raise PassError(
                f"the schedule {schedule.name} has a task that does not run yet: {task.words} on mesh {mesh}",
                location=loop.location,
                hint=_INSTEAD.get(task.kind, own),
            )
