"""Two pipelines in opposite directions. Each stage is on two meshes, and both hold a copy of its weights."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpp.schedules.builders.language import Plan
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.errors import ScheduleError, multiple_of, whole_number
from jaxpp.schedules.library.classic import EQUAL
from jaxpp.schedules.library.v_shaped import write_dual
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement


def chimera(meshes: int, microbatches: int, doubling: bool = False) -> Schedule:
    """Half of the microbatches go down the meshes, half up (Chimera, arXiv 2107.06925).

    Even microbatches go down and odd microbatches go up. Each direction runs 1F1B with at most p/2 microbatches in
    flight. The paper's units of p microbatches follow each other directly. If a forward takes as long as a backward,
    the result is 2m + p - 2 long.

    Args:
        meshes: number of meshes p, even.
        microbatches: even; the paper uses a multiple of p.
        doubling: for backwards of twice the length, run forwards first, of twice as many microbatches. This is the
            paper's forward doubling: it keeps twice the activations and has no gaps between units.

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

    Each mesh holds four of the stages, which are 2p in number. If a forward takes as long as a backward, p microbatches
    take 2m + (p - 2)/2, with half of Chimera's bubble.

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

    The first half of the microbatches goes down the meshes, the second half up. Each mesh keeps p + 1 activations. If
    F&B is one task, the bubble of the middle meshes is (p/2 - 1)(F&B + B - 3W). Here B is the whole backward, input
    gradients take as long as forwards, and weight gradients take no longer.

    Args:
        meshes: number of meshes p, even.
        microbatches: even, at least 2p.
        fused: run a forward and a backward as one task, F&B, which a program can overlap; otherwise one after the
            other.

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
        # The order begins with the stage that is nearer to the input of the model, in either direction.
        write_dual(mesh, min(down, up), max(down, up), half, meshes // 2, min(down, up), fused)
    return plan.draft()


def _even(name: str, meshes: int, microbatches: int) -> int:
    for value, what in ((meshes, "meshes"), (microbatches, "microbatches")):
        multiple_of(2, whole_number(value, what, least=1), f"{name}: {what}", "there are two directions")
    return whole_number(microbatches, "microbatches", least=1)


def _two_ways(name: str, down: Placement, microbatches: int, limits: Sequence[int], doubling: bool = False) -> Schedule:
    """Makes a schedule whose even microbatches go down and whose odd microbatches go up.

    A mesh prefers backwards, then the oldest pair of microbatches, then the deepest stage. With `doubling` it prefers
    forwards, and a backward takes as long as two forwards.
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
