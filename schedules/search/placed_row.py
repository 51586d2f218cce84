"""A row of layers on a placement: the load of each mesh, balanced cuts, and a lower bound for all cuts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.problem import make_problem
from jaxpp.schedules.model.task import Placement
from jaxpp.schedules.search.bounds import lower_bound
from jaxpp.schedules.search.cuts import FEW_CUTS, Cuts, all_cuts, beside, best_cuts, even_cuts, least_time, spans
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.layer_row import LayerRow, empty_of

UNITS: Final = 50
"""The units of effort to simulate a task of given orders on other cuts."""

_KINDS: Final = 1000
"""The largest number of distinct layer times, times meshes, for which an integer programme assigns layers to meshes."""


@dataclass(frozen=True)
class PlacedRow:
    """A row of layers on one placement.

    Attributes:
        row: the layers.
        shape: the placement.
    """

    row: LayerRow
    shape: Placement

    @cached_property
    def speeds(self) -> list[float]:
        """The speed of each mesh."""
        return self.row.costs.per_mesh("speed", empty_of(self.shape))

    def starts(self) -> Iterator[Cuts]:
        """Yields the initial cuts of the search.

        The first have equally many layers per stage. The others are the best by loads, by loads with forward paths, and
        by loads with both paths. Limits in bytes add the best cuts by bytes. After each of the others follow the same
        cuts, balanced.
        """
        yield even_cuts(len(self.row.times), self.shape.stages)
        loads, speed = self.loads(), float(np.mean(self.speeds))
        tables = [loads, loads + self._ways(speed, both=False), loads + self._ways(speed, both=True)]
        if self.row.in_bytes:
            bytes_ = cast("tuple[float, ...]", self.row.costs.activation_bytes)
            shares: list[NDArray[np.float64]] = []
            for mesh in map(self.shape.__getitem__, range(self.shape.stages)):
                limit, there = self.row.memory.limits[mesh], (layer[mesh] for layer in self.row.resident)
                shares.append(spans([sum(each) / limit for each in zip(bytes_, there, strict=True)]))
            tables.append(np.stack(shares))
        for weights in tables:
            found = best_cuts(weights)
            if found is not None:
                yield found[1]
                yield self._balanced(found[1])

    def _balanced(self, cuts: Cuts) -> Cuts:
        """Returns the cuts after moves of single layers that balance the loads of the meshes."""
        while True:
            better = min(beside(cuts), key=self.unevenness, default=cuts)
            if self.unevenness(better) >= self.unevenness(cuts):
                return cuts
            cuts = better

    def unevenness(self, cuts: Cuts) -> list[float]:
        """Returns the times of all meshes for one microbatch, the longest first. A smaller list is more balanced."""
        loads, first = [0.0] * self.shape.meshes, 0
        for stage, size in enumerate(cuts):
            mesh = self.shape[stage]
            loads[mesh] += math.fsum(self.row.times[first : first + size]) / self.speeds[mesh]
            first += size
        return sorted(loads, reverse=True)

    def loads(self) -> NDArray[np.float64]:
        """Returns [stage, first layer, layer after the last]: the time of the stage's tasks of all microbatches."""
        table = spans(self.row.times) * self.row.microbatches
        return np.stack([table / self.speeds[self.shape[stage]] for stage in range(self.shape.stages)])

    def _ways(self, speed: float, *, both: bool) -> NDArray[np.float64]:
        """Returns [stage, first layer, layer after the last]: the least time before the stage's first task.

        With `both` it adds the least time after the stage's last task.
        """
        times = self.row.chain if both else self.row.times_of("forward")
        before = np.concatenate([[0.0], np.cumsum(times)]) / speed
        hops = np.arange(self.shape.stages) * self._least_hop * (2 if both else 1)
        return hops[:, None, None] + before[None, :, None]

    def left(self, cuts: Cuts) -> list[float]:
        """Returns the limit of each mesh without its resident bytes.

        A difference of about 0 becomes a tiny positive number, so that layers without activations still fit.
        """
        left, first = list(self.row.memory.limits), 0
        for stage, size in enumerate(cuts):
            mesh = self.shape[stage]
            left[mesh] -= math.fsum(layer[mesh] for layer in self.row.resident[first : first + size])
            first += size
        least = [limit * TOLERANCE for limit in self.row.memory.limits]
        return [few if abs(room) < few else room for room, few in zip(left, least, strict=True)]

    def bound(self, effort: Effort) -> float:
        """Returns a lower bound for all cuts and all orders. It may spend `effort`."""
        row, fastest = self.row, max(self.speeds)
        hop = self._least_hop
        changes = sum(self.shape[s] != self.shape[s + 1] for s in range(self.shape.stages - 1))
        bounds = [sum(row.chain) / fastest + 2 * hop * changes, row.microbatches * sum(row.times) / sum(self.speeds)]
        if self.shape == Placement.linear(self.shape.meshes):
            found = best_cuts(self.loads() + self._ways(fastest, both=not row.split_backward))
            bounds.append(found[0] if found else math.inf)
        elif len(set(row.times)) * self.shape.meshes <= _KINDS:
            effort.spend(UNITS * len(row.times) * self.shape.meshes * row.microbatches)
            times = [time * row.microbatches for time in row.times]
            bounds.append(least_time(times, self.speeds, self._ways_of_meshes(fastest)))
        if math.comb(len(row.times) - 1, self.shape.stages - 1) <= FEW_CUTS:
            bounds.append(min(self._bound_of(cuts, effort) for cuts in all_cuts(len(row.times), self.shape.stages)))
        return max(bounds)

    def _bound_of(self, cuts: Cuts, effort: Effort) -> float:
        """Returns a lower bound for all orders on these cuts. With limits in bytes the bound ignores memory."""
        memory = self.row.memory if not self.row.in_bytes else MemoryLimits((math.inf,) * self.shape.meshes, "W")
        costs = self.row.costs.cut(cuts)
        problem = make_problem(self.shape, self.row.microbatches, costs, memory, "makespan", self.row.split_backward)
        effort.spend(0)
        return lower_bound(problem)

    def _ways_of_meshes(self, speed: float) -> list[float]:
        """Returns the least time before the first task of each mesh.

        If backwards are whole, it adds the least time after the mesh's last task.
        """
        firsts = [min(self.shape.stages_of(mesh)) for mesh in range(self.shape.meshes)]
        times = self.row.times_of("forward") if self.row.split_backward else self.row.chain
        hops = self._least_hop * (1 if self.row.split_backward else 2)
        changes = [sum(self.shape[s] != self.shape[s + 1] for s in range(first)) for first in firsts]
        return [math.fsum(times[:first]) / speed + hops * count for first, count in zip(firsts, changes, strict=True)]

    @property
    def _least_hop(self) -> float:
        rows = self.row.costs.pair("hop", empty_of(self.shape))
        return min((hop for a, row in enumerate(rows) for b, hop in enumerate(row) if a != b), default=0.0)
