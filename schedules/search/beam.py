"""A beam search that builds schedules task by task, many at a time.

A state is a partial run. It is continued by the rule of Giffler and Thompson ("Algorithms for solving
production-scheduling problems", Operations Research 8, 1960). The rule takes the task that would end first, of all
tasks that could be next. Only tasks of the same mesh that could start before that end compete with it.

If memory is tight, that rule is not enough. The best schedules then let a mesh wait although a forward could run (V-Min
and V-Half, arXiv 2405.15362). So a forward can also be held back until its mesh has run another task.

Of all next states the beam keeps the best, by a lower bound on their objective and by a few weights that break ties.
All states are rows of arrays, so that a thousand states cost little more than ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.problem import Problem
from jaxpp.schedules.search.bounds import least_memory
from jaxpp.schedules.search.effort import Effort, seconds_of
from jaxpp.schedules.search.states import Flags, Floats, Ints, Outlook, States


@dataclass(frozen=True)
class Taste:
    """The width of a beam and its weights for ties, in average task times. Different weights find different schedules.

    Attributes:
        width: the number of states that are kept.
        memory: the weight of each microbatch that a mesh keeps. Below 0 it prefers runs with many microbatches in
            flight.
        depth: the weight of each forward, times the relative depth of its stage. Below 0 it prefers runs with forwards
            of late stages.
        alike: the number of kept states with equal counts of tasks of each type; 0 for any number.
    """

    width: int
    memory: float = 0.0
    depth: float = 0.0
    alike: int = 0


def affordable(problem: Problem, seconds: float, width: int) -> int:
    """Returns the widest beam, up to `width`, that `seconds` allow."""
    steps = problem.types * problem.microbatches
    while width and seconds_of(steps, _BRANCHES * width * problem.types) > seconds:
        width = width * 3 // 4
    return width


_BRANCHES: Final = 2.5
"""The average number of next states per state."""

_IDLE: Final = 0.01
"""The weight of idle time of a mesh for ties: less than a later end."""


class Beam:
    """A beam search on one problem.

    Args:
        problem: the problem to solve.
        taste: the width of the beam and the weights for ties.
        effort: the budget.
        below: the search only looks for schedules below this value.
    """

    def __init__(self, problem: Problem, taste: Taste, effort: Effort, below: float = math.inf) -> None:
        self.problem, self.taste, self.effort, self.below = problem, taste, effort, below
        self.outlook = outlook = Outlook(problem)
        self.mesh_of, self.times, self.delays, self.unit = outlook.mesh_of, outlook.times, outlook.delays, outlook.unit
        self.needs, self.memory = np.array(problem.needs), np.array(problem.memory)
        count = problem.types
        self.users = np.full((count, 2), -1)
        for each, users in enumerate(problem.users):
            self.users[each, : len(users)] = users
        self.competitors = np.full((problem.meshes, max(map(len, problem.types_of))), -1)
        for mesh, types in enumerate(problem.types_of):
            self.competitors[mesh, : len(types)] = types
        # Random numbers tell states apart, as a hash would.
        self.marks = np.random.default_rng(0).normal(size=(3, count))
        self.depths = np.arange(problem.stages) / problem.stages
        self.whole = np.array(least_memory(problem)) + TOLERANCE

    def run(self) -> list[list[int]] | None:
        """Returns the best orders; None if no orders are below the limit, or the effort is spent."""
        states = self._start()
        # ends[state, type, microbatch], with a last column that stays infinite.
        ends = np.full((1, self.problem.types, self.problem.microbatches + 1), np.inf)
        steps: list[tuple[Ints, Ints]] = []
        for _ in range(self.problem.types * self.problem.microbatches):
            parents, types, starts, held = self._branches(states)
            if not len(parents) or not self.effort.spend(len(parents) * self.problem.types):
                return None
            states = self._children(states, ends, parents, types, starts, held)
            chosen = self._best(states)
            if not len(chosen):
                return None
            parents, types = parents[chosen], types[chosen]
            states, rows = states[chosen], np.arange(len(chosen))
            ends = ends[parents]
            ends[rows, types, states.counts[rows, types] - 1] = (starts[chosen] + self.times[types])[rows]
            steps.append((parents, types))
        return self._trace(states, steps)

    def _start(self) -> States:
        problem = self.problem
        types, meshes = (1, problem.types), (1, problem.meshes)
        arrivals = np.full(types, np.inf)
        arrivals[0, 0] = 0.0
        nothing = np.zeros(types, bool)
        loads = np.array([problem.loads])
        unknown = np.full(meshes, np.inf)
        return States(
            np.zeros(types, np.int64), np.zeros(meshes), unknown, np.zeros(meshes), loads, arrivals, nothing, nothing
        )

    def _branches(self, states: States) -> tuple[Ints, Ints, Floats, Flags]:
        """Returns for each next state the row of its parent, the type that runs, its start, and the held types."""
        able = np.isfinite(states.arrivals) & ~states.blocked
        earliest = np.where(able, np.maximum(states.clocks[:, self.mesh_of], states.arrivals), np.inf)
        rows, held = np.arange(len(earliest)), states.held
        found: list[tuple[Ints, Ints, Floats, Flags]] = []
        while len(rows):
            starts = np.where(held, np.inf, earliest[rows])
            first = (starts + self.times).argmin(1)
            soonest = starts[np.arange(len(first)), first] + self.times[first]
            alive = np.isfinite(soonest)
            rows, held, starts, first, soonest = rows[alive], held[alive], starts[alive], first[alive], soonest[alive]
            which, types = self._competing(starts, first, soonest, states.arrivals[rows])
            elsewhere = self.mesh_of[None] != self.mesh_of[types][:, None]
            found.append((rows[which], types, starts[which, types], held[which] & elsewhere))
            # The rule is repeated with the forward held back.
            forward = first < self.problem.stages
            rows, held, first = rows[forward], held[forward].copy(), first[forward]
            held[np.arange(len(first)), first] = True
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 0), bool)
        parents, types, starts, held = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return parents, types, starts, held

    def _competing(self, starts: Floats, first: Ints, soonest: Floats, arrivals: Floats) -> tuple[Ints, Ints]:
        """Returns (row, type) for each type that could start on the mesh of `first` before `first` ends."""
        types = self.competitors[self.mesh_of[first]]
        safe = np.maximum(types, 0)
        competes = (types >= 0) & (np.take_along_axis(starts, safe, 1) < soonest[:, None] - TOLERANCE * self.unit)
        # Of several weight gradients only the one that has waited longest competes, because no task waits for them.
        weights = competes & (types >= 2 * self.problem.stages)
        waited = np.where(weights, np.take_along_axis(arrivals, safe, 1), np.inf).argmin(1)
        some = np.flatnonzero(weights.any(1))
        competes &= ~weights
        competes[some, waited[some]] = True
        rows, columns = np.nonzero(competes)
        return rows, types[rows, columns]

    def _children(
        self, states: States, ends: Floats, parents: Ints, types: Ints, starts: Floats, held: Flags
    ) -> States:
        """Returns the states after one more task."""
        problem, rows = self.problem, np.arange(len(parents))
        found, meshes, done = states[parents], self.mesh_of[types], starts + self.times[types]
        number = found.counts[rows, types]
        found.counts[rows, types] += 1
        found.clocks[rows, meshes] = done
        found.started[rows, meshes] = np.minimum(found.started[rows, meshes], starts)
        found.kept[rows, meshes] += self.memory[types]
        found.loads[rows, meshes] -= self.times[types]
        need = self.needs[types]
        arrival = np.where(need < 0, 0.0, ends[parents, need, number + 1] + self.delays[types])
        found.arrivals[rows, types] = np.where(number + 1 < problem.microbatches, arrival, np.inf)
        for users in self.users[types].T:
            waits = (users >= 0) & (found.counts[rows, users] == number)
            found.arrivals[rows[waits], users[waits]] = done[waits] + self.delays[users[waits]]
        found.held = held
        found.blocked = held.copy()
        found.blocked[:, : problem.stages] |= ~self.outlook.fits(found)
        return found

    def _best(self, states: States) -> Ints:
        """Returns the rows to keep, the best first."""
        starts, value, lost = self.outlook.bound(states)
        taste = self.taste
        score = (value + _IDLE * lost) / self.unit + taste.memory * (states.kept / self.whole).sum(1)
        score += taste.depth * (states.counts[:, : self.problem.stages] @ self.depths)
        good = value < self.below - TOLERANCE * self.unit
        order = np.argsort(score, kind="stable")
        order = order[good[order]]
        numbers, times, flags = self.marks
        alike = states.counts @ numbers
        same = alike + np.where(np.isfinite(starts), starts, -1.0) @ times / self.unit + states.blocked @ flags
        order = order[_first(np.round(same[order], 6), 1)]
        if taste.alike:
            order = order[_first(np.round(alike[order], 6), taste.alike)]
        return order[: taste.width]

    def _trace(self, states: States, steps: list[tuple[Ints, Ints]]) -> list[list[int]]:
        """Returns the orders of the best state at the end."""
        spans = states.clocks if self.problem.objective == "makespan" else states.clocks - states.started
        row = int(spans.max(1).argmin())
        orders: list[list[int]] = [[] for _ in range(self.problem.meshes)]
        for parents, types in reversed(steps):
            orders[self.problem.mesh_of[types[row]]].append(int(types[row]))
            row = parents[row]
        return [order[::-1] for order in orders]


def _first(keys: Floats, most: int) -> Ints:
    """Returns the positions of the first `most` of each key, in order."""
    order = np.argsort(keys, kind="stable")
    fresh = np.concatenate([[True], keys[order][1:] != keys[order][:-1]]) if len(keys) else np.zeros(0, bool)
    positions = np.arange(len(keys))
    rank = positions - np.maximum.accumulate(np.where(fresh, positions, 0))
    return np.sort(order[rank < most])
