"""The search for graphs of stages and for stages on several meshes: it improves the best start.

Starts are orders of a list scheduler and, for a chain, published schedules. If a stage is on several meshes,
microbatches alternate between these meshes. Then single microbatches move to other meshes while that gains: first in
the starts, then in the best order (the change "homes"). Meshes may differ in speed, and stages in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeAlias

from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.problem import Objective
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task
from jaxpp.schedules.search.candidates import published
from jaxpp.schedules.search.changes import Kept
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.found import Found
from jaxpp.schedules.search.improve import improve

_KINDS: Final = ("forward", "input_grad", "weight_grad")

_MOVING: Final = 0.2
"""The share of the effort that moves of microbatches between meshes may spend."""

_UNITS: Final = 300
"""The units of effort to order and run a task."""

_Limit: TypeAlias = Callable[[int], int] | None
"""A function from a stage to the most microbatches that it may keep; None for no limit."""


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
    """Returns the best schedule that the search finds for a graph of stages, or for stages on several meshes.

    Args:
        placement: one with `after`, or with stages on several meshes.
        microbatches: at least 1.
        costs: the costs of tasks and hops.
        memory: the limits of the meshes.
        split_backward: whether input and weight gradients are tasks of their own.
        objective: the value to minimize.
        options: the other options of `improve`.

    Raises:
        ScheduleError: no order that was tried fits the memory.
    """
    starts = list(_starts(placement, microbatches, costs, split_backward))
    kept = Kept(memory)
    if placement.has_copies:
        effort = Effort(options["seconds"] * _MOVING)
        options["seconds"] -= effort.seconds

        def rank(made: Schedule) -> float:
            report = simulate(made, costs)
            return math.inf if kept.excess(report) else getattr(report, objective)

        starts += _moved(placement, microbatches, costs, split_backward, rank, effort)
    too_much = [kept.excess(simulate(each, costs)) for each in starts]
    fitting = [each for each, reason in zip(starts, too_much, strict=True) if not reason]
    if not fitting:
        raise ScheduleError(f"no schedule fits the memory: the least that was tried keeps {too_much[-1]}")
    best = min(fitting, key=lambda each: getattr(simulate(each, costs), objective))
    change = ["homes"] if placement.has_copies else []
    found = replace(improve(best, costs, objective=objective, change=change, **options), name="search")
    if not placement.has_copies:
        return found
    bound = min(found.lower_bound, _bound(starts, costs, objective))
    history = tuple(replace(moment, bound=min(moment.bound, bound)) for moment in found.history)
    return replace(found, lower_bound=bound, history=history)


def _moved(
    placement: Placement,
    microbatches: int,
    costs: Costs,
    split: bool,
    rank: Callable[[Schedule], float],
    effort: Effort,
) -> list[Schedule]:
    """Returns the best start after moves of single microbatches to other meshes; empty if no move gains.

    `rank` is the value to minimize.
    """
    turns, count = list(range(microbatches)), max(map(len, placement.homes))
    units = _UNITS * microbatches * placement.stages * (3 if split else 2)
    limits = _limits(placement)
    values = [rank(_by_turns(placement, costs, split, turns, limit)) for limit in limits]
    least = min(values)
    limit, found, has_gained = limits[values.index(least)], list[Schedule](), True
    while has_gained:
        has_gained = False
        for microbatch, ahead in product(range(microbatches), range(1, count)):
            if not effort.spend(units):
                return found[-1:]
            turns[microbatch] += ahead
            made = _by_turns(placement, costs, split, turns, limit)
            if (value := rank(made)) < least * (1 - TOLERANCE):
                least, has_gained = value, True
                found.append(made)
            else:
                turns[microbatch] -= ahead
    return found[-1:]


def _bound(starts: Sequence[Schedule], costs: Costs, objective: Objective) -> float:
    """Returns a lower bound for every choice of meshes for the microbatches.

    No mesh has less than the mean of the work, and no microbatch a shorter path through the pipeline.
    """
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
    """Yields variants of 1F1B with several in-flight limits, and for a chain the published schedules on the placement.

    The last start needs the least memory: one microbatch after another.
    """
    turns = range(microbatches)
    for limit in _limits(placement):
        yield _by_turns(placement, costs, split, turns, limit)
    if not placement.after:
        for made in published(placement, microbatches, costs):
            if split or not any(task.kind == "weight_grad" for task in made):
                yield made
    rows: list[list[Task]] = [[] for _ in range(placement.meshes)]
    kinds = _KINDS if split else ("forward", "backward")
    for microbatch in range(microbatches):
        up = [Task("forward", stage, microbatch) for stage in range(placement.stages)]
        down = [Task(kind, task.stage, microbatch) for task in reversed(up) for kind in kinds[1:]]
        for task in (*up, *down):
            rows[_home(placement, task, turns)].append(task)
    yield Schedule.of("start", placement, rows)


def _limits(placement: Placement) -> list[_Limit]:
    """Returns the in-flight limits to try: the stages on the path to the end, twice as many, no limit, and one."""
    ways = placement.heights
    return [ways.__getitem__, lambda stage: 2 * ways[stage], None, lambda _: 1]


def _home(placement: Placement, task: Task, turns: Sequence[int]) -> int:
    """Returns the mesh of a task.

    `turns` has for each microbatch the index of its mesh among the meshes of a stage, modulo their number.
    """
    homes = placement.homes[task.stage]
    return homes[turns[task.microbatch] % len(homes)]


def _by_turns(placement: Placement, costs: Costs, split: bool, turns: Sequence[int], limit: _Limit) -> Schedule:
    """Makes an order that prefers backwards, then forwards, then weight gradients.

    The oldest microbatch comes first, and of its forwards the one with the longest path to the last stage.
    """
    ways = placement.heights

    def priority(task: Task) -> tuple[float, ...]:
        if task.kind == "forward":
            return 1, task.microbatch, -ways[task.stage]
        return 2 * (task.kind == "weight_grad"), task.microbatch, 0

    return by_priority(
        "start",
        placement,
        len(turns),
        priority,
        tasks=_KINDS if split else ("forward", "backward"),
        limit=limit,
        mesh_of=lambda task: _home(placement, task, turns),
        costs=replace(costs, microbatches=()),
    )
