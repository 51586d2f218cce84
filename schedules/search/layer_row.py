"""A row of layers that is to be cut into stages: what holds for all cuts of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.problem import MemoryLimits
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.search.cuts import Cuts
from jaxpp.schedules.task import Placement


@dataclass(frozen=True)
class LayerRow:
    """The layers, and what holds for all cuts of them.

    Attributes:
        costs: a list for each kind of task, with a number for each layer.
        microbatches: how many there are.
        memory: the limits.
        resident: the bytes of each layer that are there at all times, mesh by mesh.
        split_backward: whether backwards are cut in two.
    """

    costs: Costs
    microbatches: int
    memory: MemoryLimits
    resident: tuple[tuple[float, ...], ...]
    split_backward: bool

    @property
    def in_bytes(self) -> bool:
        """Whether bytes are limited."""
        return self.memory.released_at is None and min(self.memory.limits) < math.inf

    def of(self, kind: str) -> list[float]:
        """The times of one kind of task, of each layer on a mesh of speed 1."""
        layers = Placement.of(*[0] * (self.costs.stages or 1))
        return replace(self.costs, speed=1.0).at_home(kind, Schedule("layers", layers, ((),)))

    @cached_property
    def times(self) -> list[float]:
        """Of each layer the time of all that a microbatch does there."""
        kinds = ("forward", "input_grad", "weight_grad") if self.split_backward else ("forward", "backward")
        return [sum(each) for each in zip(*map(self.of, kinds), strict=True)]

    @cached_property
    def chain(self) -> list[float]:
        """Of each layer the time of a microbatch on its way up and down again."""
        if not self.split_backward:
            return self.times
        return [sum(each) for each in zip(self.of("forward"), self.of("input_grad"), strict=True)]

    def why_nothing_fits(self, shape: Placement) -> str:
        """What a refusal says: what the layers take, and what there is."""
        if not self.in_bytes:
            return ": a mesh keeps at least 1 microbatch"
        layers = Schedule("layers", Placement.of(*[0] * (self.costs.stages or 1)), ((),))
        kept, there = math.fsum(self.costs.bytes("activation_bytes", layers)), math.fsum(map(min, self.resident))
        has = f"the {shape.meshes} meshes have {math.fsum(self.memory.limits):,.0f}"
        return (
            f", even if every stage recomputes: all layers take {there:,.0f} bytes at all times, and one microbatch "
            f"{kept:,.0f}; {has}"
        )

    def left(self, shape: Placement, cuts: Cuts) -> list[float]:
        """The limit of each mesh, less what is always there.

        Where that is all of it, next to nothing is left and not nothing: layers that keep nothing fit there.
        """
        left, first = list(self.memory.limits), 0
        for stage, size in enumerate(cuts):
            mesh = shape[stage]
            left[mesh] -= math.fsum(layer[mesh] for layer in self.resident[first : first + size])
            first += size
        least = [limit * TOLERANCE for limit in self.memory.limits]
        return [few if abs(room) < few else room for room, few in zip(left, least, strict=True)]


def empty_of(shape: Placement) -> Schedule:
    """A schedule on a placement, without tasks."""
    return Schedule("partition", shape, ((),) * shape.meshes)
