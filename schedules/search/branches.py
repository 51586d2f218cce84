"""The search for a schedule of stages that are a graph: orders by priority, the best of which is improved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.priorities import by_priority
from jaxpp.schedules.problem import MemoryLimits, Objective
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.search.changes import Kept
from jaxpp.schedules.search.found import Found
from jaxpp.schedules.search.improve import improve
from jaxpp.schedules.simulate import simulate
from jaxpp.schedules.task import Placement, Task


def search_branches(
    placement: Placement,
    microbatches: int,
    costs: Costs,
    memory: MemoryLimits,
    *,
    split_backward: bool,
    objective: Objective,
    **options: Any,
) -> Found:
    """The best schedule that is found for a graph of stages.

    Args:
        placement: one with `after`.
        microbatches: at least 1.
        costs: of tasks and hops.
        memory: what the meshes may keep.
        split_backward: whether input and weight gradients are tasks of their own.
        objective: what to make as small as possible.
        options: the others of `improve`.

    Raises:
        ScheduleError: no order that was tried fits the memory.
    """
    starts = list(_starts(placement, microbatches, costs, split_backward))
    kept = Kept(memory, [math.inf] * placement.meshes)
    too_much = [kept.excess(simulate(each, costs)) for each in starts]
    fitting = [each for each, reason in zip(starts, too_much, strict=True) if not reason]
    if not fitting:
        raise ScheduleError(f"no schedule fits the memory: the least that was tried keeps {too_much[-1]}")
    best = min(fitting, key=lambda each: getattr(simulate(each, costs), objective))
    return replace(improve(best, costs, objective=objective, **options), name="search")


def _starts(placement: Placement, microbatches: int, costs: Costs, split: bool) -> Iterator[Schedule]:
    """1F1B and relatives of it: backwards first, of forwards those with the longest way to go."""
    costs = replace(costs, microbatches=())
    kinds = ("forward", "input_grad", "weight_grad") if split else ("forward", "backward")
    ways = _ways(placement)

    def priority(task: Task) -> tuple[float, ...]:
        if task.kind == "forward":
            return 1, task.microbatch, -ways[task.stage]
        return 2 * (task.kind == "weight_grad"), task.microbatch, 0

    # As many in flight as there are stages on the way to the end; twice as many, all, and, as the least, one.
    limits: list[Callable[[int], int] | None] = [
        ways.__getitem__,
        lambda stage: 2 * ways[stage],
        None,
        lambda _: 1,
    ]
    for limit in limits:
        yield by_priority("start", placement, microbatches, priority, tasks=kinds, limit=limit, costs=costs)


def _ways(placement: Placement) -> list[int]:
    """For each stage how many stages there are on the longest way from it to the last one, both counted."""
    ways = [1] * placement.stages
    for stage in reversed(range(placement.stages)):
        ways[stage] += max((ways[other] for other in placement.near(stage, 1)), default=0)
    return ways
