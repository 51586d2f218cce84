"""A better order for the tasks of a finished schedule, whatever kinds they are of."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields, replace
from random import Random
from typing import Final

from jaxpp.schedules.check import check
from jaxpp.schedules.cost_values import positive
from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.errors import ScheduleError, one_of, whole_number
from jaxpp.schedules.pools import Sizes, byte_sizes, share_sizes
from jaxpp.schedules.problem import OBJECTIVES, Limits, MemoryLimits, Objective
from jaxpp.schedules.report import KEPT, Release
from jaxpp.schedules.schedule import Schedule, check_type
from jaxpp.schedules.search.anneal import anneal
from jaxpp.schedules.search.cells import Cells, Rows, cells_of
from jaxpp.schedules.search.changes import Kept, check_changes, least_factor, stripped, with_other_tasks
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.found import Found, memory_limits
from jaxpp.schedules.search.history import History, ProgressCallback
from jaxpp.schedules.search.homes import bound_at_any_home
from jaxpp.schedules.simulate import simulate

_CHANGING: Final = 0.1
"""The share of everything that a change of the tasks may cost, at the beginning and in the middle."""


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
    """Look for a better order of the tasks of a schedule, by moves along its critical path (`search.anneal`).

    The tasks may be of any kind that the simulator knows the costs of: recomputes, copies to the host and back, to
    other meshes, a user's own; fused, of slices of the sequence, of stages that several meshes hold or share. They stay
    what they are, and each on its mesh; what is fused moves as one. `search` makes the tasks, and looks for the best
    order of forwards and backwards alone. Which stages recompute or offload, what is fused, and which home of a stage
    runs a microbatch may be looked for too: `change`, by turns with the order (`search.changes`). What is spread or
    sliced is so in the model's program: no order changes that.

    Where the costs give all microbatches the same size, those of one kind and stage stay in ascending order if they are
    in it; the bound is for all orders.

    Args:
        schedule: a valid one, within the limit, unless the change of its tasks brings it there.
        costs: of its tasks, and of its hops; contention of links is left out.
        memory_limit: how many microbatches' activations a mesh may keep; a number, or one per mesh.
        released_at: when they are released: "W", "B" or "half", see `Report.peak_activations`.
        memory_bytes: the limit in the bytes of the costs instead; a number, or one per mesh.
        host_bytes: a limit for the memory of hosts, in the bytes of the costs; a number, or one per mesh.
        change: what of the tasks may change: "recompute" and "offload", for each stage, whether it does so; "fuse",
            for each mesh, whether its forwards run as one with the backwards beside them; "homes", where stages are at
            home on several meshes, on which of them a microbatch runs, as a whole or at one stage.
        objective: "makespan" or "longest_stage", see `Report`.
        seconds: what to spend, counted as in `search`: equal arguments give equal results.
        seed: of the random choices.
        progress: called now and then with the share of the time that is spent, the best value and the lower bound.

    Returns:
        The best order, with a lower bound for all orders of these tasks, and of those that they may change into.

    Raises:
        ScheduleError: an argument is wrong, or the schedule is not within the limit.
    """
    check_type(schedule)
    check(schedule)
    one_of(OBJECTIVES, objective, "objective")
    costs = replace(given_costs(costs).merged(schedule.stages), contention=False)
    rng, effort = Random(whole_number(seed, "seed", least=0)), Effort(positive(seconds, "seconds"))
    memory = memory_limits(schedule.meshes, memory_limit, memory_bytes, released_at, costs)
    hosts = memory_limits(schedule.meshes, math.inf, host_bytes, released_at, costs, "host_bytes").limits
    check_changes(change, costs)
    kept = Kept(memory, hosts)
    bound = _least(schedule, costs, kept, change, objective)
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
    own = {each.name: getattr(schedule, each.name) for each in fields(Schedule)}
    moments = history.end()
    found = Found(**own, value=moments[-1].value, lower_bound=moments[-1].bound, history=moments)
    check(found)
    return found


def _cells(schedule: Schedule, costs: Costs, kept: Kept, objective: Objective) -> Cells:
    """The cells of a schedule, within limits."""
    limits = (*kept.memory.limits, *(kept.hosts if min(kept.hosts) < math.inf else ()))
    rooms = [limit * (1 + TOLERANCE) + TOLERANCE for limit in limits]
    return cells_of(schedule, costs, _sizes(schedule, costs, kept.memory), rooms, objective)


def _ordered(schedule: Schedule, rows: Rows) -> Schedule:
    """The schedule with its cells in this order."""
    numbered = [cell for row in schedule.cells for cell in row]
    orders = [[numbered[cell] for cell in row] for row in rows]
    return Schedule.of("improved", schedule.placement, orders, schedule.kinds, schedule.skipped)


def _sizes(schedule: Schedule, costs: Costs, memory: MemoryLimits) -> Sizes:
    """What activations take of the memory, in the unit of its limits."""
    if memory.released_at is None:
        return byte_sizes(schedule, costs)
    return share_sizes(schedule, KEPT[memory.released_at], costs.size(schedule))


def _least(schedule: Schedule, costs: Costs, kept: Kept, change: Collection[str], objective: Objective) -> float:
    """No order of these tasks is better, nor of those that they may change into."""
    bare = stripped(schedule, change)
    cells = _cells(bare, costs, kept, objective)
    may_move = "homes" in change and schedule.placement.has_copies
    bound = bound_at_any_home(bare, costs, cells) if may_move else _bound(cells)
    return bound * least_factor(schedule, costs, change)


def _bound(cells: Cells) -> float:
    """No order of these cells is better: a mesh runs all of its own, and has ways before and after them."""
    times, asides, needs = cells.times, cells.asides, cells.needs
    heads, tails = [0.0] * len(times), [0.0] * len(times)
    for cell in cells.in_turn:
        heads[cell] = max((heads[need] + times[need] + delay for need, delay in needs[cell].items()), default=0.0)
    for cell in reversed(cells.in_turn):
        for need, delay in needs[cell].items():
            tails[need] = max(tails[need], delay + times[cell] + tails[cell])
    own = [[cell for cell in row if cell not in asides] for row in cells.rows]
    loads = [math.fsum(times[cell] for cell in row) for row in own]
    if cells.objective == "longest_stage":
        return max(loads)
    around = (min(heads[cell] for cell in row) + min(tails[cell] for cell in row) if row else 0.0 for row in own)
    return max(*map(math.fsum, zip(heads, times, tails, strict=True)), *map(sum, zip(loads, around, strict=True)))
