"""Orders that have run and change. A move reruns only the cells that it makes earlier or later.

The *tail* of a cell is the time from its end to the end of all cells. Tails show without a run that most moves are too
slow (Taillard, "Parallel Taboo Search Techniques for the Job Shop Scheduling Problem", ORSA Journal on Computing 6,
1994).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

from jaxpp.schedules.engine.ordered_cells import EARLY, Measured, OrderedCells
from jaxpp.schedules.model.run import Run, run

_STEP: Final = 4
"""The work to rerun one cell after a move, in cells of a complete run."""

_SPECIAL: Final = 8
"""The work per cell of a complete run where cells use more than the turn of one mesh."""

_ROUNDS: Final = 8
"""The number of reruns of all cells by one move after which the orders count as deadlocked."""


class Settled(ABC):
    """Orders that have run.

    Attributes:
        rows: the cells of each mesh.
        end_of: when each cell ends.
        value, average, last, starts, cost: as in `Measured`.
        work: the work so far, in cells that have run.
    """

    end_of: list[float]

    def __init__(self, cells: OrderedCells) -> None:
        self.cells, self.work = cells, 0.0
        self.rows = [list(row) for row in cells.rows]
        self.mesh_of = [0] * len(cells.times)
        for mesh, row in enumerate(self.rows):
            for cell in row:
                self.mesh_of[cell] = mesh
        self.levels: list[list[float]] = [[0.0] * len(row) for row in self.rows]
        for mesh, row in enumerate(self.rows):
            if row:
                self._place(mesh, 0, row)

    def _place(self, mesh: int, first: int, window: Sequence[int]) -> None:
        """Puts cells at this position of the order of a mesh."""
        takes, gives, levels = self.cells.takes, self.cells.gives, self.levels[mesh]
        changes = [takes[cell] + gives[cell] for cell in window]
        levels[first : first + len(window)] = list(accumulate(changes[:-1], initial=levels[first]))
        self.rows[mesh][first : first + len(window)] = window

    def _note(self, measured: Measured) -> None:
        """Records the value of the orders after a run."""
        self.value, self.average, self.last, self.starts = measured
        self.cost = measured.cost

    def has_room(self, mesh: int, first: int, window: list[int]) -> bool:
        """Whether the memory of a mesh has room for these cells in this order.

        Memory that depends on times is not checked here, but after a run (`OrderedCells.fits_by_time`).
        """
        room, takes, gives = self.cells.rooms[mesh], self.cells.takes, self.cells.gives
        if room == math.inf:
            return True
        kept = self.levels[mesh][first]
        for cell in window:
            kept += takes[cell]
            if kept > room:
                return False
            kept += gives[cell]
        return True

    @abstractmethod
    def change(self, mesh: int, first: int, window: list[int], most: float) -> bool:
        """Puts cells at this position of the order of a mesh, and returns whether it did.

        It does not if the cost would then be above `most`, or (in `Whole`) if memory that depends on times has no room.
        """

    @abstractmethod
    def position(self, cell: int) -> int:
        """Returns the position of a cell in the order of its mesh."""

    @abstractmethod
    def ahead(self, cell: int, latest: float) -> list[int]:
        """Returns the cells of the same mesh that end at `latest` or later and for which a cell may have waited."""


def settled(cells: OrderedCells) -> Settled:
    """Returns these orders after a run, in the class that suits the cells."""
    is_plain = not (cells.asides or cells.tracks or cells.by_time or cells.between)
    return Partly(cells) if is_plain else Whole(cells)


class Whole(Settled):
    """Orders whose cells all run again after each move.

    This is necessary in three cases: cells run beside their mesh, memory depends on times, or the time of a cell
    depends on the previous cell.
    """

    def __init__(self, cells: OrderedCells) -> None:
        super().__init__(cells)
        found = run(cells, self.rows)
        self._take(found, cells.measured(self.rows, found.ends, found.clocks))

    def _take(self, found: Run, measured: Measured) -> None:
        self._note(measured)
        self.end_of, self.leads = found.ends, [self.cells.leads(row) for row in self.rows]

    def change(self, mesh: int, first: int, window: list[int], most: float) -> bool:
        row = self.rows[mesh]
        new = [*row[:first], *window, *row[first + len(window) :]]
        rows = [*self.rows[:mesh], new, *self.rows[mesh + 1 :]]
        found = run(self.cells, rows, most, from_first=self.cells.objective == "longest_stage")
        self.work += _SPECIAL * sum(found.counts)
        if not found.whole:
            return False
        measured = self.cells.measured(rows, found.ends, found.clocks)
        if measured.cost > most or not self.cells.fits_by_time(found):
            return False
        self._place(mesh, first, window)
        self._take(found, measured)
        return True

    def position(self, cell: int) -> int:
        return self.rows[self.mesh_of[cell]].index(cell)

    def ahead(self, cell: int, latest: float) -> list[int]:
        mesh, position = self.mesh_of[cell], self.position(cell)
        self.work += position
        latest -= self.leads[mesh].get(cell, 0.0)
        asides, tracks = self.cells.asides, self.cells.tracks
        used = set(tracks.get(cell, ()))
        return [
            other
            for other in self.rows[mesh][:position]
            if latest <= self.end_of[other] <= self.end_of[cell]
            and (other not in asides or not used.isdisjoint(tracks[other]))
        ]


class Partly(Settled):
    """Orders in which a move reruns only the cells that it makes earlier or later.

    Each cell takes the turn of one mesh. Each mesh also has an index after those of the cells: its edge, before its
    first cell and after its last.

    Attributes:
        tails: the time from the end of each cell to the end of all cells.
        before, after: the neighbours of each cell in the order of its mesh.
    """

    def __init__(self, cells: OrderedCells) -> None:
        count, meshes = len(cells.times), len(cells.rows)
        edges = range(count, count + meshes)  # the neighbour of the edge of an empty mesh is the edge itself
        self.places, self.before, self.after = [0] * count, [*[0] * count, *edges], [*[0] * count, *edges]
        super().__init__(cells)
        self.users: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for cell, waits in enumerate(cells.waits):
            for need, delay in waits:
                self.users[need].append((cell, delay))
        self.end_of = [*run(cells, self.rows).ends, *[0.0] * meshes]
        self.tails = [0.0] * (count + meshes)
        self.times = [*cells.times, *[0.0] * meshes]
        self._note(self._measured())
        self._measure_tails(sorted(range(count), key=self.end_of.__getitem__))

    def _place(self, mesh: int, first: int, window: Sequence[int]) -> None:
        super()._place(mesh, first, window)
        row, edge = self.rows[mesh], len(self.places) + mesh
        ahead = row[first - 1] if first else edge
        for position, cell in enumerate(window, first):
            self.places[cell] = position
            self.before[cell], self.after[ahead] = ahead, cell
            ahead = cell
        behind = row[first + len(window)] if first + len(window) < len(row) else edge
        self.before[behind], self.after[ahead] = ahead, behind

    def position(self, cell: int) -> int:
        return self.places[cell]

    def ahead(self, cell: int, latest: float) -> list[int]:
        other = self.before[cell]
        return [other] if other < len(self.places) and self.end_of[other] >= latest else []

    def change(self, mesh: int, first: int, window: list[int], most: float) -> bool:
        # This assumes that a later end does not lower the average end.
        last = most - EARLY * self.average
        old = self.rows[mesh][first : first + len(window)]
        ahead, behind = self.before[old[0]], self.after[old[-1]]
        # If the start of a mesh may move, tails give no bound on its length.
        tails_hold = self.cells.objective == "makespan" or self.end_of[ahead] >= max(self.starts)
        if tails_hold and self._is_late(ahead, window, behind, last):
            return False
        self._place(mesh, first, window)
        was = self._run([behind, *reversed(window)], last if tails_hold else math.inf)
        measured = None if was is None else self._measured()
        if measured is None or measured.cost > most:
            self._back(was or {})
            self._place(mesh, first, old)
            return False
        self._note(measured)
        self._measure_tails([ahead, *window])
        return True

    def _measured(self) -> Measured:
        clocks = [self.end_of[row[-1]] if row else 0.0 for row in self.rows]
        return self.cells.measured(self.rows, self.end_of, clocks)

    def _is_late(self, ahead: int, window: Sequence[int], behind: int, last: float) -> bool:
        """Whether these cells in this order seem to take longer than `last`.

        The estimate uses the current ends before the cells and the current tails after them. It is wrong for one move
        in hundreds: where a cell of the window waits for another mesh, which waits for another cell of the window.
        """
        end_of, times, tails, waits, users = self.end_of, self.times, self.tails, self.cells.waits, self.users
        self.work += len(window)
        clock = end_of[ahead]
        for cell in window:
            for need, delay in waits[cell]:
                arrives = end_of[need] + delay
                if arrives > clock:
                    clock = arrives
            clock += times[cell]
            for user, delay in users[cell]:
                if clock + delay + times[user] + tails[user] > last:
                    return True
        return clock + times[behind] + tails[behind] > last

    def _run(self, stale: list[int], last: float) -> dict[int, float] | None:
        """Reruns some cells, the last one of the list first, and all cells that become earlier or later.

        Returns:
            The old ends of the changed cells; None, and no change, if the run takes longer than `last`.
        """
        end_of, times, tails, waits, users = self.end_of, self.times, self.tails, self.cells.waits, self.users
        before, after, count, steps = self.before, self.after, len(self.places), 0
        was: dict[int, float] = {}
        moved = set(stale[1:])  # the tails of these cells have changed
        heap: list[tuple[float, int]] = []
        while stale or heap:
            cell = stale.pop() if stale else heappop(heap)[1]
            if cell >= count:
                continue
            steps += 1
            end = end_of[before[cell]]
            for need, delay in waits[cell]:
                arrives = end_of[need] + delay
                if arrives > end:
                    end = arrives
            end += times[cell]
            if end == end_of[cell]:
                continue
            was.setdefault(cell, end_of[cell])
            end_of[cell] = end
            if (end + tails[cell] > last and cell not in moved) or steps > _ROUNDS * count:
                self.work += _STEP * steps
                self._back(was)
                return None
            # Run cells in the order of their old ends, which is mostly the order of the new ends.
            heappush(heap, (end_of[after[cell]], after[cell]))
            for user, _ in users[cell]:
                heappush(heap, (end_of[user], user))
        self.work += _STEP * steps
        return was

    def _back(self, was: dict[int, float]) -> None:
        """Restores old ends."""
        for cell, end in was.items():
            self.end_of[cell] = end

    def _measure_tails(self, stale: list[int]) -> None:
        """Measures the tails of some cells, the last one of the list first, and all tails that depend on them."""
        end_of, times, tails, waits, users = self.end_of, self.times, self.tails, self.cells.waits, self.users
        before, after, count, steps = self.before, self.after, len(self.places), 0
        heap: list[tuple[float, int]] = []
        for edge, start in enumerate(self.starts, count):
            if tails[edge] != -start:
                tails[edge] = -start
                heappush(heap, (-end_of[before[edge]], before[edge]))
        while stale or heap:
            cell = stale.pop() if stale else heappop(heap)[1]
            if cell >= count:
                continue
            steps += 1
            other = after[cell]
            tail = times[other] + tails[other]
            for user, delay in users[cell]:
                way = delay + times[user] + tails[user]
                if way > tail:
                    tail = way
            if tail != tails[cell]:
                tails[cell] = tail
                heappush(heap, (-end_of[before[cell]], before[cell]))
                for need, _ in waits[cell]:
                    heappush(heap, (-end_of[need], need))
        self.work += _STEP * steps
