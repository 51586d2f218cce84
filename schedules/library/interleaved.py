"""Several stages per mesh in a loop: mesh i of p holds the stages i, i + p, i + 2p, ..."""

from __future__ import annotations

from jaxpp.schedules.builders.language import B, F, I, Plan, W
from jaxpp.schedules.errors import whole_number
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement


def interleaved_1f1b(meshes: int, microbatches: int, chunks: int = 2, fused: bool = False) -> Schedule:
    """Interleaved 1F1B (Megatron-LM, arXiv 2104.04473, section 2.2).

    Groups of p microbatches go through the v stages of a mesh one after the other. Mesh i runs 2(p - i - 1) + (v - 1)p
    of these forwards ahead, then one forward and one backward alternate.

    With m a multiple of p and at least two meshes, the schedule takes mT + (p - 1)T/v + (2vp - 2)c. This holds for a
    hop c of up to half of the forward of a stage. The Zero Bubble paper (arXiv 2401.10241, table 5) counts ((2v - 1)p -
    2)c instead. That is less than the hops on the paths of the first and the last microbatch take.

    If m is not a multiple of p, some groups have one microbatch more, as in NVIDIA's JaxPP. Fewer than p microbatches
    are one group.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh v, at least 1.
        fused: run the forward and the backward of one turn as one task.

    Raises:
        ScheduleError: a count is below 1.
    """
    return _in_groups("interleaved-1f1b", meshes, microbatches, chunks, 0, fused)


def kimi_k2(meshes: int, microbatches: int, chunks: int = 2, fused: bool = False) -> Schedule:
    """Interleaved 1F1B with one more forward ahead (Kimi K2, arXiv 2507.20534).

    The additional forward leaves each mesh a backward to compute while it communicates. A mesh keeps the activations of
    one more stage.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1, in groups as for `interleaved_1f1b`.
        chunks: stages per mesh, at least 1.
        fused: as for `interleaved_1f1b`.

    Raises:
        ScheduleError: a count is below 1.
    """
    return _in_groups("kimi-k2", meshes, microbatches, chunks, 1, fused)


def interleaved_zb(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B with the backward split in two (Zero Bubble, arXiv 2401.10241, on a looped placement).

    Half the forwards ahead are enough, because input gradients come back sooner: p - i - 1 + (v - 1)p. Mesh i runs its
    weight gradients i backwards later, so that all meshes keep equally many activations. With one stage per mesh the
    schedule is ZB-H1. This is PyTorch's `ScheduleInterleavedZeroBubble`.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1, in groups as for `interleaved_1f1b`.
        chunks: stages per mesh v, at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    plan, groups = (
        Plan("interleaved-zb", Placement.looped(meshes, chunks), microbatches),
        in_groups(meshes, microbatches),
    )
    for i, mesh in enumerate(plan):
        stages = plan.placement.stages_of(i)
        forward, input_grad = F(*stages, group=groups), I(*reversed(stages), group=groups)
        mesh.warm_up(forward * (meshes - 1 - i + (chunks - 1) * groups[0]), (forward + input_grad) * i)
        mesh.repeat(forward + input_grad + W())
    return plan.draft()


def _in_groups(name: str, meshes: int, microbatches: int, chunks: int, extra: int, fused: bool) -> Schedule:
    plan, groups = Plan(name, Placement.looped(meshes, chunks), microbatches), in_groups(meshes, microbatches)
    for i, mesh in enumerate(plan):
        stages = plan.placement.stages_of(i)
        forward, backward = F(*stages, group=groups), B(*reversed(stages), group=groups)
        mesh.warm_up(forward * (2 * (meshes - 1 - i) + (chunks - 1) * groups[0] + extra))
        mesh.repeat(forward & backward if fused else forward + backward)
    return plan.draft()


def in_groups(size: int, microbatches: int) -> list[int]:
    """Returns the sizes of the groups into which the microbatches divide.

    There are as many groups as have `size` microbatches, and at least one. The first groups take the rest. The last
    size in the list also holds for all groups that follow.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    size, larger = divmod(microbatches, max(1, microbatches // size))
    return [size + 1] * larger + [size]
