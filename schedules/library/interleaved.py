"""Several stages per mesh, round and round: mesh i of p holds the stages i, i + p, i + 2p, ..."""

from __future__ import annotations

from jaxpp.schedules.errors import whole_number
from jaxpp.schedules.library.orders import in_turn, multiple, split
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task


def interleaved_1f1b(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B (Megatron-LM, arXiv 2104.04473, section 2.2).

    Groups of p microbatches go through the v stages of a mesh one after the other; mesh i runs 2(p - i - 1) + (v -
    1)p of these forwards ahead, then one forward and one backward in turn. It takes mT + (p - 1)T/v + (2vp - 2)c,
    with two meshes or more and a hop c of up to half of the forward of a stage. The Zero Bubble paper (arXiv
    2401.10241, table 5) counts ((2v - 1)p - 2)c instead, which is less than the hops on the way of the first and
    the last microbatch take.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: a multiple of p.
        chunks: stages per mesh v, at least 1.

    Raises:
        ScheduleError: a count is below 1, or the microbatches are no multiple of the meshes.
    """
    return _in_groups("interleaved-1f1b", meshes, microbatches, chunks, extra=0)


def kimi_k2(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B with one more forward ahead (Kimi K2, arXiv 2507.20534).

    The forward that is ahead leaves each mesh a backward to compute while it communicates; it keeps the activations of
    one more stage.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: a multiple of p.
        chunks: stages per mesh, at least 1.

    Raises:
        ScheduleError: a count is below 1, or the microbatches are no multiple of the meshes.
    """
    return _in_groups("kimi-k2", meshes, microbatches, chunks, extra=1)


def interleaved_zb(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B with the backward split in two (Zero Bubble, arXiv 2401.10241, on a looped placement).

    Half the forwards ahead are enough, as input gradients come back sooner: p - i - 1 + (v - 1)p. The weight gradient
    of mesh i runs i backwards later, so that all meshes keep equally many activations. With one stage per mesh it is
    ZB-H1. This is PyTorch's `ScheduleInterleavedZeroBubble`.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: a multiple of p.
        chunks: stages per mesh v, at least 1.

    Raises:
        ScheduleError: a count is below 1, or the microbatches are no multiple of the meshes.
    """
    placement = Placement.looped(meshes, chunks)
    microbatches = _microbatches("interleaved-zb", meshes, microbatches)
    ahead = (chunks - 1) * meshes
    orders = [
        split(in_turn(*units(meshes, mesh, microbatches, chunks, meshes), ahead + meshes - mesh - 1), mesh)
        for mesh in range(meshes)
    ]
    return Schedule.of("interleaved-zb", placement, orders)


def units(meshes: int, mesh: int, microbatches: int, chunks: int, group: int) -> tuple[list[Task], list[Task]]:
    """The forwards and the backwards of a mesh, each in their order: groups of microbatches, stage after stage."""
    order = [
        (chunk, microbatch)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + group, microbatches))
    ]
    forwards = [Task("forward", chunk * meshes + mesh, microbatch) for chunk, microbatch in order]
    backwards = [Task("backward", (chunks - 1 - chunk) * meshes + mesh, microbatch) for chunk, microbatch in order]
    return forwards, backwards


def _in_groups(name: str, meshes: int, microbatches: int, chunks: int, extra: int) -> Schedule:
    placement = Placement.looped(meshes, chunks)
    microbatches = _microbatches(name, meshes, microbatches)
    orders = [
        in_turn(
            *units(meshes, mesh, microbatches, chunks, meshes),
            2 * (meshes - mesh - 1) + (chunks - 1) * meshes + extra,
        )
        for mesh in range(meshes)
    ]
    return Schedule.of(name, placement, orders)


def _microbatches(name: str, meshes: int, microbatches: int) -> int:
    microbatches = whole_number(microbatches, "microbatches", least=1)
    multiple(microbatches, meshes, f"{name}: microbatches", "they go through the stages in groups of one per mesh")
    return microbatches
