"""Schedules that cut the sequence of a microbatch into slices."""

from __future__ import annotations

from jaxpp.schedules.language import B, F, Plan
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement


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
    plan = Plan("seq1f1b", Placement.linear(meshes), microbatches, slices)
    for i, mesh in enumerate(plan):
        mesh.warm_up(F(i) * (meshes - i - 2 + slices))
        mesh.repeat(F(i) + B(i))
    return plan.draft()
