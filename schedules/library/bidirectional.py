"""Two pipelines in opposite directions: each stage is on two meshes, which hold a copy of its weights each."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpp.schedules.errors import ScheduleError, multiple_of, whole_number
from jaxpp.schedules.language import Plan
from jaxpp.schedules.library.classic import EQUAL
from jaxpp.schedules.library.v_shaped import write_dual
from jaxpp.schedules.priorities import by_priority
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement


def chimera(meshes: int, microbatches: int, doubling: bool = False) -> Schedule:
    """Half of the microbatches go down the meshes, half up (Chimera, arXiv 2107.06925).

    Even microbatches go down, odd ones up, each direction as 1F1B with at most p/2 of them on their way: units of p
    microbatches, put together directly. A forward and a backward of the same length make such a unit 2m + p - 2 long.

    Args:
        meshes: number of meshes p, even.
        microbatches: even; a multiple of p is what the paper is about.
        doubling: for backwards of twice the length, run forwards first, of twice as many microbatches: twice the
            activations, and none of the gaps between units (forward doubling of the paper).

    Raises:
        ScheduleError: a count is odd or below 1.
    """
    microbatches = _even("chimera", meshes, microbatches)
    if doubling:
        return _two_ways("chimera", Placement.linear(meshes), microbatches, [meshes] * meshes, doubling)
    limits = [min(meshes - stage, meshes // 2) for stage in range(meshes)]
    return _two_ways("chimera", Placement.linear(meshes), microbatches, limits)


def bitpipe(meshes: int, microbatches: int) -> Schedule:
    """Chimera with two V-shaped pipelines of half the stages' size (BitPipe, arXiv 2410.19367).

    Each mesh holds four stages of 2p. With a forward and a backward of the same length and p microbatches it takes
    2m + (p - 2)/2, half of Chimera's bubble.

    Args:
        meshes: number of meshes p, even.
        microbatches: even.

    Raises:
        ScheduleError: a count is odd or below 1.
    """
    microbatches = _even("bitpipe", meshes, microbatches)
    return _two_ways("bitpipe", Placement.waves(meshes, 2), microbatches, [meshes] * 2 * meshes)


def dualpipe(meshes: int, microbatches: int, fused: bool = True) -> Schedule:
    """A forward of one direction together with a backward of the other (DualPipe, DeepSeek-V3, arXiv 2412.19437).

    The first half of the microbatches goes down the meshes, the second half up. Where F&B is one task its bubble is
    (p/2 - 1)(F&B + B - 3W) on the meshes in the middle, B being the whole backward, with input gradients as long as
    forwards and W no longer; each mesh keeps p + 1 activations.

    Args:
        meshes: number of meshes p, even.
        microbatches: even, at least 2p.
        fused: run a forward and a backward as one task, F&B, which a program can overlap; else one after the other.

    Raises:
        ScheduleError: a count is odd, or there are fewer microbatches than 2p.
    """
    microbatches = _even("dualpipe", meshes, microbatches)
    if microbatches < 2 * meshes:
        raise ScheduleError(f"dualpipe: microbatches must be at least {2 * meshes}, two per mesh, found {microbatches}")
    plan = Plan("dualpipe", Placement.of(*((stage, meshes - 1 - stage) for stage in range(meshes))), microbatches)
    half = microbatches // 2
    for i, mesh in enumerate(plan):
        down, up = i, meshes - 1 - i
        mesh.share(down, range(half))
        mesh.share(up, range(half, microbatches))
        # A stage near an end of the model runs the microbatches that begin or end here.
        write_dual(mesh, min(down, up), max(down, up), half, meshes // 2, min(down, up), fused)
    return plan.draft()


def _even(name: str, meshes: int, microbatches: int) -> int:
    for value, what in ((meshes, "meshes"), (microbatches, "microbatches")):
        multiple_of(2, whole_number(value, what, least=1), f"{name}: {what}", "there are two directions")
    return whole_number(microbatches, "microbatches", least=1)


def _two_ways(name: str, down: Placement, microbatches: int, limits: Sequence[int], doubling: bool = False) -> Schedule:
    """Even microbatches down, odd ones up: of the direction that is least far the deepest stage, backwards first.

    doubling: forwards first, and a backward takes as long as two.
    """
    placement = Placement.of(*((mesh, down.meshes - 1 - mesh) for mesh, *_ in down.homes))
    later = "backward" if doubling else "forward"
    return by_priority(
        name,
        placement,
        microbatches,
        lambda task: (task.kind == later, task.microbatch // 2, -task.stage),
        limit=limits.__getitem__,
        mesh_of=lambda task: placement.homes[task.stage][task.microbatch % 2],
        costs=None if doubling else EQUAL,
    )
