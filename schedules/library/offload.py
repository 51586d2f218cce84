"""Schedules that keep few activations, or keep them on the host or on other meshes."""

from __future__ import annotations

from dataclasses import replace

from jaxpp.schedules.builders.language import F, I, Plan, W
from jaxpp.schedules.errors import ScheduleError, multiple_of, whole_number
from jaxpp.schedules.library.classic import one_f_one_b
from jaxpp.schedules.model.kinds import Kind
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement
from jaxpp.schedules.rewrites.host import offload
from jaxpp.schedules.rewrites.peers import evict


def gis(meshes: int, microbatches: int, chunks: int = 2, group: int | None = None) -> Schedule:
    """Generalized interleaved schedule, GIS(g) (PipeOffload, arXiv 2503.01328).

    GIS(g) is interleaved 1F1B in groups of g microbatches, with only as many forwards ahead as the first backward
    needs. It keeps the activations of g(v - 1) + p stages. With T_F = T_B = T_W its bubble is 2(p - 1) + (p - g)(v - 1)
    stage times. The backward is split, and each weight gradient directly follows its input gradient.

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

    The schedule takes as long as GIS(g) if both copies of an activation take no longer than its forward and backward.
    That is `k` <= 1 of `schedules.offload`. With the least group a mesh keeps the activations of three of its stages,
    for any number of meshes. One activation is being made, one is on its way to the host, and one is on its way back.
    With k > 2/3 there may be four.

    The first forwards would make activations faster than such copies remove them. So each forward waits for the copy of
    two microbatches before. Only the least group has the time for this wait, so in larger groups no forward waits. With
    k = 2/3 a mesh keeps two activations in `offload(gis(...), k=2 / 3)`, which leaves no time for slower copies.

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

    These are the activations of the first half of the stages, because a microbatch comes back to these stages last.
    Half of the activations are copied, and more than half of the memory is saved.

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


def bpipe(meshes: int, microbatches: int) -> Schedule:
    """1F1B whose first meshes keep some of their activations on the last ones (BPipe, Kim et al., ICML 2023).

    Mesh i and mesh p - 1 - i together keep p + 1 activations, and each keeps at most ceil((p + 2) / 2). The schedule
    takes as long as 1F1B if the transfer of an activation takes no longer than a forward.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    return replace(evict(one_f_one_b(meshes, microbatches)), name="bpipe")
