"""A row of layers that is to be cut into stages, with all that does not depend on the cuts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.errors import counted
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement


@dataclass(frozen=True)
class LayerRow:
    """The layers, with all that does not depend on the cuts.

    Attributes:
        costs: a list for each kind of task, with a number for each layer.
        microbatches: the number of microbatches.
        memory: the memory limits.
        resident: the resident bytes of each layer on each mesh.
        split_backward: whether input and weight gradients are tasks of their own.
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

    def why_nothing_fits(self, shape: Placement) -> str:
        """Returns the reason for an error message: the bytes that the layers take, and the limits."""
        if not self.in_bytes:
            return ": a mesh keeps at least 1 microbatch"
        kept, there = math.fsum(self.bytes("activation_bytes")), math.fsum(map(min, self.resident))
        meshes = counted(shape.meshes, "mesh", "es")
        return (
            f", even if every stage recomputes: all layers take {there:,.0f} bytes at all times, and one microbatch "
            f"{kept:,.0f}; there is room for {math.fsum(self.memory.limits):,.0f} on {meshes}"
        )


def empty_of(shape: Placement) -> Schedule:
    """Returns a schedule on a placement, without tasks."""
    return Schedule("partition", shape, ((),) * shape.meshes)
