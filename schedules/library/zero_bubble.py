"""Zero Bubble on a linear placement (arXiv 2401.10241): backwards are split, and weight gradients fill the bubbles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from jaxpp.schedules.builders.language import F, I, Plan, W
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.problem import make_problem
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import whole_number
from jaxpp.schedules.library.classic import one_f_one_b, placed
from jaxpp.schedules.library.zero_bubble_auto import best_orders
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task
from jaxpp.schedules.rewrites.tasks import split_backward

_RANKS: Final = {"forward": 0, "input_grad": 1, "weight_grad": 2}


def zb_h1(
    meshes: int,
    microbatches: int,
    placement: Placement | None = None,
    costs: Costs | None = None,
    waiting: int | None = None,
) -> Schedule:
    """1F1B's memory without jax.checkpoint, a third of its bubble (Zero Bubble, arXiv 2401.10241).

    The order is that of 1F1B, but mesh i delays its weight gradients by i backwards, so that every mesh keeps p
    activations. With more than p microbatches the schedule takes mT + (p - 1)(F + B - W + 4c). This holds if W is at
    most F and at most B, and 2c is at most W.

    A delayed weight gradient keeps a whole activation, even under `jax.checkpoint`, because its input gradient has
    recomputed the activation. A mesh that delays k weight gradients keeps k + 1 times as much. No mesh delays more than
    `waiting`. With `waiting=0` each weight gradient follows its input gradient. The bubble is then two thirds of 1F1B's
    bubble if F, B and W are equal.

    On another placement a list scheduler makes the order. A free mesh takes the oldest forward of a stage that has less
    than its share in flight, as in 1F1B. Otherwise the mesh takes the oldest input gradient, or else the oldest weight
    gradient. A mesh delays weight gradients until it keeps as many activations as the mesh that keeps most in 1F1B.

    If the stages of a mesh are unequal, the order of 1F1B with split backwards may be faster, and is then taken. So on
    the costs this schedule is never slower than 1F1B, unless a whole backward costs less than the two gradients.
    Without costs it is never slower in two cases: all stages take equally long, or all meshes do. Of the orders for
    which both hold, the one with the least mean ratio to 1F1B is taken.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        placement: any other placement, such as one of stages that are a graph.
        costs: times for which the order on another placement is made.
        waiting: the most weight gradients that a mesh delays.

    Raises:
        ScheduleError: a count is below 1, the placement does not fit, or the costs are for other stages.
    """
    placement = placed("zb-h1", meshes, 1, placement)
    most = meshes if waiting is None else whole_number(waiting, "waiting", least=0)
    if placement == Placement.linear(meshes):
        return _delayed("zb-h1", placement, microbatches, 1, most)
    guesses = [costs] if costs else [Costs(), _equal_meshes(placement)]
    one = one_f_one_b(meshes, microbatches, placement=placement)
    orders = [split_backward(one), *(_owing(placement, microbatches, guess, waiting) for guess in guesses)]
    times = [simulate(one, guess).makespan for guess in guesses]

    def ratios(made: Schedule) -> list[float]:
        return [simulate(made, guess).makespan / time for guess, time in zip(guesses, times, strict=True)]

    safe = [made for made in orders if max(ratios(made)) <= 1 + TOLERANCE]
    return replace(min(safe or orders, key=lambda made: math.fsum(ratios(made))), name="zb-h1")


def zb_h2(meshes: int, microbatches: int, placement: Placement | None = None) -> Schedule:
    """Nearly no bubble for twice 1F1B's memory (Zero Bubble, arXiv 2401.10241).

    Mesh i runs 2(p - i - 1) forwards ahead and delays its weight gradients by 2i backwards. So every mesh keeps 2p - 1
    activations. With F, B and W about equal the longest stage takes mT + (p - 1)(F + B - 2W + 2c). To gain from that,
    each mesh must run its optimizer without waiting for the other meshes.

    On another placement a list scheduler makes the order. A free mesh takes the oldest forward of a stage that keeps
    fewer activations than its share. Otherwise the mesh takes the oldest input gradient, or else the oldest weight
    gradient. The longest path from a stage to the last stage has h stages, and the share of the stage is 2h - 1. On a
    linear placement meshes keep 2p - 1.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1; the numbers above hold from 2p - 1 on.
        placement: any other placement, such as one of stages that are a graph.

    Raises:
        ScheduleError: a count is below 1, or the placement does not fit.
    """
    placement = placed("zb-h2", meshes, 1, placement)
    if placement == Placement.linear(meshes):
        return _delayed("zb-h2", placement, microbatches, 2, 2 * meshes)
    shares = [2 * height - 1 for height in placement.heights]
    return by_priority("zb-h2", placement, microbatches, _rank, tasks=_RANKS, limit=shares.__getitem__)


def zb_1p(meshes: int, microbatches: int, costs: Costs | None = None) -> Schedule:
    """The automatic scheduler's schedule in 1F1B's memory without jax.checkpoint (Zero Bubble, arXiv 2401.10241).

    An input gradient releases half of an activation, and the weight gradient releases the other half.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        costs: times for which the schedule is made; by default all tasks take equally long.

    Raises:
        ScheduleError: a count is below 1, or the costs are for other meshes.
    """
    return _automatic("zb-1p", meshes, microbatches, costs, meshes)


def zb_2p(meshes: int, microbatches: int, costs: Costs | None = None) -> Schedule:
    """The automatic scheduler's schedule in twice the memory of 1F1B (Zero Bubble, arXiv 2401.10241).

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        costs: times for which the schedule is made; by default all tasks take equally long.

    Raises:
        ScheduleError: a count is below 1, or the costs are for other meshes.
    """
    return _automatic("zb-2p", meshes, microbatches, costs, 2 * meshes)


def _rank(task: Task) -> tuple[int, int]:
    """Returns a priority: forwards first, weight gradients last; of tasks of one kind, the oldest first."""
    return _RANKS[task.kind], task.microbatch


def _owing(placement: Placement, microbatches: int, costs: Costs, waiting: int | None) -> Schedule:
    """Makes an order that delays weight gradients while a mesh has spare memory.

    A mesh may keep as many activations as the mesh that keeps most in 1F1B. No stage delays more than `waiting` weight
    gradients.
    """
    heights = placement.heights
    stages_of = [placement.stages_of(mesh) for mesh in range(placement.meshes)]
    shares = [sum(heights[stage] for stage in stages) for stages in stages_of]

    def limit(stage: int) -> int:
        mesh = placement[stage]
        spare = (max(shares) - shares[mesh]) // len(stages_of[mesh])
        return heights[stage] + (spare if waiting is None else min(spare, waiting))

    return by_priority(
        "zb-h1", placement, microbatches, _rank, tasks=_RANKS, limit=limit, in_flight=heights.__getitem__, costs=costs
    )


def _equal_meshes(placement: Placement) -> Costs:
    """Returns costs with which all meshes have equal work, and all stages of one mesh take equally long."""
    times = [1 / len(placement.stages_of(mesh)) for mesh, *_ in placement.homes]
    return Costs(forward=times, input_grad=times, weight_grad=times)


def _delayed(name: str, placement: Placement, microbatches: int, ahead: int, most: int) -> Schedule:
    """Makes a linear order with `ahead` forwards ahead for each later mesh.

    A mesh delays `ahead` weight gradients for each earlier mesh, and at most `most`.
    """
    plan = Plan(name, placement, microbatches)
    for i, mesh in enumerate(plan):
        mesh.warm_up(F(i) * ahead * (placement.meshes - 1 - i), (F(i) + I(i)) * min(ahead * i, most))
        mesh.repeat(F(i) + I(i) + W(i))
    return plan.draft()


def _automatic(name: str, meshes: int, microbatches: int, costs: Costs | None, memory: float) -> Schedule:
    placement = Placement.linear(meshes)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    limits = MemoryLimits((memory,) * meshes, "half")
    problem = make_problem(placement, microbatches, costs or Costs(), limits, "longest_stage", split_backward=True)
    return problem.schedule(name, best_orders(problem))
