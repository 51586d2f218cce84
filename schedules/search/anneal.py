"""Simulated annealing of orders: a cell on the critical path moves a few places, and what is not much worse is kept.

Or two neighbours change places, and likewise the same two of other microbatches. It brings what other searches have
found to where no simple rule leads. Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983); that
only moves on the critical path can gain: van Laarhoven, Aarts and Lenstra, "Job Shop Scheduling by Simulated
Annealing" (1992).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from random import Random
from typing import Final

from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.problem import Orders, Problem
from jaxpp.schedules.search.cells import Cells, Rows, cells_of_problem
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
"""What it costs to run a cell."""

_SPECIAL: Final = 24
"""And where cells run beside their mesh, or on several at once: all of them run again with each move."""

_MOVE: Final = 20
"""How many cells could run in the time that it takes to choose a move."""


def anneal(cells: Cells, effort: Effort, seconds: float, rng: Random) -> Iterator[tuple[Rows, float]]:
    """Better and better orders, and their values.

    Args:
        cells: in orders within the memory, and without a deadlock.
        effort: what it may cost.
        seconds: of the effort, how much to spend.
        rng: which makes the choices.
    """
    now, until = _Orders(cells, rng), effort.spent + seconds
    best, hot = now.value, _HOT * now.value
    while effort.left and (rest := (until - effort.spent) / seconds) > 0:
        now.work = 0
        found = None
        for _ in range(_BATCH):
            if now.change(hot * _COOLING ** (1 - rest)) and now.value < best * (1 - TOLERANCE):
                found, best = now.rows, now.value
        if found is not None:
            yield found, best
        effort.spend(now.work * (_SPECIAL if now.special else _UNITS))


def anneal_orders(problem: Problem, orders: Orders, effort: Effort, seconds: float, rng: Random) -> Iterator[Orders]:
    """Better and better orders of the types of a problem; the arguments are as of `anneal`."""
    for rows, _ in anneal(cells_of_problem(problem, orders), effort, seconds, rng):
        yield [[cell // problem.microbatches for cell in row] for row in rows]


class _Orders:
    """Orders that change.

    Attributes:
        rows: the cells of each mesh.
        ends: of the cells of each mesh, in its order.
        end_of: the same, by the number of the cell.
        value: the objective.
        cost: what becomes small: the objective, and a little of the average end.
        path: the cells of a critical path.
        work: what has been done, in cells.
    """

    def __init__(self, cells: Cells, rng: Random) -> None:
        self.cells, self.rng, self.work = cells, rng, 0
        self.rows = cells.rows
        self.mesh_of = [0] * len(cells.times)
        for mesh, row in enumerate(self.rows):
            for cell in row:
                self.mesh_of[cell] = mesh
        self.loads = [sum(cells.times[cell] for cell in row if cell not in cells.asides) for row in self.rows]
        self.special = cells.asides | cells.tracks.keys() | cells.partners.keys()
        self.ends: list[list[float]] = [[] for _ in self.rows]
        self.end_of = [math.inf] * len(cells.times)
        self.value = self.cost = math.inf
        self.path: list[int] = []
        self._run(self.rows, 0.0, math.inf)

    def change(self, heat: float) -> bool:
        """Move cells of a mesh if that makes the cost no more than about `heat` worse; whether they have moved."""
        random, self.work = self.rng.random, self.work + _MOVE
        if random() < _ANYWHERE:
            mesh = int(random() * len(self.rows))
            position = int(random() * len(self.rows[mesh]))
        else:
            cell = self.path[int(random() * len(self.path))]
            mesh = self.mesh_of[cell]
            position = self._position(mesh, cell)
        change = self._exchanged if random() < _ALIKE else self._moved
        first, row = change(self.rows[mesh], position)
        if first >= len(row) or not self._fits(mesh, row):
            return False
        # As if something worse were kept with a probability of exp(-worse / heat).
        most = self.cost - heat * math.log(1 - random())
        rows = [*self.rows[:mesh], row, *self.rows[mesh + 1 :]]
        return self._run(rows, self.ends[mesh][first - 1] if first else 0.0, most)

    def _moved(self, row: list[int], position: int) -> tuple[int, list[int]]:
        """A row in which one cell has moved, with what must stay before or behind it; and from where on it differs."""
        random, before = self.rng.random, self.cells.before
        if not row:
            return 0, row
        distance = 1 + int(random() * (12 if random() < 0.25 else 3))
        moved, others = [row[position]], list[int]()
        if random() < 0.5:
            window = row[position + 1 : position + 1 + distance]
            for cell in window:
                (others if before[cell].isdisjoint(moved) else moved).append(cell)
            new, first = [*others, *moved], position
        else:
            window, needed = row[max(position - distance, 0) : position], set(before[row[position]])
            for cell in reversed(window):
                if cell in needed:
                    needed |= before[cell]
                (moved if cell in needed else others).append(cell)
            new, first = [*reversed(moved), *reversed(others)], position - len(window)
        return (first if others else len(row)), [*row[:first], *new, *row[first + len(new) :]]

    def _exchanged(self, row: list[int], position: int) -> tuple[int, list[int]]:
        """A row in which two neighbours, and such nearby, have changed places, and from where on it differs."""
        types, microbatches, before = self.cells.types, self.cells.microbatches, self.cells.before
        reach = int(self.rng.random() * len(row))
        if not position:
            return len(row), row
        one, other = row[position - 1 : position + 1]
        ahead, one, other = microbatches[other] - microbatches[one], types[one], types[other]
        row, first = row.copy(), len(row)
        for at in range(max(position - reach, 1), min(position + reach, len(row))):
            left, right = row[at - 1 : at + 1]
            alike = types[left] == one and types[right] == other
            if alike and microbatches[right] - microbatches[left] == ahead and left not in before[right]:
                row[at - 1], row[at] = right, left
                first = min(first, at - 1)
        return first, row

    def _fits(self, mesh: int, row: list[int]) -> bool:
        """Whether a mesh whose memory depends on its order alone has room for that."""
        room, takes, gives, kept = self.cells.rooms[mesh], self.cells.takes, self.cells.gives, 0.0
        if room == math.inf:
            return True
        for cell in row:
            kept += takes[cell]
            if kept > room:
                return False
            kept += gives[cell]
        return True

    def _run(self, rows: Rows, since: float, most: float) -> bool:
        """Run again all that ends at this time or later, and keep the rows if the cost is at most `most`."""
        run = _Run(self, rows, 0.0 if self.special or self.cells.by_time else since)
        # No mesh ends before all its cells have run, nor do they on average.
        run.advance(most - _EARLY * sum(self.loads) / len(rows))
        self.work += run.steps
        if not all(map(math.isfinite, run.end_of)):
            return False  # too late already, or a deadlock
        lengths = run.lengths
        value = max(*lengths, run.latest)
        cost = value + _EARLY * sum(lengths) / len(rows)
        if cost > most or not run.fits_by_time():
            return False
        self.rows, self.ends, self.end_of, self.value, self.cost = rows, run.ends, run.end_of, value, cost
        last = [mesh for mesh, length in enumerate(lengths) if length == value]
        cell = rows[last[0]][-1] if last else max(self.cells.asides, key=run.end_of.__getitem__)
        self.path = self._critical(cell, run.start(last[0]) if last else 0.0)
        return True

    def _critical(self, cell: int, start: float) -> list[int]:
        """The cells of a critical path, from the last one back to the start of its mesh."""
        times, waits, end_of, random = self.cells.times, self.cells.waits, self.end_of, self.rng.random
        path: list[int] = []
        while True:
            path.append(cell)
            latest = end_of[cell] - times[cell] - TOLERANCE * end_of[cell]
            if latest <= start + TOLERANCE:
                return path
            ways = [need for need, delay in waits[cell] if end_of[need] + delay >= latest]
            if not ways or random() < 0.5:
                ways = self._ahead(cell, latest) or ways
            if not ways:
                return path
            cell = ways[int(random() * len(ways))] if len(ways) > 1 else ways[0]

    def _ahead(self, cell: int, latest: float) -> list[int]:
        """Those of the same mesh whose end a cell may have waited for, for its turn or what else it uses."""
        mesh = self.mesh_of[cell]
        row, position, ends = self.rows[mesh], self._position(mesh, cell), self.ends[mesh]
        if not self.special:
            return [row[position - 1]] if position and ends[position - 1] >= latest else []
        asides, tracks = self.cells.asides, self.cells.tracks
        used = set(tracks.get(cell, ()))
        return [
            other
            for other, end in zip(row[:position], ends, strict=False)
            if latest <= end <= self.end_of[cell] and (other not in asides or not used.isdisjoint(tracks[other]))
        ]

    def _position(self, mesh: int, cell: int) -> int:
        row = self.rows[mesh]
        return row.index(cell) if self.special else bisect_left(self.ends[mesh], self.end_of[cell])


class _Run:
    """When cells run in some orders.

    Attributes:
        ends: of the cells of each mesh, in its order; shorter where it is stuck.
        end_of: the same, by the number of the cell; infinite for those that do not run.
        clocks: when each mesh is free.
        begins: of cells, where the memory asks for it: the end less the time is not exactly that.
        latest: when the last of those beside a mesh ends, where that counts.
        steps: how many cells have run.
    """

    def __init__(self, known: _Orders, rows: Rows, since: float) -> None:
        self.cells, self.rows, self.special, self.mesh_of = known.cells, rows, known.special, known.mesh_of
        self.ends = [ends[: bisect_left(ends, since)] if since else [] for ends in known.ends]
        self.end_of = known.end_of.copy() if since else [math.inf] * len(known.end_of)
        if since:
            for row, ends in zip(rows, self.ends, strict=True):
                for cell in row[len(ends) :]:
                    self.end_of[cell] = math.inf
        self.clocks = [ends[-1] if ends else 0.0 for ends in self.ends]
        self.steps = -sum(map(len, self.ends))
        self.latest = 0.0
        self.begins: dict[int, float] = {}
        self.free: dict[int, float] = {}
        self.arrived: dict[int, float] = {}
        self.runnable = list(range(len(rows)))
        self.waiting: dict[int, list[int]] = {}

    def advance(self, last: float) -> None:
        """Run until all has run or is stuck, or a mesh takes longer than that."""
        times, waits, end_of, runnable = self.cells.times, self.cells.waits, self.end_of, self.runnable
        begins = self.begins if self.cells.by_time else None
        special, waiting, from_start = self.special, self.waiting, self.cells.objective == "makespan"
        while runnable:
            mesh = runnable.pop()
            done, clock = self.ends[mesh], self.clocks[mesh]
            for cell in self.rows[mesh][len(done) :]:
                begin = clock
                for need, delay in waits[cell]:
                    arrives = end_of[need] + delay
                    if arrives > begin:
                        begin = arrives
                if begin == math.inf:
                    for need, _ in waits[cell]:
                        if end_of[need] == math.inf:
                            waiting.setdefault(need, []).append(mesh)
                            break
                    break
                if begins is not None:
                    begins[cell] = begin
                if special and cell in special:
                    self.clocks[mesh] = clock
                    self._meet(cell, begin)
                    if end_of[cell] == math.inf:
                        break
                    clock = self.clocks[mesh]
                else:
                    end_of[cell] = clock = begin + times[cell]
                    done.append(clock)
                if cell in waiting:
                    runnable += waiting.pop(cell)
            self.clocks[mesh] = clock
            if done and clock - (0.0 if from_start else self.start(mesh)) > last:
                break
        self.steps += sum(map(len, self.ends))

    def start(self, mesh: int) -> float:
        """From when on the time of a mesh counts."""
        if self.cells.objective == "makespan":
            return 0.0
        own = (cell for cell in self.rows[mesh] if cell not in self.cells.asides)
        return next((self.end_of[cell] - self.cells.times[cell] for cell in own), 0.0)

    @property
    def lengths(self) -> list[float]:
        """How long each mesh takes."""
        return [clock - self.start(mesh) if clock else 0.0 for mesh, clock in enumerate(self.clocks)]

    def fits_by_time(self) -> bool:
        """Whether those meshes have room whose memory depends on more than their own order."""
        for mesh, changes in self.cells.by_time.items():
            moments = [(self.begins[cell], taken) for cell, taken, _ in changes if taken]
            moments += [(self.end_of[cell], given) for cell, _, given in changes if given]
            if max(accumulate(change for _, change in sorted(moments)), default=0.0) > self.cells.rooms[mesh]:
                return False
        return True

    def _meet(self, cell: int, begin: float) -> None:
        """Run a cell that uses more than the turn of one mesh, if it has all that it uses."""
        times, group = self.cells.times, self.cells.partners.get(cell, (cell,))
        self.arrived[cell] = begin
        if not all(other in self.arrived for other in group):
            return
        used = self.cells.tracks.get(cell, ())
        begin = max([*(self.arrived[other] for other in group), *(self.free.get(each, 0.0) for each in used)])
        end = begin + max(times[other] for other in group)
        self.free.update(dict.fromkeys(used, end))
        self.begins.update(dict.fromkeys(group, begin))
        for other in group:
            mesh = self.mesh_of[other]
            self.end_of[other] = end
            self.ends[mesh].append(end)
            if other in self.cells.asides:
                self.latest = max(self.latest, end if self.cells.objective == "makespan" else 0.0)
            else:
                self.clocks[mesh] = end
            if other != cell:
                self.runnable += [mesh, *self.waiting.pop(other, ())]
