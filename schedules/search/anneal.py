"""Simulated annealing of orders, which improves the orders of other searches beyond the reach of simple rules.

A move takes a cell of a critical path a few places along the order of its mesh. Other moves exchange two neighbours,
and the same pair of other microbatches. A move is kept if the cost does not grow much.

Simulated annealing is from Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983). Only moves on
the critical path can shorten a schedule: van Laarhoven, Aarts and Lenstra, "Job Shop Scheduling by Simulated Annealing"
(1992).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Final

from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.ordered_cells import OrderedCells, Rows, ordered_cells_of_problem
from jaxpp.schedules.engine.problem import Orders, Problem
from jaxpp.schedules.engine.settled import settled
from jaxpp.schedules.search.effort import Effort

_HOT: Final = 2e-3
"""The initial temperature, as a share of the value: the cost that a move may add on average."""

_COOLING: Final = 0.02
"""The share of the initial temperature that is left at the end."""

_REACH: Final = 12
"""The most cells after a move that may be reordered to fit the move into the memory."""

_ANYWHERE: Final = 0.1
"""The share of moves that start at any cell, and not on the critical path."""

_ALIKE: Final = 0.2
"""The share of moves that exchange the same pair for many microbatches at once."""

_BATCH: Final = 40_000
"""The number of cells that run between two checks of the budget."""

_UNITS: Final = 3
"""The units of effort to run a cell."""

_MOVE: Final = 20
"""The number of cells that could run in the time that it takes to choose a move."""

_PATHS: Final = 8
"""The number of accepted moves after which the search takes another critical path, if the value has not changed."""

_STEP: Final = 3
"""The work to find a cell of a critical path, in cells that run."""


def anneal(
    cells: OrderedCells, effort: Effort, seconds: float, rng: Random, heat: float = 1.0
) -> Iterator[tuple[Rows, float]]:
    """Yields better and better orders with their values.

    Args:
        cells: in orders that fit the memory and have no deadlock.
        effort: the budget.
        seconds: the part of the effort to spend.
        rng: the source of the random choices.
        heat: factor of the initial temperature. A larger one leads further away, and takes longer to converge.
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
    """Yields better and better orders of the types of a problem. The other arguments are as for `anneal`."""
    for rows, _ in anneal(ordered_cells_of_problem(problem, orders), effort, seconds, rng, heat):
        yield [[cell // problem.microbatches for cell in row] for row in rows]


class _Orders:
    """The current orders of the annealing.

    Attributes:
        now: the orders, and when their cells run.
        path: the cells of a critical path, which may be some moves old.
    """

    def __init__(self, cells: OrderedCells, rng: Random) -> None:
        self.cells, self.rng, self.now = cells, rng, settled(cells)
        self.path, self.changes = self._critical(), 0

    def change(self, heat: float) -> bool:
        """Tries a random move, and returns whether the move was kept.

        A move is kept if it adds at most about `heat` to the cost, and the memory has room.
        """
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
        # This limit keeps a move that adds `worse` to the cost with a probability of exp(-worse / heat).
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
        """Moves one cell, together with the cells that must stay before or after it.

        Returns the first position that changes, and the cells from there on; no cells if nothing changes.
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
        """Puts a window, and some cells after it, into an order that fits the memory; empty if there is none.

        A cell that does not fit waits for a cell that releases memory. If memory is tight, the move of a single cell
        seldom fits: a forward must move together with the last task of another microbatch.
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
        """Exchanges two neighbours, and nearby neighbours of the same types. Returns the same as `_moved`."""
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
        """Returns the cells of a random critical path, from the cell that ends last back to the start of a mesh."""
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
