"""Orders by simple rules, what a mesh prefers and how far ahead each stage may run, and hill climbing over the rules.

This is fast for problems of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from jaxpp.schedules.dispatch import Dispatch
from jaxpp.schedules.problem import Orders, Problem
from jaxpp.schedules.search.effort import Effort

_UNITS = 50
"""What it costs to dispatch a task."""


@dataclass(frozen=True)
class _Rules:
    ranks: tuple[float, ...]
    caps: tuple[int, ...]


class Climb:
    """The best rules so far, and the orders that they lead to.

    Args:
        problem: to solve.
        effort: what it may cost.
        rng: makes the choices.
        seconds: of the effort, what may be spent on the rules that it begins with.
    """

    def __init__(self, problem: Problem, effort: Effort, rng: np.random.Generator, seconds: float = math.inf) -> None:
        self.problem, self.effort, self.rng = problem, effort, rng
        self.value, self.orders = math.inf, problem.one_by_one
        self.rules = _Rules((0.0,) * problem.types, (problem.microbatches,) * problem.stages)
        self.begin(effort.spent + seconds)

    def begin(self, until: float) -> None:
        """Simple rules: kinds in any order, later stages first, with memory as the only limit or like 1F1B."""
        stages, microbatches = self.problem.stages, self.problem.microbatches
        for kinds in permutations(range(len(self.problem.kinds))):
            later = [kind - (stage + 1) / (stages + 1) for kind in kinds for stage in range(stages)]
            for caps in ([microbatches] * stages, [stages - stage for stage in range(stages)]):
                if self.effort.spent >= until or not self.attempt(_Rules(tuple(later), tuple(caps))):
                    return

    def attempt(self, rules: _Rules) -> bool:
        """Take these rules if they are no worse; whether there was effort left to find out."""
        problem = self.problem
        if not self.effort.left or not self.effort.spend(problem.types * problem.microbatches * _UNITS):
            return False
        orders = dispatch(problem, rules.ranks, rules.caps)
        value = problem.value(orders)
        if value <= self.value:
            self.rules, self.value, self.orders = rules, value, orders
        return True

    def climb(self, seconds: float) -> Orders:
        """Change the rules for so long, and give the best orders."""
        until = self.effort.spent + seconds
        while self.effort.spent < until and self.attempt(self.changed()):
            pass
        return self.orders

    def changed(self) -> _Rules:
        """The rules with one thing changed."""
        rng, problem = self.rng, self.problem
        ranks, caps = list(self.rules.ranks), list(self.rules.caps)
        most = problem.microbatches
        choice = rng.random()
        if choice < 0.4:
            stage = int(rng.integers(problem.stages))
            caps[stage] = int(np.clip(caps[stage] + rng.choice([-2, -1, 1, 2]), 1, most))
        elif choice < 0.6:
            # A line from the first stage to the last, as deep in the pipeline less has to be in flight.
            first, last = sorted(rng.integers(1, min(most, 3 * problem.stages) + 1, 2))
            caps = [int(each) for each in np.linspace(last, first, problem.stages).round()]
        else:
            mesh = int(rng.integers(problem.meshes))
            one, other = rng.choice(problem.types_of[mesh], 2)
            ranks[one], ranks[other] = ranks[other], ranks[one]
        return _Rules(tuple(ranks), tuple(caps))


def dispatch(problem: Problem, ranks: Sequence[float], caps: Sequence[int]) -> list[list[int]]:
    """The orders of a run in which a free mesh starts, of what is there and fits the memory, the type of lowest rank.

    It always gets to its end, as of the memory of each mesh enough is left for the oldest microbatch.

    Args:
        problem: to solve.
        ranks: of each type.
        caps: for each stage the microbatches that may be between its forward and the end of its backward, at least 1.
    """
    run = _WithinMemory(problem, ranks, caps)
    run.run()
    return [[each for each, _ in order] for order in run.orders]


class _WithinMemory(Dispatch):
    def __init__(self, problem: Problem, ranks: Sequence[float], caps: Sequence[int]) -> None:
        homes = [[mesh] * problem.microbatches for mesh in problem.mesh_of]
        super().__init__(problem.times, problem.delays, problem.users, homes, problem.meshes, {})
        self.problem, self.ranks, self.caps = problem, ranks, caps
        # The best first, so that what comes behind it needs no look at the memory.
        self.ready = [dict(sorted(heaps.items(), key=lambda item: ranks[item[0]])) for heaps in self.ready]
        self.counts = [0] * problem.types
        self.kept = [0.0] * problem.meshes

    def priority(self, each: int, microbatch: int) -> float:
        return self.ranks[each]

    def started(self, mesh: int, each: int) -> None:
        self.counts[each] += 1
        self.kept[mesh] += self.problem.memory[each]

    def fits(self, mesh: int, each: int) -> bool:
        """Whether a forward fits, and leaves room for the oldest microbatch, as in a beam."""
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
