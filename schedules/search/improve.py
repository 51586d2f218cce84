"""A local search for a better order of the tasks of a finished schedule, of any kind."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from random import Random
from typing import Final

from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import Release
from jaxpp.schedules.engine.ordered_cells import OrderedCells, ordered_cells
from jaxpp.schedules.engine.problem import OBJECTIVES, Limits, Objective
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError, one_of, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule, check_type
from jaxpp.schedules.model.values import positive
from jaxpp.schedules.search.anneal import anneal
from jaxpp.schedules.search.bounds import bound_at_any_home, bound_in_any_order
from jaxpp.schedules.search.changes import Kept, check_changes, least_factor, stripped, with_other_tasks
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.found import Found, found_by, memory_limits
from jaxpp.schedules.search.history import History, ProgressCallback

_CHANGING: Final = 0.1
"""The share of the effort that the changes of tasks may spend, at the beginning and again in the middle."""


def improve(
    schedule: Schedule,
    costs: Costs | None = None,
    memory_limit: Limits = None,
    *,
    released_at: Release = "W",
    memory_bytes: Limits = None,
    host_bytes: Limits = None,
    change: Collection[str] = (),
    objective: Objective = "makespan",
    seconds: float = 10.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Found:
    """Searches for a better order of the tasks of a schedule, by moves along its critical path (`search.anneal`).

    The tasks may have any kind for which the simulator has costs: recomputes, copies to the host or to other meshes, a
    user's own kinds. They may be fused, of slices of the sequence, or of stages that several meshes hold. Each
    task stays the same and on its mesh, and fused tasks move as one. `search`, in contrast, makes the tasks itself, and
    orders only forwards and backwards.

    With `change` the search also changes the tasks, in turns with the order (`search.changes`). It may choose which
    stages recompute or offload, which tasks are fused, and which mesh of a stage runs a microbatch. A spread vocabulary
    and slices are part of the model's program, so no change adds or removes them.

    If the costs give all microbatches the same size, tasks of one kind and stage that begin in ascending order stay so.
    The lower bound is for all orders.

    Args:
        schedule: a valid one, within the limits unless changes of its tasks bring it there.
        costs: the costs of its tasks and hops.
        memory_limit: how many microbatches' activations a mesh may keep; a number, or one per mesh.
        released_at: when activations are released: "W", "B" or "half", see `Report.peak_activations`.
        memory_bytes: the limit in the bytes of the costs instead; a number, or one per mesh.
        host_bytes: a limit for the memory of hosts, in the bytes of the costs; a number, or one per mesh.
        change: which changes of tasks are allowed. "recompute" and "offload" choose the stages that do so. "fuse"
            chooses the meshes that fuse forwards with neighbouring backwards. "homes" chooses the mesh of a microbatch,
            at all stages or at one, if stages are on several meshes.
        objective: "makespan" or "longest_stage", see `Report`.
        seconds: what to spend, counted as in `search`: equal arguments give equal results.
        seed: of the random choices.
        progress: called now and then with the share of the time that is spent, the best value and the lower bound.

    Returns:
        The best order, with a lower bound for all orders of these tasks and of the tasks that `change` allows.

    Raises:
        ScheduleError: an argument is wrong, or the schedule is not within the limits.
    """
    check_type(schedule)
    check(schedule)
    one_of(OBJECTIVES, objective, "objective")
    costs = given_costs(costs).merged(schedule.stages)
    rng, effort = Random(whole_number(seed, "seed", least=0)), Effort(positive(seconds, "seconds"))
    memory = memory_limits(schedule.meshes, memory_limit, memory_bytes, released_at, costs)
    hosts = memory_limits(schedule.meshes, math.inf, host_bytes, released_at, costs, "host_bytes").limits
    check_changes(change, costs)
    kept = Kept(memory, hosts if min(hosts) < math.inf else ())
    may_move = "homes" in change and schedule.placement.has_copies
    bound_of = bound_at_any_home if may_move else bound_in_any_order
    bound = bound_of(stripped(schedule, change), costs, objective) * least_factor(schedule, costs, change)
    if change:
        part = effort.part(effort.seconds * _CHANGING)
        schedule = with_other_tasks(schedule, costs, kept, change, objective, part)
    report = simulate(schedule, costs)
    if too_much := kept.excess(report):
        even = ", even with these changes" if change else ""
        raise ScheduleError(f"improve: {schedule.name} keeps {too_much}{even}: give a schedule that fits")
    value: float = getattr(report, objective)
    history = History(effort, lambda: (value, min(bound, value)), progress)
    turns = 2 if change else 1
    for turn in range(turns):
        if turn:
            part = effort.part(effort.seconds * _CHANGING)
            schedule = with_other_tasks(schedule, costs, kept, change, objective, part)
            value = getattr(simulate(schedule, costs), objective)
        cells = _cells(schedule, costs, kept, objective)
        rows = cells.rows
        if bound < value * (1 - TOLERANCE) and effort.left:
            for rows, value in anneal(cells, effort, effort.left / (turns - turn), rng):  # noqa: B007  # the last ones are the best
                pass
        schedule = _ordered(schedule, rows)
    return found_by(schedule, history)


def _cells(schedule: Schedule, costs: Costs, kept: Kept, objective: Objective) -> OrderedCells:
    """Returns the cells of a schedule with its limits."""
    rooms = [limit * (1 + TOLERANCE) + TOLERANCE for limit in (*kept.memory.limits, *kept.hosts)]
    return ordered_cells(schedule, costs, kept.memory.sizes(schedule, costs), rooms, objective)


def _ordered(schedule: Schedule, rows: Sequence[Sequence[int]]) -> Schedule:
    """Returns the schedule with its cells in this order."""
    numbered = [cell for row in schedule.cells for cell in row]
    orders = [[numbered[cell] for cell in row] for row in rows]
    return Schedule.of("improved", schedule.placement, orders, schedule.kinds, schedule.skipped)
