"""The search for a schedule: published ones first, then beam searches and annealing, until the effort is spent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from random import Random
from typing import Final

import numpy as np

from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import MemoryLimits, Release
from jaxpp.schedules.engine.problem import OBJECTIVES, Limits, Objective, Orders, Problem, make_problem
from jaxpp.schedules.errors import ScheduleError, check_size, one_of, true_or_false, whole_number
from jaxpp.schedules.library.zero_bubble_auto import best_orders
from jaxpp.schedules.model.task import Placement
from jaxpp.schedules.model.values import positive
from jaxpp.schedules.search.alone import alone
from jaxpp.schedules.search.anneal import anneal_orders
from jaxpp.schedules.search.beam import Beam, Taste, affordable
from jaxpp.schedules.search.bounds import least_memory, lower_bound
from jaxpp.schedules.search.branches import search_branches
from jaxpp.schedules.search.candidates import placements, published
from jaxpp.schedules.search.effort import Effort, seconds_of
from jaxpp.schedules.search.found import Found, found_by, memory_limits
from jaxpp.schedules.search.history import History, ProgressCallback
from jaxpp.schedules.search.rules import by_rules
from jaxpp.schedules.search.waves import waves

_TASTES: Final = (
    Taste(30),
    Taste(30, memory=-0.05, depth=-0.05),
    Taste(60, memory=-0.05, alike=1),
    Taste(60, alike=1),
    Taste(100, memory=-0.05, depth=-0.05),
    Taste(1000, memory=-0.05, alike=1),
    Taste(1000, memory=-0.05, alike=4),
)
"""The first beams on every placement; random ones follow. The best of them differs from problem to problem.

The last two are wide. If memory is tight, the best orders look bad for long. In the first of these two, no two states
have the same counts. In the second, a few states may. By then only states remain that may be better than the best
schedule.
"""

_NARROW: Final = 8
"""The least width of a beam that is worth its effort."""

_PUBLISHED: Final = 100
"""The units of effort to make a task of a published schedule."""

_RUN: Final = 15
"""The units of effort to run a task."""

_SIMPLE: Final = 0.5
"""The share of the effort that the initial rules of the list scheduler may spend."""

_CHEAP: Final = 0.1
"""The seconds that the automatic scheduler may always take, even if less is left."""

_IN_WAVES: Final = 0.05
"""The share of the effort that periodic orders (`waves`) may spend."""

_PROOF: Final = 0.2
"""The share of the effort that better lower bounds may spend."""

_ANNEALED: Final = 0.5
"""The share of the effort that is reserved for annealing."""

_ROUND: Final = 3e-3
"""The least seconds per task of a round of annealing, if another round follows."""

_FAR: Final = 2.5e-4
"""The least seconds per task and microbatch of a round: in long orders cells have further to move."""

_ROUNDS: Final = 16
"""The most rounds of annealing."""

_HEATS: Final = (1.0, 4.0, 2.0, 0.5, 8.0)
"""The initial temperatures of the rounds that start from the best orders, in turn."""

_RUNS: Final = 500
"""The least number of runs of all tasks for which annealing is worth its effort."""


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
    """Searches for the best schedule within a memory limit.

    The search starts from the published schedules that fit, and from the automatic scheduler of Zero Bubble. It then
    builds schedules with a list scheduler (`jaxpp.schedules.search.rules`), with timetables
    (`jaxpp.schedules.search.waves`) and with beam searches (`jaxpp.schedules.search.beam`), and anneals the best of
    them (`jaxpp.schedules.search.anneal`).

    It stops when its effort is spent, or the lower bound is reached (`jaxpp.schedules.search.bounds`,
    `jaxpp.schedules.search.alone`).

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        costs: of tasks and hops; by default a forward, an input gradient and a weight gradient of a mesh take 1 each.
            Of lists for more stages than a placement has, neighbours are added.
        memory_limit: how many microbatches' activations a mesh may keep; a number, or one per mesh.
        placement: "linear", "v", "looped", "waves", "any" (the search chooses), or a `Placement` with one mesh for each
            stage. Graphs of stages and stages on several meshes are possible, too. For these the search improves the
            best of the list scheduler's orders and, for a chain, of the published schedules. Microbatches alternate
            between the meshes of a stage, and move if that gains.
        chunks: stages per mesh; None: the search chooses, if a placement leaves a choice.
        released_at: when activations are released: "W", "B" or "half", see `Report.peak_activations`.
        memory_bytes: the limit in the bytes of the costs instead; a number, or one per mesh.
        objective: "makespan" or "longest_stage", see `Report`.
        split_backward: whether input and weight gradients are tasks of their own.
        seconds: what to spend: the work of an average core in that time. The work is counted, so that the same
            arguments find the same schedule on every machine.
        seed: of the random choices.
        progress: called now and then with the share of the time that is spent, the best value and the lower bound.

    Raises:
        ScheduleError: an argument is wrong, or no schedule fits the memory. The message has the least memory.
    """
    meshes = whole_number(meshes, "meshes", least=1)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    check_size("search", meshes=meshes, microbatches=microbatches)
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
    return found_by(best.problem.schedule("search", best.orders), running.history)


def _check_memory(problem: Problem, memory: MemoryLimits) -> None:
    """Checks that some schedule fits.

    Raises:
        ScheduleError: no schedule fits. The message has a mesh and the least memory that it needs.
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
        self.orders: Orders = []
        self.value = math.inf
        self.found: dict[str, tuple[float, Orders]] = {}

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return self.problem.types * self.problem.microbatches

    def take(self, orders: Orders | None, source: str) -> None:
        """Keeps orders that fit if they are better than all others, or than all others of the same source."""
        if orders and self.problem.fits(orders):
            value = self.problem.value(orders)
            if value < self.found.get(source, (math.inf,))[0]:
                self.found[source] = value, orders
            if value < self.value * (1 - TOLERANCE):
                self.orders, self.value = orders, value

    def beats(self, value: float) -> bool:
        """Whether there may be a schedule that is better than `value` and than the best one here."""
        return self.bound < min(value, self.value) * (1 - TOLERANCE)


