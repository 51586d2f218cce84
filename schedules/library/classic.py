"""GPipe, 1F1B and their closest variants. Papers compare all other schedules with these."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from jaxpp.schedules.builders.language import B, F, Plan
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.builders.steps import in_steps
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task

EQUAL: Final = Costs(kinds={"backward": 1.0})
"""A backward takes as long as a forward. Some papers decide with these times which tasks are ready."""


def gpipe(meshes: int, microbatches: int, chunks: int = 1, placement: Placement | None = None) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965).

    With several stages per mesh, a stage finishes all its microbatches before the mesh begins its next stage. This is
    the breadth-first order of arXiv 2211.05953, which gathers weights and reduces gradients once per stage.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, in a loop.
        placement: any other placement, instead of `chunks`.

    Raises:
        ScheduleError: a count is below 1, or the placement does not fit.
    """
    plan = Plan("gpipe", placed("gpipe", meshes, chunks, placement), microbatches)
    for i, mesh in enumerate(plan):
        stages = plan.placement.stages_of(i)
        for step in (*map(F, stages), *map(B, reversed(stages))):
            mesh.repeat(step)
    return plan.draft()


def one_f_one_b(meshes: int, microbatches: int, chunks: int = 1, placement: Placement | None = None) -> Schedule:
    """One forward, one backward (PipeDream-Flush, arXiv 2006.09503; DAPPLE, arXiv 2007.01045).

    Mesh i of p runs min(m, p - i - 1) forwards ahead. Then one forward and one backward alternate, and the remaining
    backwards follow. The mesh keeps at most min(m, p - i) activations, where GPipe keeps m.

    For several stages per mesh these papers give no closed form, so a list scheduler makes the order. A free mesh takes
    the oldest forward of a stage that keeps fewer activations than its share, or else the oldest backward. The share of
    stage s of S is S - s activations, which on a linear placement gives the order above. On a V of 2p stages a mesh
    keeps at most p + 1/2 microbatches. Where stages are a graph, the share of a stage is the number of stages on the
    longest path from it to the last stage.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, in a loop.
        placement: any other placement, instead of `chunks`.

    Raises:
        ScheduleError: a count is below 1, or the placement does not fit.
    """
    placement = placed("1f1b", meshes, chunks, placement)
    if placement == Placement.linear(placement.meshes):
        return _one_in_turn("1f1b", placement, microbatches, 1)
    return by_priority(
        "1f1b",
        placement,
        microbatches,
        lambda task: (task.kind != "forward", task.microbatch),
        limit=placement.heights.__getitem__,
    )


def eager_one_f_one_b(meshes: int, microbatches: int) -> Schedule:
    """1F1B with twice as many forwards ahead, so that hops hide behind them (Eager 1F1B, arXiv 2211.05322).

    Mesh i of p runs min(m, 2(p - i - 1)) forwards ahead and keeps at most min(m, 2(p - i) - 1) activations. A hop may
    take up to half of the time of a forward and a backward. Such hops cost time only on the first microbatch's path
    through the pipeline and back.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    return _one_in_turn("eager-1f1b", Placement.linear(meshes), microbatches, 2)


def pipedream_2bw(meshes: int, microbatches: int, steps: int = 1, delay: int = 1) -> Schedule:
    """1F1B over several optimizer steps without a bubble between them (PipeDream-2BW, arXiv 2006.09503).

    The gradients of a step are computed with weights that lack the last `delay` updates. So the forwards of a step
    begin while the previous step still runs backwards. Each mesh keeps `delay` + 1 versions of its weights, and as many
    activations as in 1F1B. Without the time of the updates, k steps of m microbatches take (km + p - 1)T. The schedule
    is for a `jaxpp.train_loop`, which defines the number of steps. One step is 1F1B.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: of each step, at least (meshes - 1) / delay if there are more than `delay` + 1 steps.
        steps: optimizer steps, at least 1.
        delay: how many updates are missing, at least 1.

    Raises:
        ScheduleError: a count is below 1, or there are too few microbatches for the delay.
    """
    steps, delay = whole_number(steps, "steps", least=1), whole_number(delay, "delay", least=1)
    check_size("pipedream-2bw", delay=delay)
    if steps > delay + 1 and microbatches * delay < meshes - 1:
        least = -(-(meshes - 1) // delay)
        raise ScheduleError(
            f"pipedream-2bw: microbatches must be at least {least} on {meshes} meshes with a delay of {delay}, "
            f"found {microbatches}"
        )
    made = _one_in_turn("pipedream-2bw", Placement.linear(meshes), steps * microbatches, 1)
    return in_steps(made, steps, delay) if steps > 1 else made


def looped_bfs(meshes: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Breadth-first over a looped placement (arXiv 2211.05953): GPipe with several stages per mesh.

    A stage finishes all its microbatches before its mesh begins the next stage. So the weights of a stage are gathered
    once and its gradients are reduced once. With at least p microbatches the schedule takes mT + (p - 1)T/v. Each mesh
    keeps m activations.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    return replace(gpipe(meshes, microbatches, chunks), name="looped-bfs")


def oldest_backward(task: Task) -> tuple[bool, int]:
    """Returns a priority that puts backwards first, then the oldest microbatch."""
    return task.kind == "forward", task.microbatch


def _one_in_turn(name: str, placement: Placement, microbatches: int, ahead: int) -> Schedule:
    """Makes a linear order of alternating forwards and backwards.

    Each mesh runs `ahead` forwards ahead for each mesh after it.
    """
    plan = Plan(name, placement, microbatches)
    for i, mesh in enumerate(plan):
        mesh.warm_up(F(i) * ahead * (placement.meshes - 1 - i))
        mesh.repeat(F(i) + B(i))
    return plan.draft()


def placed(name: str, meshes: int, chunks: int, placement: Placement | None) -> Placement:
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
