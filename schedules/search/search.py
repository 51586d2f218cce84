"""The search for a schedule: published ones to begin with, then beams of many tastes, until time is up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from random import Random
from typing import Final

import numpy as np

from jaxpp.schedules.check import check
from jaxpp.schedules.cost_values import positive
from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.errors import ScheduleError, one_of, true_or_false, whole_number
from jaxpp.schedules.library.zero_bubble_auto import best_orders
from jaxpp.schedules.problem import (
    OBJECTIVES,
    Limits,
    MemoryLimits,
    Objective,
    Orders,
    Problem,
    make_problem,
)
from jaxpp.schedules.report import Release
from jaxpp.schedules.search.alone import alone
from jaxpp.schedules.search.anneal import anneal_orders
from jaxpp.schedules.search.beam import Beam, Taste, affordable
from jaxpp.schedules.search.bounds import least_memory, lower_bound
from jaxpp.schedules.search.branches import search_branches
from jaxpp.schedules.search.candidates import placements, published
from jaxpp.schedules.search.climb import Climb
from jaxpp.schedules.search.effort import Effort, seconds_of
from jaxpp.schedules.search.found import Found, memory_limits
from jaxpp.schedules.search.history import History, ProgressCallback
from jaxpp.schedules.search.repeat import repeat
from jaxpp.schedules.search.waves import waves
from jaxpp.schedules.task import Placement

_TASTES: Final = (
    Taste(30),
    Taste(30, memory=-0.05, depth=-0.05),
    Taste(60, memory=-0.05, alike=1),
    Taste(60, alike=1),
    Taste(100, memory=-0.05, depth=-0.05),
    Taste(1000, memory=-0.05, alike=1),
    Taste(1000, memory=-0.05, alike=4),
)
"""Tried first, on every placement; random ones follow. Which of them is best differs from problem to problem.

