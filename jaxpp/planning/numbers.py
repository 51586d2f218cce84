"""The numbers of a plan as plain data: predicted time and memory of a step on devices that are not here."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from jaxpp import schedules
from jaxpp.targets.chips import CHIPS, Chip


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
    """One compiled function. Numbers are per device and per call, unless stated otherwise.

    Attributes:
        name: the name of the function.
        kind: the kind of its tasks: "forward", "backward+forward" if they are fused, "before" and "after" around the
            loop.
        stages: the stages of its tasks; equal stages share one program.
        calls: the number of calls in one step, on all meshes together.
        argument_bytes: the bytes of the arguments in device memory, in the compiler's layout.
        output_bytes: the bytes of the outputs in device memory, in the compiler's layout.
        alias_bytes: the bytes of the outputs that reuse the buffers of arguments.
        temp_bytes: the bytes of the temporaries in device memory.
        code_bytes: the bytes of the machine code.
        accounted_bytes: the bytes of arguments and outputs less aliases, from shapes and shardings.
        products: the FLOPs of matrix products and convolutions, on all devices together.
        accessed_bytes: the bytes that operations read and write.
        collective_bytes: the bytes that a device sends in collectives.
        seconds: the time of a call, the sum of the next three.
        product_seconds: the time of products and convolutions.
        memory_seconds: the time of memory accesses.
        collective_seconds: the time of collectives.
        compile_seconds: the time of the compilation on the machine that planned.
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
    product_seconds: float
    memory_seconds: float
    collective_seconds: float
    compile_seconds: float = dataclasses.field(compare=False)
    timed_by: str

    @property
    def padding_bytes(self) -> int:
        """The bytes that the compiler's layout adds to the shapes of arguments and outputs."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes - self.accounted_bytes


@dataclasses.dataclass(frozen=True)
class MeshPlan:
    """One mesh. Bytes are per device, unless stated otherwise.

    Attributes:
        stages: the stages that the mesh runs.
        devices: the number of its devices.
        hosts: the number of hosts of these devices.
        argument_bytes: the bytes of the step's arguments on the mesh.
        temp_bytes: the most temporaries of one of its programs.
        peak_bytes: the peak bytes, with temporaries, padding and the code of all its programs.
        host_bytes: the peak bytes in the memory of the host.
        products: the FLOPs of matrix products and convolutions of one step, on all its devices together.
        sent_bytes: the bytes that all its devices together send to other meshes in a step.
        busy_seconds: the time in which it computes in one step, the sum of the next three.
        product_seconds: the time of products and convolutions.
        memory_seconds: the time of memory accesses.
        collective_seconds: the time of collectives.
        calls: the number of calls of programs in one step.
        compile_seconds: the longest time of the compilation of one of its programs, on the machine that planned.
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
    product_seconds: float
    memory_seconds: float
    collective_seconds: float
    calls: int
    compile_seconds: float = dataclasses.field(compare=False)

    @property
    def kept_bytes(self) -> int:
        """The part of the peak that is neither arguments nor temporaries: residuals, sums of gradients, code."""
        return max(self.peak_bytes - self.argument_bytes - self.temp_bytes, 0)


@dataclasses.dataclass(frozen=True)
class HopPlan:
    """The messages from one mesh to another in a step.

    Attributes:
        source: the sending mesh.
        target: the receiving mesh.
        messages: the number of messages.
        bytes: the bytes of all messages.
        seconds: the time of the longest message, if no other uses its link.
    """

    source: int
    target: int
    messages: int
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers of a `Plan`: the predicted time, FLOPs and memory of a step on a target.

    Attributes:
        name: the name of the step.
        target: the name of the target.
        chip: the name of its chip.
        compilers: the names and versions of the compilers.
        microbatches: the number of microbatches of a step.
        schedule: the schedule as a grid.
        step_seconds: the predicted time of a step, from its start to the end of its last task or transfer.
        hidden_seconds: the same if, in each call, the longest of products, memory accesses and collectives hides the
            others.
        prepare_seconds: the time of tracing, lowering and passes on the machine that planned; 0 if it is not known.
        model_flops: the FLOPs of the model in a step: three times the products of the forwards. Without backwards it is
            these products once; where a forward has no program of its own, it is the products of all tasks.
        products: the FLOPs of products by element type, on all devices together.
        meshes: one entry per mesh.
        programs: the compiled functions; the one with the most time per step comes first.
        hops: one entry per pair of meshes with messages.
        cost_table: the data of `costs`.
    """

    name: str
    target: str
    chip: str
    compilers: str
    microbatches: int
    schedule: str
    step_seconds: float
    hidden_seconds: float
    prepare_seconds: float = dataclasses.field(compare=False)
    model_flops: int
    products: Mapping[str, int]
    meshes: tuple[MeshPlan, ...]
    programs: tuple[ProgramPlan, ...]
    hops: tuple[HopPlan, ...]
    cost_table: Mapping[str, Any]

    def costs(self, unit: str = "ms") -> schedules.Costs:
        """Returns the costs of tasks and transfers, for `jaxpp.schedules.simulate`, `search` and `tune`.

        Args:
            unit: the unit of time: "s", "ms" or "us".

        Raises:
            ScheduleError: the unit is unknown.
        """
        return schedules.Costs.of_table(self.cost_table).in_unit(unit)

    @property
    def facts(self) -> Chip:
        """The facts of the chip."""
        return CHIPS[self.chip]

    @property
    def devices(self) -> int:
        """The number of devices that run the step."""
        return sum(mesh.devices for mesh in self.meshes)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The peak bytes on each device, for each mesh."""
        return tuple(mesh.peak_bytes for mesh in self.meshes)

    @property
    def fits(self) -> bool:
        """Whether every mesh has the memory that it needs."""
        return max(self.peak_bytes) <= self.facts.memory_bytes

    def activation_limits(self) -> list[float]:
        """Returns the most bytes of activations with which each mesh fits, on all its devices together.

        Everything else that the plan needs, such as arguments, is assumed to stay the same. A limit may be below 0.
        """
        kept = schedules.simulate(schedules.parse(self.schedule), self.costs()).peak_bytes()
        memory = self.facts.memory_bytes
        return [
            mesh.devices * (memory - mesh.peak_bytes) + activations
            for mesh, activations in zip(self.meshes, kept, strict=True)
        ]

    @property
    def utilisation(self) -> float:
        """The model FLOP utilisation: `model_flops` as a share of the peak FLOPs of all devices in a step."""
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
