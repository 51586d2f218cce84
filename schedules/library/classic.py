"""GPipe, 1F1B and their next of kin: every other schedule is measured against these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.library.greedy import Pipeline, backward_first
from jaxpp.schedules.library.orders import in_turn
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task


def gpipe(meshes: int, microbatches: int, chunks: int = 1, placement: Placement | None = None) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965).

    With several stages per mesh a stage finishes all its microbatches before the mesh goes on to its next one: the
    breadth-first order of arXiv 2211.05953, which gathers weights and reduces gradients once per stage.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, in a loop.
        placement: any other placement, instead of `chunks`.

    Raises:
        ScheduleError: a count is below 1, or the placement does not fit.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    placement = _placement("gpipe", meshes, chunks, placement)
    orders = [
        [
            *(Task("forward", stage, microbatch) for stage in stages for microbatch in range(microbatches)),
            *(Task("backward", stage, microbatch) for stage in reversed(stages) for microbatch in range(microbatches)),
        ]
        for stages in map(placement.stages_of, range(placement.meshes))
    ]
    return Schedule.of("gpipe", placement, orders)


def one_f_one_b(meshes: int, microbatches: int, chunks: int = 1, placement: Placement | None = None) -> Schedule:
    """One forward, one backward (PipeDream-Flush, arXiv 2006.09503; DAPPLE, arXiv 2007.01045).

    Mesh i of p runs min(m, p - i - 1) forwards ahead, then one forward and one backward in turn, then the backwards
    that are left; it keeps at most min(m, p - i) activations instead of GPipe's m.

    With several stages per mesh no closed form stands in these papers: each mesh then takes, whenever it is free, a
    backward that is ready, else a forward, as long as stage s of S keeps at most S - s of them.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, in a loop.
        placement: any other placement, instead of `chunks`.

    Raises:
        ScheduleError: a count is below 1, or the placement does not fit.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    placement = _placement("1f1b", meshes, chunks, placement)
    if placement != Placement.linear(placement.meshes):
        homes = [mesh for mesh, *_ in placement.homes]
        pipeline = Pipeline(homes, range(microbatches), lambda stage: placement.stages - stage)
        return Schedule.of("1f1b", placement, backward_first([pipeline]))
    return Schedule.of("1f1b", placement, linear_orders(meshes, microbatches, lambda mesh: meshes - mesh - 1))


def eager_one_f_one_b(meshes: int, microbatches: int) -> Schedule:
    """1F1B with twice as many forwards ahead, so that hops hide behind them (Eager 1F1B, arXiv 2211.05322).

    Mesh i of p runs min(m, 2(p - i - 1)) forwards ahead and keeps at most min(m, 2(p - i) - 1) activations. A hop that
    takes up to half of a forward and backward costs nothing but its first way up and down.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    placement = Placement.linear(meshes)
    orders = linear_orders(meshes, microbatches, lambda mesh: 2 * (meshes - mesh - 1))
    return Schedule.of("eager-1f1b", placement, orders)


def looped_bfs(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Breadth-first over a looped placement (arXiv 2211.05953): GPipe with several stages per mesh.

    A stage finishes all its microbatches before its mesh goes on to the next one, so its weights are gathered and its
    gradients reduced once. It takes mT + (p - 1)T/v with at least p microbatches, and keeps m activations.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    return replace(gpipe(meshes, microbatches, chunks), name="looped-bfs")


def linear_orders(meshes: int, microbatches: int, ahead: Callable[[int], int]) -> list[list[Task]]:
    """One stage per mesh: for each mesh so many forwards ahead, then one forward and one backward in turn."""
    return [
        in_turn(
            [Task("forward", mesh, microbatch) for microbatch in range(microbatches)],
            [Task("backward", mesh, microbatch) for microbatch in range(microbatches)],
            ahead(mesh),
        )
        for mesh in range(meshes)
    ]


def _placement(name: str, meshes: int, chunks: int, placement: Placement | None) -> Placement:
    looped = Placement.looped(meshes, chunks)
    if placement is None:
        return looped
    if placement.meshes != meshes or chunks != 1:
        raise ScheduleError(
            f"{name}: expected a placement on {meshes} meshes and no chunks beside it, "
            f"found one on {placement.meshes} and chunks={chunks}"
        )
    for stage, homes in enumerate(placement.homes):
        if len(homes) > 1:
            raise ScheduleError(f"{name}: each stage must be on one mesh, found stage {stage} on {len(homes)}")
    return placement
