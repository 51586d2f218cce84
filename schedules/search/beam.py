"""Construction of schedules, task after task, many at a time: a beam search over the decisions of a run.

A state is a run that has got somewhere. It goes on by the rule of Giffler and Thompson ("Algorithms for solving
production-scheduling problems", Operations Research 8, 1960): of all tasks that could be next, take the one that would
end first; only tasks of its mesh that could start before that end compete with it. Where memory is tight that is not
enough, as the best schedules let a mesh wait although a forward could run (V-Min and V-Half, arXiv 2405.15362): a
forward can also be held back until its mesh has run something else.

Of all next states the best are kept, by a lower bound on what they can come to and by a few weights that break ties.
All states are rows of arrays, so that a thousand cost little more than ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.search.effort import Effort, seconds_of
from jaxpp.schedules.search.problem import TOLERANCE, Problem

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_FAR: Final = 1e7
"""Longer than any schedule, in average tasks; small enough that sums of it stay exact to `TOLERANCE`."""


@dataclass(frozen=True)
class Taste:
    """How a beam breaks ties, in average task times; beams of another taste find other schedules.

    Attributes:
        width: states that are kept.
        memory: for each microbatch that a mesh keeps: below 0, runs that have many in flight are ahead.
        depth: for each forward, times how far up its stage is: below 0, runs that are far up are ahead.
        alike: states with the same number of tasks of each type that are kept; 0 for any number.
    """

    width: int
    memory: float = 0.0
    depth: float = 0.0
    alike: int = 0


def affordable(problem: Problem, seconds: float, width: int) -> int:
    """The widest beam, up to `width`, that so many seconds allow."""
    steps = problem.types * problem.microbatches
    while width and seconds_of(steps, _BRANCHES * width * problem.types) > seconds:
        width = width * 3 // 4
    return width


_BRANCHES: Final = 2.5
"""Next states for each state, on average."""

_IDLE: Final = 0.01
"""What time that a mesh has lost counts, for a tie: less than a later end."""


@dataclass(slots=True)
class _States:
    """Runs that have the same number of tasks; a row of each array is a run.

    Attributes:
        counts: tasks of each type so far.
        clocks: when each mesh is free.
        started: when each mesh started its first task; infinite before.
        kept: memory of each mesh.
        loads: work that each mesh has left.
        arrivals: for each type when the input of its next task is there; infinite as long as nobody knows.
        held: types that are held back until their mesh has run something else.
        blocked: those, and those that do not fit the memory.
    """

    counts: Ints
    clocks: Floats
    started: Floats
    kept: Floats
    loads: Floats
    arrivals: Floats
    held: Flags
    blocked: Flags

    def __getitem__(self, rows: Ints) -> _States:
        return _States(*(getattr(self, each.name)[rows] for each in fields(self)))


class Beam:
    """A beam search on one problem.

    Args:
        problem: to solve.
        taste: how states are compared.
        effort: what it may cost.
        below: only better schedules than this are looked for.
    """

    def __init__(self, problem: Problem, taste: Taste, effort: Effort, below: float = math.inf) -> None:
        self.problem, self.taste, self.effort, self.below = problem, taste, effort, below
        stages, count = problem.stages, problem.types
        self.mesh_of, self.times = np.array(problem.mesh_of), np.array(problem.times)
        self.needs, self.delays = np.array(problem.needs), np.array(problem.delays)
        self.memory, self.limits = np.array(problem.memory), np.array(problem.limits)
        self.sizes, self.homes = self.memory[:stages], self.mesh_of[:stages]
        self.unit = float(self.times.mean())
        self.users = np.full((count, 2), -1)
        for each, users in enumerate(problem.users):
            self.users[each, : len(users)] = users
        self.competitors = np.full((problem.meshes, max(map(len, problem.types_of))), -1)
        for mesh, types in enumerate(problem.types_of):
            self.competitors[mesh, : len(types)] = types
        self.by_mesh, self.by_home = _Groups(self.mesh_of), _Groups(self.homes)
        self.chain = np.array(problem.chain)
        self.chain_times = np.concatenate([[0.0], np.cumsum(self.times[self.chain][:-1] + self.delays[self.chain][1:])])
        self.tails = _tails(problem)
        # Random numbers tell states apart, as a hash would.
        self.marks = np.random.default_rng(0).normal(size=(3, count))
        self.depths = np.arange(stages) / stages

    def run(self) -> list[list[int]] | None:
        """The best orders found; None where none is below the bound, or the effort is used up."""
        states = self._start()
        # ends[state, type, microbatch], with a column that stays empty.
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

    def _start(self) -> _States:
        problem = self.problem
        types, meshes = (1, problem.types), (1, problem.meshes)
        arrivals = np.full(types, np.inf)
        arrivals[0, 0] = 0.0
        nothing = np.zeros(types, bool)
        loads = np.array([problem.loads])
        unknown = np.full(meshes, np.inf)
        return _States(
            np.zeros(types, np.int64), np.zeros(meshes), unknown, np.zeros(meshes), loads, arrivals, nothing, nothing
        )

    def _branches(self, states: _States) -> tuple[Ints, Ints, Floats, Flags]:
        """For each next state: the row of the one before it, the type that it runs, when, and what is held then."""
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
            # The same once more, with a forward held back.
            forward = first < self.problem.stages
            rows, held, first = rows[forward], held[forward].copy(), first[forward]
            held[np.arange(len(first)), first] = True
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 0), bool)
        parts = list(zip(*found, strict=True))
        return (
            np.concatenate(parts[0]),
            np.concatenate(parts[1]),
            np.concatenate(parts[2]),
            np.concatenate(parts[3]),
        )

    def _competing(self, starts: Floats, first: Ints, soonest: Floats, arrivals: Floats) -> tuple[Ints, Ints]:
        """(row, type) for each type that could start on the mesh of `first` before that one ends."""
        types = self.competitors[self.mesh_of[first]]
        safe = np.maximum(types, 0)
        competes = (types >= 0) & (np.take_along_axis(starts, safe, 1) < soonest[:, None] - TOLERANCE * self.unit)
        # Of several weight gradients the one that has waited for longest: nobody waits for them.
        weights = competes & (types >= 2 * self.problem.stages)
        waited = np.where(weights, np.take_along_axis(arrivals, safe, 1), np.inf).argmin(1)
        some = np.flatnonzero(weights.any(1))
        competes &= ~weights
        competes[some, waited[some]] = True
        rows, columns = np.nonzero(competes)
        return rows, types[rows, columns]

    def _children(
        self, states: _States, ends: Floats, parents: Ints, types: Ints, starts: Floats, held: Flags
    ) -> _States:
        """The states behind one more task."""
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
        found.blocked[:, : problem.stages] |= ~self._fits(found)
        return found

    def _fits(self, states: _States) -> Flags:
        """Whether another forward of each stage fits, and leaves room for the oldest microbatch to get through.

        That one needs all its forwards on a mesh before any of the mesh's microbatches behind it gives memory back.
        """
        forwards = states.counts[:, : self.problem.stages]
        oldest = self.by_home.least(forwards)[:, self.homes]
        younger = self.by_home.sum((forwards - oldest) * self.sizes)[:, self.homes]
        lacking = self.by_home.sum((forwards == oldest) * self.sizes)[:, self.homes]
        limits = self.limits[self.homes] + TOLERANCE
        safe = (forwards == oldest) | (younger + lacking + self.sizes <= limits)
        return safe & (states.kept[:, self.homes] + self.sizes <= limits)

    def _best(self, states: _States) -> Ints:
        """The rows to keep, the best first."""
        starts, value, lost = self._bound(states)
        taste = self.taste
        score = (value + _IDLE * lost) / self.unit + taste.memory * states.kept.sum(1)
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

    def _bound(self, states: _States) -> tuple[Floats, Floats, Floats]:
        """For each state: bounds on the next start of each type, on the objective, and the times of all meshes."""
        done = states.counts >= self.problem.microbatches
        known = np.isfinite(states.arrivals) | done
        free = states.clocks[:, self.mesh_of]
        arrivals = np.where(done | ~known, 0.0, states.arrivals)
        after = np.where(states.blocked, np.inf, free)
        starts = self._earliest(known, arrivals, after)
        if states.blocked.any():
            # What is blocked waits at least for the end of another task of its mesh; that may be blocked elsewhere.
            for _ in range(2):
                others = np.where(states.blocked | done, np.inf, starts) + self.times
                after = np.where(states.blocked, np.maximum(free, self.by_mesh.least(others)[:, self.mesh_of]), free)
                starts = self._earliest(known, arrivals, after)
        starts[done] = np.inf
        first = self.by_mesh.least(starts)
        ends = np.where(states.loads > TOLERANCE * self.unit, first + states.loads, states.clocks)
        if self.problem.objective == "makespan":
            path = (np.where(done, 0.0, starts) + self.times + self.tails.max(1)).max(1)
            return starts, np.maximum(ends.max(1), path), ends.sum(1)
        began = np.where(np.isfinite(states.started), states.started, first)
        path = ((np.where(done, -_FAR * self.unit, starts) + self.times)[:, :, None] + self.tails).max(1)
        return starts, (np.maximum(ends, path) - began).max(1), ends.sum(1)

    def _earliest(self, known: Flags, arrivals: Floats, after: Floats) -> Floats:
        """For each type the earliest start of its next task, where it is not before `after`.

        Where the arrival is not known, the next task of the type before it in the chain has not run, and is the one
        that it waits for. So times pass along the chain, up to the next known arrival: a running maximum.
        """
        chain, stages = self.chain, self.problem.stages
        least = np.maximum(arrivals, after)
        parts = np.cumsum(known[:, chain], axis=1) * (_FAR * self.unit)
        along = np.maximum.accumulate(
            np.minimum(least[:, chain], _FAR / 2 * self.unit) - self.chain_times + parts, axis=1
        )
        along += self.chain_times - parts
        starts = np.empty_like(least)
        starts[:, chain] = np.where(along > _FAR / 4 * self.unit, np.inf, along)
        weights = slice(2 * stages, self.problem.types)
        own = starts[:, stages : 2 * stages] + self.times[stages : 2 * stages]
        if self.problem.types > 2 * stages:
            starts[:, weights] = np.maximum(np.where(known[:, weights], arrivals[:, weights], own), after[:, weights])
        return starts

    def _trace(self, states: _States, steps: list[tuple[Ints, Ints]]) -> list[list[int]]:
        """The orders of the best state at the end."""
        spans = states.clocks if self.problem.objective == "makespan" else states.clocks - states.started
        row = int(spans.max(1).argmin())
        orders: list[list[int]] = [[] for _ in range(self.problem.meshes)]
        for parents, types in reversed(steps):
            orders[self.problem.mesh_of[types[row]]].append(int(types[row]))
            row = parents[row]
        return [order[::-1] for order in orders]


class _Groups:
    """Columns put together by a number that each has."""

    def __init__(self, numbers: Ints) -> None:
        self.columns = np.argsort(numbers, kind="stable")
        self.heads = np.searchsorted(numbers[self.columns], np.arange(numbers.max() + 1))

    def least(self, values: NDArray[Any]) -> NDArray[Any]:
        """The least of each group, row by row."""
        return np.minimum.reduceat(values[:, self.columns], self.heads, axis=1)

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum of each group, row by row."""
        return np.add.reduceat(values[:, self.columns], self.heads, axis=1)


def _first(keys: Floats, most: int) -> Ints:
    """The positions of the first `most` of each key, in order."""
    order = np.argsort(keys, kind="stable")
    fresh = np.concatenate([[True], keys[order][1:] != keys[order][:-1]]) if len(keys) else np.zeros(0, bool)
    positions = np.arange(len(keys))
    rank = positions - np.maximum.accumulate(np.where(fresh, positions, 0))
    return np.sort(order[rank < most])


def _tails(problem: Problem) -> Floats:
    """For each type and mesh: the least time from its end to the end of what needs it there, or minus infinity."""
    tails = np.full((problem.types, problem.meshes), -np.inf)
    for each in [*range(2 * problem.stages, problem.types), *reversed(problem.chain)]:
        tails[each, problem.mesh_of[each]] = 0.0
        for user in problem.users[each]:
            tails[each] = np.maximum(tails[each], problem.delays[user] + problem.times[user] + tails[user])
    return tails
