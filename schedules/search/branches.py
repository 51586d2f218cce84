"""The search where stages are a graph, or at home on several meshes: the best start is improved.

Starts are orders by priority and, for a chain, what is published. On several homes of a stage microbatches take turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.priorities import by_priority
from jaxpp.schedules.problem import MemoryLimits, Objective
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.search.candidates import published
from jaxpp.schedules.search.changes import Kept
from jaxpp.schedules.search.found import Found
from jaxpp.schedules.search.improve import improve
from jaxpp.schedules.simulate import simulate
from jaxpp.schedules.task import Placement, Task

_KINDS: Final = ("forward", "input_grad", "weight_grad")


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
    """The best schedule that is found for a graph of stages, or for stages with several homes.

    Args:
        placement: one with `after`, or of which stages have several homes; none is spread.
        microbatches: at least 1.
        costs: of tasks and hops.
        memory: what the meshes may keep.
        split_backward: whether input and weight gradients are tasks of their own.
        objective: what to make as small as possible.
        options: the others of `improve`.

    Raises:
        ScheduleError: no order that was tried fits the memory, or a stage is spread.
    """
    if placement.spread:
        reason = "and its tasks run on all of them at once: give a schedule of it to improve"
        raise ScheduleError(f"search: stage {min(placement.spread)} is spread over its meshes, {reason}")
    starts = list(_starts(placement, microbatches, costs, split_backward))
    kept = Kept(memory, [math.inf] * placement.meshes)
    too_much = [kept.excess(simulate(each, costs)) for each in starts]
    fitting = [each for each, reason in zip(starts, too_much, strict=True) if not reason]
    if not fitting:
        raise ScheduleError(f"no schedule fits the memory: the least that was tried keeps {too_much[-1]}")
    best = min(fitting, key=lambda each: getattr(simulate(each, costs), objective))
    found = replace(improve(best, costs, objective=objective, **options), name="search")
    if max(map(len, placement.homes)) == 1:
        return found
    bound = min(found.lower_bound, _bound(starts, costs, objective))
    history = tuple(replace(moment, bound=min(moment.bound, bound)) for moment in found.history)
    return replace(found, lower_bound=bound, history=history)


def _bound(starts: Sequence[Schedule], costs: Costs, objective: Objective) -> float:
    """Wherever its microbatches run: no mesh has less than the mean of the work, no microbatch a shorter way."""
    first = starts[0]
    empty = Schedule("bound", first.placement, ((),) * first.meshes)
    times = {kind: [costs.on_mesh(kind, mesh, empty) for mesh in range(first.meshes)] for kind in _KINDS}
    fastest = {
        kind: [min(by_mesh[mesh][stage] for mesh in homes) for stage, homes in enumerate(first.placement.homes)]
        for kind, by_mesh in times.items()
    }
    sizes = costs.microbatches or (1.0,) * first.microbatches
    work = math.fsum(sizes) * math.fsum(map(math.fsum, fastest.values())) / first.meshes
    fused = {tuple(task.kind for task in cell) for each in starts for row in each.cells for cell in row if cell[1:]}
    factor = min([1.0, *map(costs.factor, fused)])
    chain = not first.placement.after and objective == "makespan"
    way = max(sizes) * math.fsum((*fastest["forward"], *fastest["input_grad"])) if chain else 0.0
    return factor * max(work, way)


def _starts(placement: Placement, microbatches: int, costs: Costs, split: bool) -> Iterator[Schedule]:
    """1F1B and relatives (backwards first, of forwards those with the longest way to go), and what is published.

    The last one has the least memory: microbatch after microbatch.
    """
    costs = replace(costs, microbatches=())
    kinds = _KINDS if split else ("forward", "backward")
    ways = placement.heights

    def priority(task: Task) -> tuple[float, ...]:
        if task.kind == "forward":
            return 1, task.microbatch, -ways[task.stage]
        return 2 * (task.kind == "weight_grad"), task.microbatch, 0

    def home(task: Task) -> int:
        homes = placement.homes[task.stage]
        return homes[task.microbatch % len(homes)]

    # As many in flight as there are stages on the way to the end; twice as many, all, and, as the least, one.
    limits: list[Callable[[int], int] | None] = [
        ways.__getitem__,
        lambda stage: 2 * ways[stage],
        None,
        lambda _: 1,
    ]
    for limit in limits:
        yield by_priority(
            "start", placement, microbatches, priority, tasks=kinds, limit=limit, mesh_of=home, costs=costs
        )
    if not placement.after:
        for made in published(placement, microbatches, costs):
            if split or not any(task.kind == "weight_grad" for task in made):
                yield made
    rows: list[list[Task]] = [[] for _ in range(placement.meshes)]
    for microbatch in range(microbatches):
        up = [Task("forward", stage, microbatch) for stage in range(placement.stages)]
        down = [Task(kind, task.stage, microbatch) for task in reversed(up) for kind in kinds[1:]]
        for task in (*up, *down):
            rows[home(task)].append(task)
    yield Schedule.of("start", placement, rows)
