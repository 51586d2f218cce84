"""A list scheduler with a rank for each type and an in-flight limit for each stage, and the best of its simple rules.

This is fast for problems of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations, product
from typing import Final

from jaxpp.schedules.engine.dispatch import Dispatch
from jaxpp.schedules.engine.problem import Orders, Problem
from jaxpp.schedules.search.effort import Effort

_UNITS: Final = 50
"""The units of effort to dispatch a task."""


def by_rules(problem: Problem, effort: Effort) -> Orders:
    """Returns the best orders of simple rules.

    The rules rank the kinds in any order, and later stages first. The in-flight limits are none at all, or the limits
    of 1F1B.
    """
    stages, most = range(problem.stages), problem.microbatches
    best, least = problem.one_by_one, math.inf
    limits = ([most] * len(stages), [len(stages) - stage for stage in stages])
    for kinds, caps in product(permutations(range(len(problem.kinds))), limits):
        if not effort.spend(problem.types * most * _UNITS):
            break
        ranks = [kind - (stage + 1) / (len(stages) + 1) for kind in kinds for stage in stages]
        orders = dispatch(problem, ranks, caps)
        value = problem.value(orders)
        if value <= least:
            best, least = orders, value
    return best


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
