"""Simulated annealing of orders: a task on the critical path moves a few places, and what is not much worse is kept.

Or two neighbours change places, and likewise the same two of other microbatches. It brings what other searches have
found to where no simple rule leads. Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983); that
only moves on the critical path can gain: van Laarhoven, Aarts and Lenstra, "Job Shop Scheduling by Simulated
Annealing" (1992).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from random import Random
from typing import Final

from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.problem import Orders, Problem
from jaxpp.schedules.search.effort import Effort

_HOT: Final = 2e-3
"""By what share of the value a change may be worse at the beginning, on average."""

_COOLING: Final = 0.02
"""What of that is left in the end."""

_EARLY: Final = 0.02
"""What it is worth that meshes end early on average, in ends of the last one: it leads over plains of equal values."""

_ANYWHERE: Final = 0.1
"""The share of moves that do not begin on the critical path."""

_ALIKE: Final = 0.2
"""The share of moves that are made for many microbatches at once."""

_BATCH: Final = 64
"""Moves between two looks at the budget."""

_UNITS: Final = 6
"""What it costs to run a task."""

_MOVE: Final = 20
"""How many tasks could run in the time that it takes to choose a move."""


_Row = list[tuple[int, int]]
"""The tasks of a mesh in order: type and microbatch."""


def anneal(problem: Problem, orders: Orders, effort: Effort, seconds: float, rng: Random) -> list[list[int]]:
    """Better orders, or those that are given.

    Args:
        problem: whose orders they are.
        orders: within the memory, and without a deadlock.
        effort: what it may cost.
        seconds: of the effort, how much to spend.
        rng: which makes the choices.
    """
    now, until = _Orders(problem, orders, rng), effort.spent + seconds
    best, least, hot = list(now.rows), now.value, _HOT * now.value
    while effort.left and (rest := (until - effort.spent) / seconds) > 0:
        now.work = 0
        for _ in range(_BATCH):
            if now.change(hot * _COOLING ** (1 - rest)) and now.value < least * (1 - TOLERANCE):
                best, least = list(now.rows), now.value
        effort.spend(now.work * _UNITS)
    return [[each for each, _ in row] for row in best]


class _Orders:
    """Orders that change.

    Attributes:
        rows: the tasks of each mesh.
        value: the objective.
        cost: what becomes small: the objective, and a little of the average end.
        work: what has been done, in tasks.
    """

    def __init__(self, problem: Problem, orders: Orders, rng: Random) -> None:
        self.problem, self.rng, self.work = problem, rng, 0
        self.rows = [_numbered(order) for order in orders]
        # When the tasks of each mesh end, and those of each type.
        self.ends: list[list[float]] = [[] for _ in orders]
        self.by_type: list[list[float]] = [[] for _ in problem.times]
        self.value = self.cost = math.inf
        self.path: list[tuple[int, int]] = []
        self._run(self.rows, 0.0, math.inf)

    def change(self, heat: float) -> bool:
        """Move tasks of a mesh if that makes the cost no more than about `heat` worse; whether they have moved."""
        random, self.work = self.rng.random, self.work + _MOVE
        if random() < _ANYWHERE:
            mesh = int(random() * len(self.rows))
            position = int(random() * len(self.rows[mesh]))
        else:
            mesh, position = self.path[int(random() * len(self.path))]
        change = self._exchanged if random() < _ALIKE else self._moved
        first, row = change(self.rows[mesh], position)
        if first >= len(row) or not self._may_be(mesh, row):
            return False
        # As if something worse were kept with a probability of exp(-worse / heat).
        most = self.cost - heat * math.log(1 - random())
        rows = [*self.rows[:mesh], row, *self.rows[mesh + 1 :]]
        return self._run(rows, self.ends[mesh][first - 1] if first else 0.0, most)

    def _moved(self, row: _Row, position: int) -> tuple[int, _Row]:
        """A row in which one task has moved, and from where on it differs."""
        random = self.rng.random
        distance = 1 + int(random() * (12 if random() < 0.25 else 3))
        target = position + (distance if random() < 0.5 else -distance)
        target = min(max(target, 0), len(row) - 1)
        moved = row.copy()
        moved.insert(target, moved.pop(position))
        return (min(position, target) if position != target else len(row)), moved

    def _exchanged(self, row: _Row, position: int) -> tuple[int, _Row]:
        """A row in which two neighbours, and such nearby, have changed places, and from where on it differs."""
        reach = int(self.rng.random() * len(row))
        if not position:
            return len(row), row
        (one, number), (other, ahead) = row[position - 1 : position + 1]
        row, first, ahead = row.copy(), len(row), ahead - number
        for at in range(max(position - reach, 1), min(position + reach, len(row))):
            (left, of_left), (right, of_right) = row[at - 1 : at + 1]
            if left == one and right == other and of_right - of_left == ahead:
                row[at - 1], row[at] = row[at], row[at - 1]
                first = min(first, at - 1)
        return first, row

    def _may_be(self, mesh: int, row: _Row) -> bool:
        """Whether a mesh may run a row: types are in order, tasks behind what they need there, memory suffices."""
        problem = self.problem
        counts, kept = [0] * problem.types, 0.0
        for each, number in row:
            kept += problem.memory[each]
            need = problem.needs[each]
            if counts[each] != number or kept > problem.rooms[mesh]:
                return False
            if need >= 0 and problem.mesh_of[need] == mesh and counts[need] <= number:
                return False
            counts[each] = number + 1
        return True

    def _run(self, rows: list[_Row], since: float, most: float) -> bool:
        """Run again all that ends at this time or later, and keep the rows if the cost is at most `most`."""
        problem = self.problem
        times, needs, delays = problem.times, problem.needs, problem.delays
        ends = [row[: bisect_left(row, since)] for row in self.ends]
        by_type = [row[: bisect_left(row, since)] for row in self.by_type]
        self.work -= sum(map(len, ends))
        # No mesh ends before all its tasks have run, nor do they on average.
        last = most - _EARLY * sum(problem.loads) / len(rows)
        waiting: dict[int, int] = {}
        runnable = list(range(len(rows)))
        while runnable:
            mesh = runnable.pop()
            done = ends[mesh]
            clock = done[-1] if done else 0.0
            for each, number in rows[mesh][len(done) :]:
                need = needs[each]
                if need >= 0:
                    if len(by_type[need]) <= number:
                        waiting[need] = mesh
                        break
                    arrives = by_type[need][number] + delays[each]
                    if arrives > clock:
                        clock = arrives
                clock += times[each]
                by_type[each].append(clock)
                done.append(clock)
                if each in waiting:
                    runnable.append(waiting.pop(each))
            if done and clock - self._start(done, rows[mesh]) > last:
                break
        self.work += sum(map(len, ends))
        if any(len(done) != len(row) for done, row in zip(ends, rows, strict=True)):
            return False  # too late already, or a deadlock
        lengths = [done[-1] - self._start(done, row) for done, row in zip(ends, rows, strict=True)]
        value = max(lengths)
        cost = value + _EARLY * sum(lengths) / len(rows)
        if cost > most:
            return False
        self.rows, self.ends, self.by_type, self.value, self.cost = rows, ends, by_type, value, cost
        self.path = self._critical(lengths.index(value))
        return True

    def _start(self, ends: list[float], row: _Row) -> float:
        """From when on the time of a mesh counts."""
        return ends[0] - self.problem.times[row[0][0]] if self.problem.objective == "longest_stage" else 0.0

    def _critical(self, mesh: int) -> list[tuple[int, int]]:
        """The mesh and position of each task of a critical path, from the last task of a mesh back to its start."""
        problem, rows, ends = self.problem, self.rows, self.ends
        start, position = self._start(ends[mesh], rows[mesh]) + TOLERANCE, len(rows[mesh]) - 1
        path: list[tuple[int, int]] = []
        while True:
            path.append((mesh, position))
            each, number = rows[mesh][position]
            end, need = ends[mesh][position], problem.needs[each]
            latest = end - problem.times[each] - TOLERANCE * end
            if latest <= start:
                return path
            waits = need >= 0 and self.by_type[need][number] + problem.delays[each] >= latest
            if waits and (position == 0 or ends[mesh][position - 1] < latest or self.rng.random() < 0.5):
                mesh = problem.mesh_of[need]
                position = bisect_left(ends[mesh], self.by_type[need][number])
            elif position:
                position -= 1
            else:
                return path


def _numbered(order: Sequence[int]) -> _Row:
    """The tasks of an order."""
    counts: dict[int, int] = {}
    row: _Row = []
    for each in order:
        row.append((each, counts.get(each, 0)))
        counts[each] = row[-1][1] + 1
    return row
