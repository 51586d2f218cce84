"""A list scheduler with priorities and in-flight limits per stage, and hill climbing over these rules.

This is fast for problems of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from jaxpp.schedules.engine.dispatch import Dispatch
from jaxpp.schedules.engine.problem import Orders, Problem
from jaxpp.schedules.search.effort import Effort

_UNITS = 50
"""The units of effort to dispatch a task."""


@dataclass(frozen=True)
class _Rules:
    ranks: tuple[float, ...]
    caps: tuple[int, ...]


class Climb:
    """The best rules so far, and their orders.

    Args:
        problem: the problem to solve.
        effort: the budget.
        rng: the source of the random choices.
        seconds: the part of the effort that the initial rules may spend.
    """

    def __init__(self, problem: Problem, effort: Effort, rng: np.random.Generator, seconds: float = math.inf) -> None:
        self.problem, self.effort, self.rng = problem, effort, rng
        self.value, self.orders = math.inf, problem.one_by_one
        self.rules = _Rules((0.0,) * problem.types, (problem.microbatches,) * problem.stages)
        self.begin(effort.spent + seconds)

    def begin(self, until: float) -> None:
        """Tries simple rules until `effort.spent` is `until`.

        The rules rank the kinds in any order, and later stages first. The in-flight limits are none at all, or the
        limits of 1F1B.
        """
        stages, microbatches = self.problem.stages, self.problem.microbatches
        for kinds in permutations(range(len(self.problem.kinds))):
            later = [kind - (stage + 1) / (stages + 1) for kind in kinds for stage in range(stages)]
            for caps in ([microbatches] * stages, [stages - stage for stage in range(stages)]):
                if self.effort.spent >= until or not self.attempt(_Rules(tuple(later), tuple(caps))):
                    return

    def attempt(self, rules: _Rules) -> bool:
        """Takes these rules if they are no worse. Returns whether the effort was enough to evaluate them."""
        problem = self.problem
        if not self.effort.left or not self.effort.spend(problem.types * problem.microbatches * _UNITS):
            return False
        orders = dispatch(problem, rules.ranks, rules.caps)
        value = problem.value(orders)
        if value <= self.value:
            self.rules, self.value, self.orders = rules, value, orders
        return True

    def climb(self, seconds: float) -> Orders:
        """Changes the rules for `seconds`, and returns the best orders."""
        until = self.effort.spent + seconds
        while self.effort.spent < until and self.attempt(self.changed()):
            pass
        return self.orders

    def changed(self) -> _Rules:
        """Returns the best rules with one random change."""
        rng, problem = self.rng, self.problem
        ranks, caps = list(self.rules.ranks), list(self.rules.caps)
        most = problem.microbatches
        choice = rng.random()
        if choice < 0.4:
            stage = int(rng.integers(problem.stages))
            caps[stage] = int(np.clip(caps[stage] + rng.choice([-2, -1, 1, 2]), 1, most))
        elif choice < 0.6:
            # The limits fall linearly from the first stage to the last, because deep stages need fewer microbatches in
            # flight.
            first, last = sorted(rng.integers(1, min(most, 3 * problem.stages) + 1, 2))
            caps = [int(each) for each in np.linspace(last, first, problem.stages).round()]
        else:
            mesh = int(rng.integers(problem.meshes))
            one, other = rng.choice(problem.types_of[mesh], 2)
            ranks[one], ranks[other] = ranks[other], ranks[one]
        return _Rules(tuple(ranks), tuple(caps))


def dispatch(problem: Problem, ranks: Sequence[float], caps: Sequence[int]) -> list[list[int]]:
    """Returns the orders of a list scheduler: a free mesh starts the type of lowest rank that is ready and fits.

    It never gets stuck, because each mesh always leaves enough memory for the oldest microbatch.

    Args:
        problem: the problem to solve.
        ranks: the rank of each type.
        caps: for each stage the most microbatches between its forward and the end of its backward, at least 1.
    """
    run = _WithinMemory(problem, ranks, caps)
    run.run()
    return [[each for each, _ in order] for order in run.orders]


class _WithinMemory(Dispatch):
    def __init__(self, problem: Problem, ranks: Sequence[float], caps: Sequence[int]) -> None:
        homes = [[mesh] * problem.microbatches for mesh in problem.mesh_of]
        super().__init__(problem.times, problem.delays, problem.users, homes, problem.meshes, {})
        self.problem, self.ranks, self.caps = problem, ranks, caps
        # The lowest rank comes first, so that later types need no memory check.
        self.ready = [dict(sorted(heaps.items(), key=lambda item: ranks[item[0]])) for heaps in self.ready]
        self.counts = [0] * problem.types
        self.kept = [0.0] * problem.meshes

    def priority(self, each: int, microbatch: int) -> float:
        return self.ranks[each]

    def started(self, mesh: int, each: int) -> None:
        self.counts[each] += 1
        self.kept[mesh] += self.problem.memory[each]

    def fits(self, mesh: int, each: int) -> bool:
        """Whether a forward fits and leaves room for the oldest microbatch, as in a beam search."""
        problem, counts = self.problem, self.counts
        if each >= problem.stages:
            return True
        size, limit = problem.memory[each], problem.rooms[mesh]
        last = each + problem.types - problem.stages
        if self.kept[mesh] + size > limit or counts[each] - counts[last] >= self.caps[each]:
            return False
        forwards = problem.placement.stages_of(mesh)
        oldest = min([counts[forward] for forward in forwards])
        if counts[each] == oldest:
            return True
        ahead = sum(
            problem.memory[forward] * max(1, counts[forward] - oldest + (counts[forward] == oldest))
            for forward in forwards
        )
        return ahead + size <= limit
