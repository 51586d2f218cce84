"""How many activations a schedule keeps alive."""

from __future__ import annotations

from itertools import chain

from jaxpp.schedules.order import merged_order
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Task, Unit


def activations(schedule: Schedule) -> list[int]:
    """For each mesh the peak number of activations alive at once, in (stage, microbatch) pairs.

    An activation lives from the start of its forward to the end of its backward, or of its weight gradient where the
    backward is split; without any backward it is gone when its forward ends. Where it is recomputed it lives from the
    start of its recompute on: what it is made of does not count, nor its offload; where it is offloaded, it is gone
    from the end of the offload to the start of the reload. Where it is evicted it leaves its mesh with the end of the
    forward, for the mesh of the `evict`, and comes back with the start of the `load`, in the order in which one process
    starts all tasks (`merged_order`). GPipe keeps m on every mesh, 1F1B min(m, p - i) on mesh i (arXiv 2006.09503,
    section 2.2). The schedule must be valid.
    """
    peers = {task.unit: mesh for mesh, order in enumerate(schedule.orders) for task in order if task.kind == "evict"}
    each = ([(mesh, task) for task in order] for mesh, order in enumerate(schedule.orders))
    tasks = merged_order(schedule) if peers else chain.from_iterable(each)
    alive = _Alive(schedule)
    for mesh, task in tasks:
        alive.run(mesh, task)
        if task.kind == "load":
            alive.change(peers[task.unit], -1)
    return alive.peaks


class _Alive:
    """How many activations are alive on each mesh, and the most that there were."""

    def __init__(self, schedule: Schedule) -> None:
        self.now, self.peaks = [0] * schedule.meshes, [0] * schedule.meshes
        self._trains = [any(task.kind in ("backward", "weight_grad") for task in order) for order in schedule.orders]
        self._again = _units(schedule, "recompute")
        self._evicted = _units(schedule, "evict")

    def change(self, mesh: int, by: int) -> None:
        """Let so many more be alive."""
        self.now[mesh] += by
        self.peaks[mesh] = max(self.peaks[mesh], self.now[mesh])

    def run(self, mesh: int, task: Task) -> None:
        """Run one task, on its own mesh."""
        if task.unit in self._again and task.kind in ("forward", "offload", "reload"):
            return
        if task.kind == "forward":
            self.change(mesh, 1)
            if not self._trains[mesh] or task.unit in self._evicted:
                self.change(mesh, -1)
        elif task.kind in ("recompute", "reload", "evict", "load"):
            self.change(mesh, int(self._trains[mesh]))
        elif task.kind in ("backward", "weight_grad") or (task.kind == "offload" and self._trains[mesh]):
            self.change(mesh, -1)


def _units(schedule: Schedule, kind: str) -> set[Unit]:
    return {task.unit for task in schedule if task.kind == kind}