The last two are wide: where memory is tight, the best orders look bad for long. In the first of them no two states have
the same counts. In the second a few may: by then only states that may come to better than the best are left.
"""

_NARROW: Final = 8
"""A beam that cannot be afforded at this width is not worth a try."""

_PUBLISHED: Final = 100
"""What it costs to make a task of a published schedule, in units of effort."""

_RUN: Final = 15
"""What it costs to run a task."""

_SIMPLE: Final = 0.5
"""The share of everything that may be spent on simple rules to begin with."""

_CHEAP: Final = 0.1
"""Seconds that the automatic scheduler may take, however little is left."""

_IN_WAVES: Final = 0.05
"""The share of everything that may be spent on orders in waves."""

_PROOF: Final = 0.2
"""The share of everything that may be spent on better bounds."""

_IN_RULES: Final = 0.01
"""The share of everything that is spent after each beam on rules for what a mesh prefers."""

_ANNEALED: Final = 0.5
"""The share of everything that is left for annealing."""

_ROUND: Final = 3e-3
"""Seconds for each task that a round of annealing takes at least, if there is to be another one."""

_FAR: Final = 2.5e-4
"""Seconds for each task and microbatch that it takes at least: along long rows cells have further to go."""

_ROUNDS: Final = 16
"""The most rounds of annealing."""

_HEATS: Final = (1.0, 4.0, 2.0, 0.5, 8.0)
"""How hot rounds from the best begin, one after the other."""

_RUNS: Final = 500
"""Where all tasks can be run less often than that, it is not worth to anneal."""


def search(
    meshes: int,
    microbatches: int,
    costs: Costs | None = None,
    memory_limit: Limits = None,
    *,
    placement: str | Placement = "linear",
    chunks: int | None = None,
    released_at: Release = "W",
    memory_bytes: Limits = None,
    objective: Objective = "makespan",
    split_backward: bool = True,
    seconds: float = 10.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Found:
    """Look for the best schedule within a memory limit.

    It starts from the published schedules that fit, and from the automatic scheduler of Zero Bubble. Until its time is
    up or the lower bound (`jaxpp.schedules.search.bounds`, `jaxpp.schedules.search.alone`) is reached, it then builds
    schedules by beam searches (`jaxpp.schedules.search.beam`), directly or for few microbatches to repeat, by hill
    climbing over what a mesh prefers (`jaxpp.schedules.search.climb`), and anneals the best of them
    (`jaxpp.schedules.search.anneal`).

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        costs: of tasks and hops; by default a forward, an input gradient and a weight gradient of a mesh take 1 each.
            Contention of links is not looked at. Of lists for more stages than a placement has, neighbours are added.
        memory_limit: how many microbatches' activations a mesh may keep; a number, or one per mesh.
        placement: "linear", "v", "looped", "waves", "any" (the search chooses), or a `Placement` with one mesh for
            each stage. Where its stages are a graph, or have several homes (which take turns, until a microbatch gains
            in another one), it starts from orders by priority and, for a chain, from what is published, and improves
            the best.
        chunks: stages per mesh; None: the search chooses, where a placement leaves a choice.
        released_at: when they are released: "W", "B" or "half", see `Report.peak_activations`.
        memory_bytes: the limit in the bytes of the costs instead; a number, or one per mesh.
        objective: "makespan" or "longest_stage", see `Report`.
        split_backward: whether input and weight gradients are tasks of their own.
        seconds: what to spend: the work of an average core in that time, counted, so that the same arguments find the
            same schedule on every machine.
        seed: of the random choices.
        progress: called now and then with the share of the time that is spent, the best value and the lower bound.

    Raises:
        ScheduleError: an argument is wrong, or no schedule fits the memory; it says what the least is.
    """
    meshes = whole_number(meshes, "meshes", least=1)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    rng = np.random.default_rng(whole_number(seed, "seed", least=0))
    one_of(OBJECTIVES, objective, "objective")
    split_backward = true_or_false(split_backward, "split_backward")
    costs, seconds = given_costs(costs), positive(seconds, "seconds")
    memory = memory_limits(meshes, memory_limit, memory_bytes, released_at, costs)
    if isinstance(placement, Placement) and (placement.after or placement.has_copies):
        (placement,) = placements(meshes, placement, chunks, costs)
        return search_branches(
            placement,
            microbatches,
            costs.merged(placement.stages),
            memory,
            split_backward=split_backward,
            objective=objective,
            memory_limit=memory_limit,
            memory_bytes=memory_bytes,
            released_at=released_at,
            seconds=seconds,
            seed=seed,
            progress=progress,
        )
    tries: list[Try] = []
    for shape in placements(meshes, placement, chunks, costs):
        merged = costs.merged(shape.stages)
        problem = make_problem(shape, microbatches, merged, memory, objective, split_backward)
        _check_memory(problem, memory)
        tries.append(Try(problem, merged))
    running = Running(tries, Effort(seconds), rng, progress)
    best = running.run()
    placed, rows = best.problem.placement, best.problem.tasks(best.orders)
    history = running.history.end()
    found = Found(
        "search",
        placed,
        tuple(map(tuple, rows)),
        value=best.value,
        lower_bound=running.bound,
        history=history,
    )
    check(found)
    return found


def _check_memory(problem: Problem, memory: MemoryLimits) -> None:
    """Find out whether any schedule fits.

    Raises:
        ScheduleError: none does: the mesh, and the least that it keeps.
    """
    for mesh, (least, limit) in enumerate(zip(least_memory(problem), problem.limits, strict=True)):
        if least > limit * (1 + TOLERANCE):
            keeps = "1 microbatch" if memory.released_at else f"{least:g} bytes: one microbatch"
            least_is = f"mesh {mesh} keeps at least {keeps}"
            raise ScheduleError(f"no schedule fits the memory: {least_is}; its limit is {limit:g}")


class Try:
    """A placement, and the best schedule on it so far."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.problem, self.costs = problem, costs
        self.bound = lower_bound(problem)
        self.climb: Climb | None = None
        self.orders: Orders = []
        self.value = math.inf
        self.found: dict[str, tuple[float, Orders]] = {}

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self.problem.types * self.problem.microbatches

    def take(self, orders: Orders | None, source: str) -> None:
        """Keep these if they are better, than all or than others of the same source."""
        if orders and self.problem.fits(orders):
            value = self.problem.value(orders)
            if value < self.found.get(source, (math.inf,))[0]:
                self.found[source] = value, orders
            if value < self.value * (1 - TOLERANCE):
                self.orders, self.value = orders, value

    def beats(self, value: float) -> bool:
        """Whether there may be anything better than this value, and than what is here already."""
        return self.bound < min(value, self.value) * (1 - TOLERANCE)


