"""Schedules that cut the sequence of a microbatch into slices."""

from __future__ import annotations

from jaxpp.schedules.errors import whole_number
from jaxpp.schedules.library.orders import in_turn
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task


def seq1f1b(meshes: int, microbatches: int, slices: int = 2) -> Schedule:
    """1F1B over slices of the sequence (Seq1F1B, arXiv 2406.03488).

    A slice attends to those before it, so slices run forward in order and backward in reverse; the first backward of a
    mesh waits for the last slice, which takes n - 1 more forwards ahead: min(mn, p - i - 2 + n). The bubble is that of
    1F1B divided by n.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        slices: slices per microbatch n, at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    placement = Placement.linear(meshes)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    parts = range(whole_number(slices, "slices", least=1))
    orders = [
        in_turn(
            [Task("forward", mesh, mb, part) for mb in range(microbatches) for part in parts],
            [Task("backward", mesh, mb, part) for mb in range(microbatches) for part in reversed(parts)],
            meshes - mesh - 2 + slices,
        )
        for mesh in range(meshes)
    ]
    return Schedule.of("seq1f1b", placement, orders)
