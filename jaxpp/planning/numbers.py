"""The numbers of a plan: what a step takes on devices that are not here, as plain data."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from jaxpp import schedules
from jaxpp.planning.chips import CHIPS, Chip


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
    """One compiled function, for each device that runs it.

    Attributes:
        name: of the function.
        kind: of its tasks: "forward", "backward+forward" where they are fused, "before" and "after" around the loop.
        stages: of its tasks; equal stages have one program.
        calls: in one step, of all meshes together.
        argument_bytes: by the compiler, in the memory of the device, as the next three.
        output_bytes: see above.
        alias_bytes: of the outputs that take the place of arguments.
        temp_bytes: see above.
        code_bytes: see above.
        accounted_bytes: arguments and outputs, less aliases, by the shapes and shardings of the program.
        products: FLOPs of matrix products and convolutions, of all devices together.
        accessed_bytes: read and written by operations.
        collective_bytes: sent in collectives.
        seconds: of one call.
        timed_by: "compiler" or "roofline".
    """

    name: str
    kind: str
    stages: tuple[int, ...]
    calls: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    accounted_bytes: int
    products: int
    accessed_bytes: float
    collective_bytes: float
    seconds: float
    timed_by: str

    @property
    def padding_bytes(self) -> int:
        """What the compiler needs for arguments and outputs beyond their shapes."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes - self.accounted_bytes


@dataclasses.dataclass(frozen=True)
class MeshPlan:
    """One mesh; bytes are of each of its devices.

    Attributes:
        stages: that it runs.
        devices: how many it has.
        hosts: how many these are on.
        argument_bytes: what it holds between two steps.
        temp_bytes: the temporaries of the program that has most.
        peak_bytes: the most that it needs at once, with temporaries, padding and the code of its programs.
        host_bytes: likewise in the memory of the host.
        products: FLOPs of matrix products and convolutions of one step, of all its devices together.
        sent_bytes: to other meshes, of all its devices together.
        busy_seconds: of one step.
    """

    stages: tuple[int, ...]
    devices: int
    hosts: int
    argument_bytes: int
    temp_bytes: int
    peak_bytes: int
    host_bytes: int
    products: int
    sent_bytes: int
    busy_seconds: float

    @property
    def kept_bytes(self) -> int:
        """The part of the peak that is neither arguments nor temporaries: residuals, sums of gradients, code."""
        return max(self.peak_bytes - self.argument_bytes - self.temp_bytes, 0)


@dataclasses.dataclass(frozen=True)
class HopPlan:
    """What one mesh sends to another in a step; `seconds` is that of the longest message, alone on its way."""

    source: int
    target: int
    messages: int
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What a step takes on a target: the numbers of a `Plan`.

    Attributes:
        name: of the step.
        target: the target's name.
        chip: the name of its chip.
        compilers: the versions that compiled it.
        microbatches: of a step.
        schedule: of its tasks, as a grid.
        step_seconds: predicted, from the first task to the last.
        model_flops: of a step: three times the products of the forwards.
        products: the FLOPs of products by element type, of all devices together.
        meshes: one for each mesh.
        programs: the compiled functions, the longest of a step first.
        hops: between meshes that send.
        cost_table: of `costs`.
    """

    name: str
    target: str
    chip: str
    compilers: str
    microbatches: int
    schedule: str
    step_seconds: float
    model_flops: int
    products: Mapping[str, int]
    meshes: tuple[MeshPlan, ...]
    programs: tuple[ProgramPlan, ...]
    hops: tuple[HopPlan, ...]
    cost_table: Mapping[str, Any]

    def costs(self, unit: str = "ms") -> schedules.Costs:
        """What tasks and hops cost, for `jaxpp.schedules.simulate`, `search` and `tune`.

        Args:
            unit: of time: "s", "ms" or "us".

        Raises:
            ScheduleError: the unit is none.
        """
        return schedules.Costs.of_table(self.cost_table).in_unit(unit)

    @property
    def facts(self) -> Chip:
        """What is known of the chip."""
        return CHIPS[self.chip]

    @property
    def devices(self) -> int:
        """How many devices run the step."""
        return sum(mesh.devices for mesh in self.meshes)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most that each device of each mesh needs at once."""
        return tuple(mesh.peak_bytes for mesh in self.meshes)

    @property
    def fits(self) -> bool:
        """Whether every mesh has the memory that it needs."""
        return max(self.peak_bytes) <= self.facts.memory_bytes

    def activation_limits(self) -> list[float]:
        """Returns the bytes that the activations of each mesh may take, on all its devices together, for it to fit.

        Whatever else the plan needs, such as arguments, stays; a limit may be below 0.
        """
        kept = schedules.simulate(schedules.parse(self.schedule), self.costs()).peak_bytes()
        memory = self.facts.memory_bytes
        return [
            mesh.devices * (memory - mesh.peak_bytes) + activations
            for mesh, activations in zip(self.meshes, kept, strict=True)
        ]

    @property
    def utilisation(self) -> float:
        """The model FLOP utilisation: `model_flops` as a share of what all devices could compute in a step."""
        total = sum(self.products.values())
        if not total or not self.step_seconds:
            return 0.0
        ideal = sum(count / self.facts.peak(element) for element, count in self.products.items()) / total
        return self.model_flops * ideal / self.devices / self.step_seconds

    @cached_property
    def bubble(self) -> float:
        """The share of the step in which a mesh, on average, does nothing."""
        busy = sum(mesh.busy_seconds for mesh in self.meshes) / len(self.meshes)
        return 1 - busy / self.step_seconds if self.step_seconds else 0.0