class Running:
    """One search: what is tried, and what may still be spent on it."""

    def __init__(
        self, tries: list[Try], effort: Effort, rng: np.random.Generator, progress: ProgressCallback | None
    ) -> None:
        self.tries, self.effort, self.rng = tries, effort, rng
        self.history = History(effort, lambda: (self.best.value, self.bound), progress)

    @property
    def best(self) -> Try:
        """The try with the best value."""
        return min(self.tries, key=lambda each: each.value)

    @property
    def bound(self) -> float:
        """No schedule of any try is better."""
        return min(min(each.bound for each in self.tries), self.best.value)

    @property
    def for_annealing(self) -> float:
        """How much of the effort is left for annealing."""
        least = seconds_of(_RUNS, max(each.tasks for each in self.tries))
        share = self.effort.seconds * _ANNEALED
        return share if share > least else 0.0

    def run(self) -> Try:
        """Search until nothing can be better, or all is spent."""
        for number, each in enumerate(self.tries):
            if self.effort.left or not number:
                self.begin(each, until=self.effort.seconds / 2 * (number + 1) / len(self.tries))
        for each in self.tries:
            self.prove(each)
        for number, taste in enumerate(self.tastes()):
            rest = [each for each in self.tries if each.beats(self.best.value)]
            # Whenever all fixed tastes have been tried, the worse half of the placements is dropped.
            rest.sort(key=lambda each: each.value)
            left = len(rest) >> (number // len(_TASTES))
            if not any([self.grow(each, taste, number) for each in rest[: max(1, left)]]):
                break
        if self.for_annealing:
            self.anneal(self.best)
        return self.best

    def anneal(self, each: Try) -> None:
        """Anneal what is best, and by turns the best of each source: the nearest start leads nowhere now and then."""
        rng, effort = Random(int(self.rng.integers(1 << 32))), self.effort
        starts = [orders for _, orders in sorted(each.found.values(), key=itemgetter(0))]
        least = each.tasks * max(_ROUND, _FAR * each.problem.microbatches)
        rounds = max(1, min(int(effort.left / least), _ROUNDS))
        for number in range(rounds):
            start, heat = each.orders, 1.0
            if rounds > len(starts):  # each start has its own round, then the best has several
                start = starts[number] if number < len(starts) else start
                heat = _HEATS[max(0, number - len(starts)) % len(_HEATS)]
            elif number % 2:
                start = starts[number // 2 + 1]
            else:
                heat = _HEATS[number // 2 % len(_HEATS)]
            if each.beats(each.value):
                for orders in anneal_orders(each.problem, start, effort, effort.left / (rounds - number), rng, heat):
                    each.take(orders, "anneal")

    def tastes(self) -> Iterator[Taste]:
        """The fixed ones, then random ones, wider and wider."""
        yield from _TASTES
        rng, widest = self.rng, 100.0
        while True:
            widest *= 1.1
            memory, depth = rng.choice([0.0, -0.02, -0.05, -0.2]), rng.choice([0.0, -0.02, -0.05, -0.1])
            width = math.exp(rng.uniform(math.log(_TASTES[0].width), math.log(widest)))
            yield Taste(int(width), float(memory), float(depth), int(rng.choice([0, 1, 3])))

    def begin(self, each: Try, until: float) -> None:
        """Take what is simple, the automatic schedules of Zero Bubble, and the library, until so much is spent.

        Something is found in any case: what runs one microbatch after the other.
        """
        problem = each.problem
        each.take(problem.one_by_one, "climb")
        self.effort.spend(each.tasks * _RUN)
        each.climb = Climb(problem, self.effort, self.rng, self.effort.seconds * _SIMPLE / len(self.tries))
        each.take(each.climb.orders, "climb")
        part = self.effort.part(self.effort.seconds * _IN_WAVES / len(self.tries))
        each.take(waves(problem, part), "waves")
        linear, units = problem.placement == Placement.linear(problem.meshes), each.tasks * _PUBLISHED * 8
        if linear and len(problem.kinds) > 2 and seconds_of(1, units) < max(self.effort.left, _CHEAP):
            self.effort.spend(units)
            each.take(best_orders(problem), "published")
        for made in published(problem.placement, problem.microbatches, each.costs):
            each.take(problem.orders(made), "published")
            self.effort.spend(each.tasks * _PUBLISHED)
            if not each.beats(self.best.value) or self.effort.spent > until:
                return

    def prove(self, each: Try) -> None:
        """Raise the bound of a try by what each of its meshes can do alone."""
        problem = each.problem
        left = self.effort.seconds * _PROOF / len(self.tries)
        for mesh in reversed(range(problem.meshes)):
            share = left / (mesh + 1)
            # It takes a step for each of its tasks at least.
            is_worth_it = each.beats(self.best.value) and share > seconds_of(each.tasks // problem.meshes, 0)
            if is_worth_it and self.effort.left:
                part = self.effort.part(share)
                each.bound = max(each.bound, alone(problem, mesh, part, self.best.value))
                left -= part.spent

    def grow(self, each: Try, taste: Taste, number: int) -> bool:
        """Search with one beam, and climb for as long; whether anything is left.

        Where there are many microbatches, every other time only a few are scheduled, and their steady state repeated.
        """
        problem, microbatches = each.problem, each.problem.microbatches
        few = problem.meshes + 2 + int(self.rng.integers(problem.meshes + 3))
        width = affordable(problem, self.effort.left / 2, taste.width)
        short = few < microbatches and (number % 2 == 0 or width < _NARROW)
        if short:
            problem = problem.with_microbatches(few)
            width = affordable(problem, self.effort.left / 2, taste.width)
        if width >= _NARROW:
            found = Beam(problem, replace(taste, width=width), self.effort, math.inf if short else each.value).run()
            each.take(repeat(problem, found, microbatches, self.effort) if found and short else found, "beam")
        if each.climb:
            each.take(each.climb.climb(self.effort.seconds * _IN_RULES), "climb")
        return self.effort.left > self.for_annealing
