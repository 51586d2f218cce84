"""Simulated annealing of orders: a cell on the critical path moves a few places, and what is not much worse is kept.

Or two neighbours change places, and likewise the same two of other microbatches. It brings what other searches have
found to where no simple rule leads. Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983); that
only moves on the critical path can gain: van Laarhoven, Aarts and Lenstra, "Job Shop Scheduling by Simulated
Annealing" (1992).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Final

from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.problem import Orders, Problem
from jaxpp.schedules.search.cells import Cells, Rows, cells_of_problem
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.settled import settled

_HOT: Final = 2e-3
"""By what share of the value a change may be worse at the beginning, on average."""

_COOLING: Final = 0.02
"""What of that is left in the end."""

_REACH: Final = 12
"""How many cells behind a move may make room for it."""

_ANYWHERE: Final = 0.1
"""The share of moves that do not begin on the critical path."""

_ALIKE: Final = 0.2
"""The share of moves that are made for many microbatches at once."""

_BATCH: Final = 40_000
"""Cells that run between two looks at the budget."""

_UNITS: Final = 3
"""What it costs to run a cell."""

_MOVE: Final = 20
"""How many cells could run in the time that it takes to choose a move."""

_PATHS: Final = 8
"""After so many changes another critical path is looked for, if the value is the same."""

_STEP: Final = 3
"""What it costs to find a cell of it."""


def anneal(
    cells: Cells, effort: Effort, seconds: float, rng: Random, heat: float = 1.0
) -> Iterator[tuple[Rows, float]]:
    """Better and better orders, and their values.

    Args:
        cells: in orders within the memory, and without a deadlock.
        effort: what it may cost.
        seconds: of the effort, how much to spend.
        rng: which makes the choices.
        heat: how hot it begins: with more it leads further away, and takes longer to come to an end.
    """
    orders, until = _Orders(cells, rng), effort.spent + seconds
    best, hot = orders.now.value, heat * _HOT * orders.now.value
    while effort.left and (rest := (until - effort.spent) / seconds) > 0:
        found = None
        while orders.now.work < _BATCH:
            if orders.change(hot * _COOLING ** (1 - rest)) and orders.now.value < best * (1 - TOLERANCE):
                found, best = [row.copy() for row in orders.now.rows], orders.now.value
        if found is not None:
            yield found, best
        effort.spend(orders.now.work * _UNITS)
        orders.now.work = 0.0


def anneal_orders(
    problem: Problem, orders: Orders, effort: Effort, seconds: float, rng: Random, heat: float = 1.0
) -> Iterator[Orders]:
    """Better and better orders of the types of a problem; the arguments are as of `anneal`."""
    for rows, _ in anneal(cells_of_problem(problem, orders), effort, seconds, rng, heat):
        yield [[cell // problem.microbatches for cell in row] for row in rows]


class _Orders:
    """Orders that change.

    Attributes:
        now: the orders, and when their cells run.
        path: the cells of a critical path, of not long ago.
    """

    def __init__(self, cells: Cells, rng: Random) -> None:
        self.cells, self.rng, self.now = cells, rng, settled(cells)
        self.path, self.changes = self._critical(), 0

    def change(self, heat: float) -> bool:
        """Move cells of a mesh if that makes the cost no more than about `heat` worse; whether they have moved."""
        random, now = self.rng.random, self.now
        now.work += _MOVE
        if random() < _ANYWHERE:
            mesh = int(random() * len(now.rows))
            position = int(random() * len(now.rows[mesh]))
        else:
            cell = self.path[int(random() * len(self.path))]
            mesh, position = now.mesh_of[cell], now.position(cell)
        change = self._exchanged if random() < _ALIKE else self._moved
        first, window = change(now.rows[mesh], position)
        # As if something worse were kept with a probability of exp(-worse / heat).
        most, value = now.cost - heat * math.log(1 - random()), now.value
        if window and not now.has_room(mesh, first, window):
            window = self._with_room(mesh, first, window)
        if not window or not now.change(mesh, first, window, most):
            return False
        self.changes += 1
        if now.value != value or self.changes % _PATHS == 0:
            self.path = self._critical()
        return True

    def _moved(self, row: list[int], position: int) -> tuple[int, list[int]]:
        """Move one cell, with the cells that must stay before or behind it.

        Returns the first place that changes, and the cells from there on.
        """
        random, before = self.rng.random, self.cells.before
        if not row:
            return 0, row
        distance = 1 + int(random() * (12 if random() < 0.25 else 3))
        moved, others = [row[position]], list[int]()
        if random() < 0.5:
            for cell in row[position + 1 : position + 1 + distance]:
                (others if before[cell].isdisjoint(moved) else moved).append(cell)
            return position, [*others, *moved] if others else []
        first, needed = max(position - distance, 0), set(before[row[position]])
        for cell in reversed(row[first:position]):
            if cell in needed:
                needed |= before[cell]
            (moved if cell in needed else others).append(cell)
        return first, [*reversed(moved), *reversed(others)] if others else []

    def _with_room(self, mesh: int, first: int, window: list[int]) -> list[int]:
        """Put these cells, and some behind them, into an order that fits the memory; empty if there is none.

        A cell that has no room waits for one that gives memory back. Where memory is tight a move of one cell alone
        seldom fits: a forward has to move together with the last task of another microbatch.
        """
        takes, gives, before = self.cells.takes, self.cells.gives, self.cells.before
        row, room, kept = self.now.rows[mesh], self.cells.rooms[mesh], self.now.levels[mesh][first]
        end = first + len(window)
        rest, left, found = [*window, *row[end : end + _REACH]], len(window), list[int]()
        while left:
            at = 0
            if kept + takes[rest[0]] > room:
                gaining = (at for at, cell in enumerate(rest) if takes[cell] + gives[cell] < 0)
                at = next((at for at in gaining if before[rest[at]].isdisjoint(rest[:at])), 0)
                if not at or kept + takes[rest[at]] > room:
                    return []
            left -= at < left
            cell = rest.pop(at)
            kept += takes[cell] + gives[cell]
            found.append(cell)
        found += rest
        while found and found[-1] == row[first + len(found) - 1]:
            found.pop()
        return found

    def _exchanged(self, row: list[int], position: int) -> tuple[int, list[int]]:
        """Exchange two neighbours, and nearby pairs of the same types. Returns as `_moved`."""
        types, microbatches, before = self.cells.types, self.cells.microbatches, self.cells.before
        reach = int(self.rng.random() * len(row))
        if not position:
            return 0, []
        one, other = row[position - 1 : position + 1]
        ahead, one, other = microbatches[other] - microbatches[one], types[one], types[other]
        row, first, last = row.copy(), len(row), 0
        for at in range(max(position - reach, 1), min(position + reach, len(row))):
            left, right = row[at - 1], row[at]
            if types[left] != one or types[right] != other:
                continue
            if microbatches[right] - microbatches[left] == ahead and left not in before[right]:
                row[at - 1], row[at] = right, left
                first, last = min(first, at - 1), at
        return first, row[first : last + 1]

    def _critical(self) -> list[int]:
        """The cells of a critical path, from the last one back to the start of its mesh."""
        times, waits, random, now = self.cells.times, self.cells.waits, self.rng.random, self.now
        end_of = now.end_of
        cell, start = now.last
        path: list[int] = []
        while True:
            path.append(cell)
            latest = end_of[cell] - times[cell] - TOLERANCE * end_of[cell]
            ways = [need for need, delay in waits[cell] if end_of[need] + delay >= latest]
            if latest > start + TOLERANCE and (not ways or random() < 0.5):
                ways = now.ahead(cell, latest) or ways
            if latest <= start + TOLERANCE or not ways:
                now.work += _STEP * len(path)
                return path
            cell = ways[int(random() * len(ways))] if len(ways) > 1 else ways[0]
