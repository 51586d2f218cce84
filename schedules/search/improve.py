"""A better order for the tasks of a finished schedule, whatever kinds they are of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from graphlib import TopologicalSorter
from random import Random

from jaxpp._system import collector_paused
from jaxpp.schedules.check import check
from jaxpp.schedules.cost_values import positive
from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.errors import ScheduleError, instance_of, one_of, whole_number
from jaxpp.schedules.pools import Sizes, byte_sizes
from jaxpp.schedules.problem import OBJECTIVES, Limits, MemoryLimits, Objective
from jaxpp.schedules.report import KEPT, Release
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.search.anneal import anneal
from jaxpp.schedules.search.cells import Cells, Rows, cells_of
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.found import Found, memory_limits
from jaxpp.schedules.search.history import History, Moment, Progress
from jaxpp.schedules.simulate import simulate


def improve(
    schedule: Schedule,
    costs: Costs | None = None,
    memory_limit: Limits = math.inf,
    *,
    released_at: Release = "W",
    memory_bytes: Limits = math.inf,
    host_bytes: Limits = math.inf,
    objective: Objective = "makespan",
    seconds: float = 10.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Found:
    """Look for a better order of the tasks of a schedule, by moves along its critical path (`search.anneal`).

    The tasks may be of any kind that the simulator knows the costs of: recomputes, copies to the host and back, to
    other meshes, a user's own; fused, of slices of the sequence, of stages that several meshes hold or share. They stay
    what they are, and each on its mesh; what is fused moves as one. `search` makes the tasks, and looks for the best
    order of forwards and backwards alone.

    Where the costs give all microbatches the same size, those of one kind and stage stay in ascending order if they are
    in it; the bound is for all orders.

    Args:
        schedule: a valid one, within the limit.
        costs: of its tasks, and of its hops; contention of links is left out.
        memory_limit: how many microbatches' activations a mesh may keep; a number, or one per mesh.
        released_at: when they are released: "W", "B" or "half", see `Report.peak_activations`.
        memory_bytes: the limit in the bytes of the costs instead; a number, or one per mesh.
        host_bytes: a limit for the memory of hosts, in the bytes of the costs; a number, or one per mesh.
        objective: "makespan" or "longest_stage", see `Report`.
        seconds: what to spend, counted as in `search`: equal arguments give equal results.
        seed: of the random choices.
        progress: called now and then with the share of the time that is spent, the best value and the lower bound.

    Returns:
        The best order, with a lower bound for all orders of these tasks.

    Raises:
        ScheduleError: an argument is wrong, or the schedule is not within the limit.
    """
    instance_of(Schedule, schedule, "schedule", ", as schedules.make makes it")
    check(schedule)
    one_of(OBJECTIVES, objective, "objective")
    costs = replace(given_costs(costs).merged(schedule.stages), contention=False)
    rng, effort = Random(whole_number(seed, "seed", least=0)), Effort(positive(seconds, "seconds"))
    memory = memory_limits(schedule.meshes, memory_limit, memory_bytes, released_at)
    hosts = memory_limits(schedule.meshes, math.inf, host_bytes, released_at, "host_bytes").limits
    if too_much := excess(schedule, costs, memory, hosts):
        raise ScheduleError(f"improve: {schedule.name} keeps {too_much}: give a schedule that fits")
    limits = memory.limits + (hosts if min(hosts) < math.inf else ())
    rooms = [limit * (1 + TOLERANCE) + TOLERANCE for limit in limits]
    with collector_paused():
        cells = cells_of(schedule, costs, _sizes(schedule, costs, memory), rooms, objective)
        bound = _bound(cells)
        value: float = getattr(simulate(schedule, costs), objective)
        history = History(effort, lambda: (value, min(bound, value)), progress)
        rows = cells.rows
        if bound < value * (1 - TOLERANCE):
            for rows, value in anneal(cells, effort, effort.seconds, rng):  # noqa: B007  # the last ones are the best
                pass
    found = _found(schedule, rows, history.end())
    check(found)
    return found


def _found(schedule: Schedule, rows: Rows, history: tuple[Moment, ...]) -> Found:
    """The schedule with its cells in this order."""
    numbered = [cell for row in schedule.cells for cell in row]
    orders = [[numbered[cell] for cell in row] for row in rows]
    made = Schedule.of("improved", schedule.placement, orders, schedule.kinds, schedule.skipped)
    own = {each.name: getattr(made, each.name) for each in fields(Schedule)}
    return Found(**own, value=history[-1].value, lower_bound=history[-1].bound, history=history)


def _sizes(schedule: Schedule, costs: Costs, memory: MemoryLimits) -> Sizes:
    """What activations take of the memory, in the unit of its limits."""
    if memory.released_at is None:
        return byte_sizes(schedule, costs)
    share = schedule.meshes / schedule.stages
    kept = [share * KEPT[memory.released_at]] * schedule.stages
    return Sizes([share] * schedule.stages, kept, [0.0] * schedule.stages, costs.size(schedule))


def excess(schedule: Schedule, costs: Costs, memory: MemoryLimits, hosts: Sequence[float]) -> str:
    """Which mesh keeps too much, how much, and its limit; nothing where all is within the limits."""
    report, at = simulate(schedule, costs), memory.released_at
    here = report.peak_activations(at) if at else report.peak_bytes()
    everything = (
        ("on", "microbatches" if at else "bytes", here, memory.limits),
        ("in the host of", "bytes", report.peak_host_bytes(), hosts),
    )
    for where, unit, peaks, limits in everything:
        for mesh, (peak, limit) in enumerate(zip(peaks, limits, strict=True)):
            if peak > limit * (1 + TOLERANCE):
                return f"{peak:g} {unit} {where} mesh {mesh}, its limit is {limit:g}"
    return ""


def _bound(cells: Cells) -> float:
    """No order of these cells is better: a mesh runs all of its own, and has ways before and after them."""
    times, asides = cells.times, cells.asides
    needs = [
        {**{each: 0.0 for each in before if each not in asides}, **dict(waits)}
        for before, waits in zip(cells.needed, cells.waits, strict=True)
    ]
    heads, tails = [0.0] * len(times), [0.0] * len(times)
    order = list(TopologicalSorter({cell: each.keys() for cell, each in enumerate(needs)}).static_order())
    for cell in order:
        heads[cell] = max((heads[need] + times[need] + delay for need, delay in needs[cell].items()), default=0.0)
    for cell in reversed(order):
        for need, delay in needs[cell].items():
            tails[need] = max(tails[need], delay + times[cell] + tails[cell])
    own = [[cell for cell in row if cell not in asides] for row in cells.rows]
    loads = [math.fsum(times[cell] for cell in row) for row in own]
    if cells.objective == "longest_stage":
        return max(loads)
    around = (min(heads[cell] for cell in row) + min(tails[cell] for cell in row) if row else 0.0 for row in own)
    return max(*map(math.fsum, zip(heads, times, tails, strict=True)), *map(sum, zip(loads, around, strict=True)))
