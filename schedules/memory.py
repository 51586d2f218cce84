"""How many activations a schedule keeps alive."""

from __future__ import annotations

from jaxpp.schedules.schedule import Schedule


def activations(schedule: Schedule) -> list[int]:
    """For each mesh the peak number of activations alive at once, in (stage, microbatch) pairs.

    An activation lives from the start of its forward to the end of its backward, or of its weight gradient where the
    backward is split; without any backward it is gone when its forward ends. Where it is recomputed it lives from the
    start of its recompute on: the forward keeps nothing; where it is offloaded, it is gone from the end of the offload
    to the start of the reload. GPipe keeps m on every mesh, 1F1B min(m, p - i) on mesh i (arXiv 2006.09503, section
    2.2). The schedule must be valid.
    """
    return [_peak(schedule, mesh) for mesh in range(schedule.meshes)]


def _peak(schedule: Schedule, mesh: int) -> int:
    order = schedule.orders[mesh]
    trains = any(task.kind in ("backward", "weight_grad") for task in order)
    again = {(task.stage, task.microbatch, task.slice) for task in order if task.kind == "recompute"}
    alive = peak = 0
    for task in order:
        if task.kind == "recompute" or (
            task.kind == "forward" and (task.stage, task.microbatch, task.slice) not in again
        ):
            peak = max(peak, alive + 1)
            alive += trains
        elif task.kind == "reload":
            alive += trains
            peak = max(peak, alive)
        elif task.kind in ("backward", "weight_grad") or (trains and task.kind == "offload"):
            alive -= 1
    return peak
