"""A row of layers that is to be cut into stages on a placement: the load of each mesh, balanced cuts, and a bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.problem import Problem, make_problem
from jaxpp.schedules.errors import counted
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement
from jaxpp.schedules.search.bounds import lower_bound
from jaxpp.schedules.search.cuts import FEW_CUTS, Cuts, all_cuts, beside, best_cuts, even_cuts, least_time, spans, sums
from jaxpp.schedules.search.effort import Effort

UNITS: Final = 50
"""The units of effort to simulate a task of given orders on other cuts."""

_KINDS: Final = 1000
"""The largest number of distinct layer times, times meshes, for which an integer programme assigns layers to meshes."""


@dataclass(frozen=True)
class PlacedRow:
    """A row of layers on one placement, with all that does not depend on the cuts.

    Attributes:
        shape: the placement.
        costs: a list for each kind of task, with a number for each layer.
        microbatches: the number of microbatches.
        memory: the memory limits.
        resident: the resident bytes of each layer on each mesh.
        split_backward: whether input and weight gradients are tasks of their own.
    """

    shape: Placement
    costs: Costs
    microbatches: int
    memory: MemoryLimits
    resident: tuple[tuple[float, ...], ...]
    split_backward: bool

    @property
    def in_bytes(self) -> bool:
        """Whether bytes are limited."""
        return self.memory.released_at is None and min(self.memory.limits) < math.inf

    @cached_property
    def _on_one_mesh(self) -> Schedule:
        return empty_of(Placement.of(*[0] * (self.costs.stages or 1)))

    def times_of(self, kind: str) -> list[float]:
        """Returns the time of one kind of task for each layer, on a mesh of speed 1."""
        return replace(self.costs, speed=1.0).at_home(kind, self._on_one_mesh)

    def bytes(self, name: Literal["activation_bytes", "message_bytes"]) -> list[float]:
        """Returns the bytes of this name for each layer, for one microbatch."""
        return self.costs.bytes(name, self._on_one_mesh)

    @cached_property
    def times(self) -> list[float]:
        """For each layer the time of all tasks of a microbatch."""
        kinds = ("forward", "input_grad", "weight_grad") if self.split_backward else ("forward", "backward")
        return [sum(each) for each in zip(*map(self.times_of, kinds), strict=True)]

    @cached_property
    def chain(self) -> list[float]:
        """For each layer the time of a microbatch on its way forward and back."""
        if not self.split_backward:
            return self.times
        return [sum(each) for each in zip(self.times_of("forward"), self.times_of("input_grad"), strict=True)]

    def problem(self, cuts: Cuts, memory: MemoryLimits | None = None) -> Problem:
        """Returns the problem of the order on these cuts; without `memory` nothing is limited."""
        limits = memory or MemoryLimits((math.inf,) * self.shape.meshes, "W")
        return make_problem(
            self.shape, self.microbatches, self.costs.cut(cuts), limits, "makespan", self.split_backward
        )

    @cached_property
    def speeds(self) -> list[float]:
        """The speed of each mesh."""
        return self.costs.per_mesh("speed", empty_of(self.shape))

    def starts(self) -> Iterator[Cuts]:
        """Yields the initial cuts of the search.

        The first have equally many layers per stage. The others are the best by loads, by loads with forward paths, and
        by loads with both paths. Limits in bytes add the best cuts by bytes. After each of the others follow the same
        cuts, balanced.
        """
        yield even_cuts(len(self.times), self.shape.stages)
        loads, speed = self.loads(), float(np.mean(self.speeds))
        tables = [loads, loads + self._ways(speed, both=False), loads + self._ways(speed, both=True)]
        if self.in_bytes:
            kept, shares = self.bytes("activation_bytes"), list[NDArray[np.float64]]()
            for mesh in map(self.shape.__getitem__, range(self.shape.stages)):
                limit, there = self.memory.limits[mesh], (layer[mesh] for layer in self.resident)
                shares.append(spans([sum(each) / limit for each in zip(kept, there, strict=True)]))
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
            loads[mesh] += math.fsum(self.times[first : first + size]) / self.speeds[mesh]
            first += size
        return sorted(loads, reverse=True)

    def loads(self) -> NDArray[np.float64]:
        """Returns [stage, first layer, layer after the last]: the time of the stage's tasks of all microbatches."""
        table = spans(self.times) * self.microbatches
        return np.stack([table / self.speeds[self.shape[stage]] for stage in range(self.shape.stages)])

    def _ways(self, speed: float, *, both: bool) -> NDArray[np.float64]:
        """Returns [stage, first layer, layer after the last]: the least time before the stage's first task.

        With `both` it adds the least time after the stage's last task.
        """
        times = self.chain if both else self.times_of("forward")
        before = sums(times) / speed
        hops = np.arange(self.shape.stages) * self._least_hop * (2 if both else 1)
        return hops[:, None, None] + before[None, :, None]

    def left(self, cuts: Cuts) -> list[float]:
        """Returns the limit of each mesh without its resident bytes.

        A difference of about 0 becomes a tiny positive number, so that layers without activations still fit.
        """
        left, first = list(self.memory.limits), 0
        for stage, size in enumerate(cuts):
            mesh = self.shape[stage]
            left[mesh] -= math.fsum(layer[mesh] for layer in self.resident[first : first + size])
            first += size
        least = [limit * TOLERANCE for limit in self.memory.limits]
        return [few if abs(room) < few else room for room, few in zip(left, least, strict=True)]

    def bound(self, effort: Effort) -> float:
        """Returns a lower bound for all cuts and all orders. It may spend `effort`."""
        fastest, hop = max(self.speeds), self._least_hop
        changes = sum(self.shape[s] != self.shape[s + 1] for s in range(self.shape.stages - 1))
        bounds = [sum(self.chain) / fastest + 2 * hop * changes, self.microbatches * sum(self.times) / sum(self.speeds)]
        if self.shape == Placement.linear(self.shape.meshes):
            found = best_cuts(self.loads() + self._ways(fastest, both=not self.split_backward))
            bounds.append(found[0] if found else math.inf)
        elif len(set(self.times)) * self.shape.meshes <= _KINDS:
            effort.spend(UNITS * len(self.times) * self.shape.meshes * self.microbatches)
            times = [time * self.microbatches for time in self.times]
            bounds.append(least_time(times, self.speeds, self._ways_of_meshes(fastest)))
        if math.comb(len(self.times) - 1, self.shape.stages - 1) <= FEW_CUTS:
            bounds.append(min(self._bound_of(cuts, effort) for cuts in all_cuts(len(self.times), self.shape.stages)))
        return max(bounds)

    def _bound_of(self, cuts: Cuts, effort: Effort) -> float:
        """Returns a lower bound for all orders on these cuts. With limits in bytes the bound ignores memory."""
        problem = self.problem(cuts, None if self.in_bytes else self.memory)
        effort.spend(0)
        return lower_bound(problem)

    def _ways_of_meshes(self, speed: float) -> list[float]:
        """Returns the least time before the first task of each mesh.

        If backwards are whole, it adds the least time after the mesh's last task.
        """
        firsts = [min(self.shape.stages_of(mesh)) for mesh in range(self.shape.meshes)]
        times = self.times_of("forward") if self.split_backward else self.chain
        hops = self._least_hop * (1 if self.split_backward else 2)
        changes = [sum(self.shape[s] != self.shape[s + 1] for s in range(first)) for first in firsts]
        return [math.fsum(times[:first]) / speed + hops * count for first, count in zip(firsts, changes, strict=True)]

    @property
    def _least_hop(self) -> float:
        rows = self.costs.pair("hop", empty_of(self.shape))
        return min((hop for a, row in enumerate(rows) for b, hop in enumerate(row) if a != b), default=0.0)

    def why_nothing_fits(self) -> str:
        """Returns the reason for an error message: the bytes that the layers take, and the limits."""
        if not self.in_bytes:
            return ": a mesh keeps at least 1 microbatch"
        kept, there = math.fsum(self.bytes("activation_bytes")), math.fsum(map(min, self.resident))
        meshes = counted(self.shape.meshes, "mesh", "es")
        return (
            f", even if every stage recomputes: all layers take {there:,.0f} bytes at all times, and one microbatch "
            f"{kept:,.0f}; there is room for {math.fsum(self.memory.limits):,.0f} on {meshes}"
        )


def empty_of(shape: Placement) -> Schedule:
    """Returns a schedule on a placement, without tasks."""
    return Schedule("partition", shape, ((),) * shape.meshes)
