"""Schedules that are made for little memory: few microbatches on their way, so that what is left can go to the host."""

from __future__ import annotations

from dataclasses import replace

from jaxpp.schedules.errors import ScheduleError, multiple_of, whole_number
from jaxpp.schedules.host import offload
from jaxpp.schedules.kinds import Kind
from jaxpp.schedules.language import F, I, Plan, W
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement


def gis(meshes: int, microbatches: int, chunks: int = 2, group: int | None = None) -> Schedule:
    """Generalized interleaved schedule, GIS(g) (PipeOffload, arXiv 2503.01328).

    Interleaved, but in groups of g microbatches, and with only as many forwards ahead as the first backward needs. It
    keeps g(v - 1) + p stages' activations; with T_F = T_B = T_W its bubble is 2(p - 1) + (p - g)(v - 1) stage times.
    The backward is split, each weight gradient right behind its input gradient.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: a multiple of the group.
        chunks: stages per mesh v, at least 1.
        group: microbatches per group g, from p/2 to p; by default p/2, rounded up: the least memory.

    Raises:
        ScheduleError: a count is below 1, the group is too small or too large, or no divisor of the microbatches.
    """
    placement = Placement.looped(meshes, chunks)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    group = whole_number((meshes + 1) // 2 if group is None else group, "group", least=1)
    if not meshes <= 2 * group <= 2 * meshes:
        raise ScheduleError(
            f"gis: group must be from {(meshes + 1) // 2} to {meshes} for {meshes} meshes, found {group}"
        )
    multiple_of(group, microbatches, "gis: microbatches", "they go through the stages in groups")
    plan = Plan("gis", placement, microbatches)
    for i, mesh in enumerate(plan):
        stages = placement.stages_of(i)
        forward, input_grad = F(*stages, group=group), I(*reversed(stages), group=group)
        mesh.warm_up(forward * ((chunks - 1) * group + meshes - 1 - i))
        mesh.repeat(forward + input_grad + W())
    return plan.draft()


def po_f(meshes: int, microbatches: int, chunks: int = 2, group: int | None = None) -> Schedule:
    """GIS(g) with all activations offloaded, but those that are needed at once: PO-F of PipeOffload (arXiv 2503.01328).

    In the time of GIS(g) as long as an activation goes to the host and back within the time of its forward and backward
    (`k` <= 1 of `schedules.offload`). In the least group a mesh keeps three of its stages' activations, however many
    meshes there are: one that is made, one on its way out, one on its way in; with k > 2/3 it may be four. The first
    forwards would follow each other faster than such copies take their activations away. So each waits for the copy of
    two microbatches before, for which the least group has the time. Larger groups have not, and nothing waits there:
    with k = 2/3 a mesh keeps two of `offload(gis(...), k=2 / 3)`, which does not leave copies the time to take longer.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: a multiple of the group.
        chunks: stages per mesh v, at least 1.
        group: microbatches per group g, from p/2 to p; by default p/2, rounded up: the least memory.

    Raises:
        ScheduleError: a count is below 1, the group is too small or too large, or no divisor of the microbatches.
    """
    made = replace(offload(gis(meshes, microbatches, chunks, group)), name="po-f")
    is_least = group is None or 2 * group <= meshes + 1
    return replace(made, kinds=(_BEHIND_COPIES,)) if is_least else made


_BEHIND_COPIES = Kind.parse("forward: forward@-1 forward~-1 ?offload#-2")
"""A forward that waits until the activation of two microbatches before has left."""


def po_h(meshes: int, microbatches: int, chunks: int = 2, group: int | None = None) -> Schedule:
    """GIS(g) with the activations offloaded that wait longest: PO-H of PipeOffload (arXiv 2503.01328).

    Those are of the first half of the stages, as a microbatch comes back to these last. So less is copied, half as
    much, than is saved.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: a multiple of the group.
        chunks: stages per mesh v, at least 2.
        group: microbatches per group g, from p/2 to p; by default p/2, rounded up: the least memory.

    Raises:
        ScheduleError: a count is too small, the group is too small or too large, or no divisor of the microbatches.
    """
    half = whole_number(chunks, "chunks", least=2) // 2
    plain = gis(meshes, microbatches, chunks, group)
    return replace(offload(plain, *range(half * plain.meshes)), name="po-h")
