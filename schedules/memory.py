"""How many activations a schedule keeps alive."""

from __future__ import annotations

from jaxpp.schedules.schedule import Schedule


def activations(schedule: Schedule) -> list[int]:
    """For each mesh the peak number of activations alive at once, in (stage, microbatch) pairs.

    An activation lives from the start of its forward to the end of its backward, or of its weight gradient where the
    backward is split; without any backward it is gone when its forward ends. Where it is recomputed it is gone from the
    end of its forward to the start of its recompute. GPipe keeps m on every mesh, 1F1B min(m, p - i) on mesh i (arXiv
    2006.09503, section 2.2). The schedule must be valid.
    """
    return [_peak(schedule, mesh) for mesh in range(schedule.meshes)]


def _peak(schedule: Schedule, mesh: int) -> int:
    order = schedule.orders[mesh]
    trains = any(task.kind in ("backward", "weight_grad") for task in order)
    again = {(task.stage, task.microbatch, task.slice) for task in order if task.kind == "recompute"}
    alive = peak = 0
    for task in order:
        if task.kind in ("forward", "recompute"):
            peak = max(peak, alive + 1)
            stays = task.kind == "recompute" or (task.stage, task.microbatch, task.slice) not in again
            alive += trains and stays
        elif task.kind in ("backward", "weight_grad"):
            alive -= 1
    return peak
