"""Schedules that cut the sequence of a microbatch into slices."""

from __future__ import annotations

from jaxpp.schedules.builders.language import B, F, I, Plan, W
from jaxpp.schedules.library.interleaved import in_groups
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement


def seq1f1b(meshes: int, microbatches: int, slices: int = 2) -> Schedule:
    """1F1B over slices of the sequence (Seq1F1B, arXiv 2406.03488).

    A slice attends to the earlier slices, so slices run forward in order and backward in reverse. The first backward of
    a mesh waits for the last slice, so a mesh runs n - 1 more forwards ahead: min(mn, p - i - 2 + n). The bubble is
    that of 1F1B divided by n.

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


def seq1f1b_i(meshes: int, microbatches: int, slices: int = 2, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B over slices of the sequence (Seq1F1B-I, arXiv 2406.03488).

    Groups of microbatches go through the v stages of a mesh one after the other. A group has the fewest microbatches
    that give each mesh a slice. The first group has g microbatches. Mesh i runs 2(p - i - 1) + (v - 1)gn + n - 1 of
    these forwards ahead. If the microbatches do not divide into such groups, some groups are larger, as in
    `interleaved_1f1b`.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        slices: slices per microbatch n, at least 1.
        chunks: stages per mesh v, at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    plan = Plan("seq1f1b-i", Placement.looped(meshes, chunks), microbatches, slices)
    groups = in_groups(-(-meshes // slices), microbatches)
    for i, mesh in enumerate(plan):
        stages = plan.placement.stages_of(i)
        forward, backward = F(*stages, group=groups), B(*reversed(stages), group=groups)
        mesh.warm_up(forward * (2 * (meshes - 1 - i) + (chunks - 1) * groups[0] * slices + slices - 1))
        mesh.repeat(forward + backward)
    return plan.draft()


def seq1f1b_zb(meshes: int, microbatches: int, slices: int = 2) -> Schedule:
    """ZB-H1 over slices of the sequence (Seq1F1B, arXiv 2406.03488, on Zero Bubble, arXiv 2401.10241).

    The order is that of Seq1F1B with the backward split in two. Mesh i delays its weight gradients by i slices, so that
    every mesh keeps p - 1 + n slices, as the first mesh does.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        slices: slices per microbatch n, at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    plan = Plan("seq1f1b-zb", Placement.linear(meshes), microbatches, slices)
    for i, mesh in enumerate(plan):
        mesh.warm_up(F(i) * (meshes - i - 2 + slices), (F(i) + I(i)) * i)
        mesh.repeat(F(i) + I(i) + W(i))
    return plan.draft()
