"""Partial runs as rows of arrays, and lower bounds on their completions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.problem import Problem

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(slots=True)
class States:
    """Partial runs with the same number of tasks. A row of each array is a run.

    Attributes:
        counts: the tasks of each type that have run.
        clocks: when each mesh is free.
        started: when each mesh started its first task; infinite before.
        kept: the memory that each mesh keeps.
        loads: the work that each mesh has left.
        arrivals: for each type when the input of its next task arrives; infinite until that is known.
        held: types that wait until their mesh has run another task.
        blocked: held types, and types that do not fit the memory.
    """

    counts: Ints
    clocks: Floats
    started: Floats
    kept: Floats
    loads: Floats
    arrivals: Floats
    held: Flags
    blocked: Flags

    def __getitem__(self, rows: Ints) -> States:
        return States(*(getattr(self, each.name)[rows] for each in fields(self)))


class Outlook:
    """Lower bounds on the completions of partial runs.

    Args:
        problem: the problem that the runs solve.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.mesh_of, self.times, self.delays = map(np.array, (problem.mesh_of, problem.times, problem.delays))
        self.homes, self.sizes = self.mesh_of[: problem.stages], np.array(problem.memory[: problem.stages])
        self.rooms = np.array(problem.rooms)
        self.unit = float(self.times.mean())
        # A time longer than any schedule, and short enough that sums with it stay exact.
        self.far = 4 * self.unit * problem.types * (problem.microbatches + 1) + 4 * float(self.delays.sum())
        self.by_mesh, self.by_home = Groups(self.mesh_of), Groups(self.homes)
        self.chain = np.array(problem.chain)
        self.chain_times = np.concatenate([[0.0], np.cumsum(self.times[self.chain][:-1] + self.delays[self.chain][1:])])
        self.tails = problem.tails

    def fits(self, states: States) -> Flags:
        """Returns whether another forward of each stage fits, and leaves room for the oldest microbatch to finish.

        The oldest microbatch needs all its forwards on a mesh before any later microbatch of the mesh releases memory.
        """
        forwards = states.counts[:, : self.problem.stages]
        oldest = self.by_home.least(forwards)[:, self.homes]
        younger = self.by_home.sum((forwards - oldest) * self.sizes)[:, self.homes]
        lacking = self.by_home.sum((forwards == oldest) * self.sizes)[:, self.homes]
        rooms = self.rooms[self.homes]
        safe = (forwards == oldest) | (younger + lacking + self.sizes <= rooms)
        return safe & (states.kept[:, self.homes] + self.sizes <= rooms)

    def bound(self, states: States) -> tuple[Floats, Floats, Floats]:
        """Returns bounds on the next start of each type and on the objective, and the sum of the ends of all meshes.

        Each array has a row for each state.
        """
        done = states.counts >= self.problem.microbatches
        known = np.isfinite(states.arrivals) | done
        free = states.clocks[:, self.mesh_of]
        arrivals = np.where(done | ~known, 0.0, states.arrivals)
        after = np.where(states.blocked, np.inf, free)
        starts = self._earliest(known, arrivals, after)
        if states.blocked.any():
            # A blocked type waits at least for the end of another task of its mesh, which may wait for a blocked type
            # elsewhere.
            for _ in range(2):
                others = np.where(states.blocked | done, np.inf, starts) + self.times
                after = np.where(states.blocked, np.maximum(free, self.by_mesh.least(others)[:, self.mesh_of]), free)
                starts = self._earliest(known, arrivals, after)
        starts[done] = np.inf
        first = np.minimum(self.by_mesh.least(starts), self.far)
        ends = np.where(states.loads > TOLERANCE * self.unit, first + states.loads, states.clocks)
        late = np.where(done, -self.far, np.minimum(starts, self.far)) + self.times
        if self.problem.objective == "makespan":
            return starts, np.maximum(ends.max(1), (late + self.tails.max(1)).max(1)), ends.sum(1)
        began = np.where(np.isfinite(states.started), states.started, first)
        path = (late[:, :, None] + self.tails).max(1)
        return starts, (np.maximum(ends, path) - began).max(1), ends.sum(1)

    def _earliest(self, known: Flags, arrivals: Floats, after: Floats) -> Floats:
        """Returns for each type the earliest start of its next task, at `after` or later.

        If an arrival is unknown, the previous type of the chain has not yet run the task that this one waits for. So
        times propagate along the chain up to the next known arrival, as a running maximum.
        """
        chain, stages = self.chain, self.problem.stages
        least = np.maximum(arrivals, after)
        parts = np.cumsum(known[:, chain], axis=1) * (self.far)
        along = np.maximum.accumulate(np.minimum(least[:, chain], self.far / 2) - self.chain_times + parts, axis=1)
        along += self.chain_times - parts
        starts = np.empty_like(least)
        starts[:, chain] = np.where(along > self.far / 4, np.inf, along)
        weights = slice(2 * stages, self.problem.types)
        own = starts[:, stages : 2 * stages] + self.times[stages : 2 * stages]
        if self.problem.types > 2 * stages:
            starts[:, weights] = np.maximum(np.where(known[:, weights], arrivals[:, weights], own), after[:, weights])
        return starts


class Groups:
    """Groups of columns with the same number."""

    def __init__(self, numbers: Ints) -> None:
        self.columns = np.argsort(numbers, kind="stable")
        self.heads = np.searchsorted(numbers[self.columns], np.arange(numbers.max() + 1))

    def least(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the minimum of each group, row by row."""
        return np.minimum.reduceat(values[:, self.columns], self.heads, axis=1)

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the sum of each group, row by row."""
        return np.add.reduceat(values[:, self.columns], self.heads, axis=1)
