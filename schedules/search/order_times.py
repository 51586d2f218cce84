"""A run of orders: when each cell ends."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import accumulate
from typing import Final

from jaxpp.schedules.search.cells import Cells, Rows

EARLY: Final = 0.02
"""The weight of the average end of meshes in the cost, relative to the last end. It guides the search among orders of
equal value."""


def special_cells(cells: Cells) -> frozenset[int]:
    """Returns the cells that use more than the turn of one mesh."""
    return cells.asides | cells.tracks.keys() | cells.partners.keys()


class OrderTimes:
    """The times of cells in some orders.

    Attributes:
        ends: the ends of the cells of each mesh, in its order; a shorter list if the mesh is stuck.
        end_of: the end of each cell; infinite for cells that do not run.
        clocks: when each mesh is free.
        begins: the starts of cells, if some memory depends on times. An end minus a duration is not exactly the start.
        latest: the last end of the cells that run beside their mesh, if the objective counts it.
        leads: for each mesh, how long it scatters and gathers before its cells.
    """

    def __init__(self, cells: Cells, rows: Rows, last: float) -> None:
        self.cells, self.rows = cells, rows
        self.special = special_cells(cells)
        self.mesh_of = {cell: mesh for mesh, row in enumerate(rows) for cell in row}
        self.ends: list[list[float]] = [[] for _ in rows]
        self.end_of = [math.inf] * len(cells.times)
        self.clocks = [0.0] * len(rows)
        self.latest = 0.0
        self.begins: dict[int, float] = {}
        self.free: dict[int, float] = {}
        self.arrived: dict[int, float] = {}
        self.runnable = list(range(len(rows)))
        self.waiting: dict[int, list[int]] = {}
        self.leads = [cells.leads(row) for row in rows]
        self._advance(last)

    def _advance(self, last: float) -> None:
        """Runs cells until all have run or are stuck, or until a mesh takes longer than `last`."""
        times, waits, end_of, runnable = self.cells.times, self.cells.waits, self.end_of, self.runnable
        begins = self.begins if self.cells.by_time else None
        special, waiting, from_start = self.special, self.waiting, self.cells.objective == "makespan"
        leads = self.leads
        while runnable:
            mesh = runnable.pop()
            done, clock = self.ends[mesh], self.clocks[mesh]
            for cell in self.rows[mesh][len(done) :]:
                begin = clock + leads[mesh].get(cell, 0.0)
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
            if done and clock - (0.0 if from_start else self._start(mesh)) > last:
                break

    def _start(self, mesh: int) -> float:
        """Returns when the time of a mesh begins to count."""
        if self.cells.objective == "makespan":
            return 0.0
        own = (cell for cell in self.rows[mesh] if cell not in self.cells.asides)
        return next((self.end_of[cell] - self.cells.times[cell] for cell in own), 0.0)

    @cached_property
    def starts(self) -> list[float]:
        """The times at which the time of each mesh begins to count."""
        return [self._start(mesh) for mesh in range(len(self.rows))]

    @cached_property
    def lengths(self) -> list[float]:
        """The time that each mesh takes."""
        return [clock - start if clock else 0.0 for clock, start in zip(self.clocks, self.starts, strict=True)]

    @property
    def value(self) -> float:
        """The value of the objective."""
        return max(*self.lengths, self.latest)

    @property
    def cost(self) -> float:
        """The value to minimize: the objective, plus a small share of the average time of a mesh."""
        return self.value + EARLY * sum(self.lengths) / len(self.rows)

    @property
    def last(self) -> tuple[int, float]:
        """A cell that ends last, and when the time of its mesh began."""
        latest = [mesh for mesh, length in enumerate(self.lengths) if length == self.value]
        if not latest:
            return max(self.cells.asides, key=self.end_of.__getitem__), 0.0
        return self.rows[latest[0]][-1], self.starts[latest[0]]

    @property
    def steps(self) -> int:
        """The number of cells that have run."""
        return sum(map(len, self.ends))

    @property
    def whole(self) -> bool:
        """Whether all cells have run: no mesh took too long or got stuck."""
        return math.inf not in self.end_of

    def fits_by_time(self) -> bool:
        """Whether each memory that depends on times has room."""
        for mesh, changes in self.cells.by_time.items():
            moments = [(self.begins[cell], taken) for cell, taken, _ in changes if taken]
            moments += [(self.end_of[cell], given) for cell, _, given in changes if given]
            if max(accumulate(change for _, change in sorted(moments)), default=0.0) > self.cells.rooms[mesh]:
                return False
        return True

    def _meet(self, cell: int, begin: float) -> None:
        """Runs a cell that uses more than the turn of one mesh, once all its partners have arrived."""
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