class Running:
    """One search: its tries, and its effort."""

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
        """A lower bound for the schedules of all tries."""
        return min(min(each.bound for each in self.tries), self.best.value)

    @property
    def for_annealing(self) -> float:
        """The effort that is reserved for annealing."""
        least = seconds_of(_RUNS, max(each.tasks for each in self.tries))
        share = self.effort.seconds * _ANNEALED
        return share if share > least else 0.0

    def run(self) -> Try:
        """Searches until no schedule can be better, or the effort is spent."""
        for number, each in enumerate(self.tries):
            if self.effort.left or not number:
                self.begin(each, until=self.effort.seconds / 2 * (number + 1) / len(self.tries))
        for each in self.tries:
            self.prove(each)
        for number, taste in enumerate(self.tastes()):
            rest = [each for each in self.tries if each.beats(self.best.value)]
            # Whenever as many beams have been tried as there are fixed ones, the worse half of the placements is
            # dropped.
            rest.sort(key=lambda each: each.value)
            left = len(rest) >> (number // len(_TASTES))
            if not any([self.grow(each, taste) for each in rest[: max(1, left)]]):
                break
        if self.for_annealing:
            self.anneal(self.best)
        return self.best

    def anneal(self, each: Try) -> None:
        """Anneals the best orders, and in turn the best orders of each source.

        The best start does not always lead to the best result.
        """
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
        """Yields the fixed beams, then random ones, wider and wider."""
        yield from _TASTES
        rng, widest = self.rng, 100.0
        while True:
            widest *= 1.1
            memory, depth = rng.choice([0.0, -0.02, -0.05, -0.2]), rng.choice([0.0, -0.02, -0.05, -0.1])
            width = math.exp(rng.uniform(math.log(_TASTES[0].width), math.log(widest)))
            yield Taste(int(width), float(memory), float(depth), int(rng.choice([0, 1, 3])))

    def begin(self, each: Try, until: float) -> None:
        """Takes the first schedules: simple rules, the automatic scheduler of Zero Bubble, and the library.

        It stops when the effort has reached `until`. The order that runs one microbatch after another is taken in any
        case.
        """
        problem = each.problem
        each.take(problem.one_by_one, "rules")
        self.effort.spend(each.tasks * _RUN)
        share = self.effort.seconds / len(self.tries)
        each.take(by_rules(problem, self.effort.part(share * _SIMPLE)), "rules")
        each.take(waves(problem, self.effort.part(share * _IN_WAVES)), "waves")
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
        """Raises the lower bound of a try by the bounds of its single meshes."""
        problem = each.problem
        left = self.effort.seconds * _PROOF / len(self.tries)
        for mesh in reversed(range(problem.meshes)):
            share = left / (mesh + 1)
            # A mesh needs at least one step for each of its tasks.
            is_worth_it = each.beats(self.best.value) and share > seconds_of(each.tasks // problem.meshes, 0)
            if is_worth_it and self.effort.left:
                part = self.effort.part(share)
                each.bound = max(each.bound, alone(problem, mesh, part, self.best.value))
                left -= part.spent

    def grow(self, each: Try, taste: Taste) -> bool:
        """Searches with one beam, and returns whether effort for more is left."""
        width = affordable(each.problem, self.effort.left / 2, taste.width)
        if width < _NARROW:
            return False
        each.take(Beam(each.problem, replace(taste, width=width), self.effort, each.value).run(), "beam")
        return self.effort.left > self.for_annealing
