"""A step in which each marked layer is a separate stage, to measure the costs of the layers."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product, takewhile
from typing import Any, Final, cast

from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.loop.assign_stages import AssignStages
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.number_stages import LoopOfLayers, find_layers
from jaxpp.hlo_passes.loop.stage_graph import Reads, stage_reads
from jaxpp.hlo_passes.loop.unroll_loops import UnrollLoops
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.ir import attributes as at
from jaxpp.ir.liveness import loop_peaks
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.program import Program
from jaxpp.ir.read_program import ProgramReader
from jaxpp.ir.tensors import TensorSpec
from jaxpp.lowering.lower import Lowered
from jaxpp.program import rewrite
from jaxpp.runtime import Event, kept_places, mesh_speeds
from jaxpp.runtime.execution.options import Options
from jaxpp.schedules import Costs, Placement, Schedule, ScheduleError, Task
from jaxpp.schedules.search.cuts import Cuts, even_cuts
from jaxpp.step import LoweredStep
from jaxpp.tuning.layers import Layers, Peaks
from jaxpp.tuning.partitioning import cuts_options

_KEPT: Final = ("gather_weights", "scatter_gradients", "own")
"""The options of the step that also apply when its layers are measured."""


class LayeredStep:
    """A step in which each marked layer is a separate stage, to measure the costs of the layers.

    schedule: the schedule with a stage per layer; it runs one microbatch after the other.
    compiled: the compiled step, which has the same results as under any other schedule.
    donating: lowers the step with its donated arguments; the memory peaks of cuts are read from its programs. Without
        this argument, they are read from programs of the measured step.
    """

    def __init__(
        self,
        lowered: Lowered,
        compiler_options: Options | None,
        passes: Mapping[str, Any],
        who: str,
        donating: Callable[[], Lowered] | None = None,
    ) -> None:
        loop = loop_of_layers(lowered.module)
        if not loop.has_backward:
            raise ValueError(
                f"{who}: layers are cut by their forwards and backwards, and this step takes no gradients: give the "
                f"step of the training; its cuts hold here as well"
            )
        self.schedule = schedule_of_layers(loop, lowered.mpmd_mesh.mpmd_dim, who)
        self._donating = donating or (lambda: lowered)
        self._kept = {key: passes[key] for key in _KEPT if key in passes}
        self.lowered = LoweredStep(lowered, None, compiler_options, self._kept | {"schedule": str(self.schedule)})
        self.compiled = self.lowered.compile()
        self.reads = reads_of_layers(lowered.module, self.schedule)

    def layers(self, *steps: Sequence[Event], slow: Mapping[int, float] | None = None) -> Layers:
        """Returns the costs of the layers from the events of traced steps; without steps, from the plan of a target.

        slow: upper bounds on the speeds of meshes that are known to be slow.
        """
        costs, program = self.compiled.costs(*steps), self.compiled.executable.program
        devices = list(program.partitions)
        sizes = _DeviceBytes(program, _as_written(self.lowered.program().copy().module))
        resident, shares = sizes.resident(self.schedule, loop_peaks(program)), sizes.shares
        in_costs = mesh_speeds(program, *steps, average=statistics.median)  # costs are medians too
        known = [(slow or {}).get(mesh, 1.0) for mesh in range(len(devices))]
        speeds = list(map(min, in_costs, mesh_speeds(program, *steps), known))
        costs = _by_speed(costs, self.schedule, devices, in_costs, speeds)
        return Layers(costs, resident, shares, self.schedule.microbatches, speeds, self.reads, self._peaks)

    def _peaks(self, cuts: Cuts, schedule: Schedule) -> Peaks:
        """Rewrites the step with these cuts and this schedule, and returns the peaks of its program."""
        found = rewrite(self._donating(), None, {**self._kept, **cuts_options(cuts), "schedule": str(schedule)})
        return loop_peaks(found.loaded), found.peak_bytes


def loop_of_layers(module: ir.Module) -> LoopOfLayers:
    """Returns the numbers of layers and microbatches of a lowered step; does not change `module`.

    Raises:
        PassError: the marks are not in one loop over microbatches.
    """
    copy = own_copy(module)
    run_passes(copy, (InlineCalls(), FindMicrobatchLoop("gpipe", 1), UnrollLoops()))
    with copy.context, ir.Location.unknown():
        return find_layers(copy)


def reads_of_layers(module: ir.Module, schedule: Schedule) -> Reads:
    """Returns for each layer of a lowered step the layers that it reads; does not change `module`.

    schedule: a schedule with one stage per layer.
    """
    copy = own_copy(module)
    run_passes(copy, tuple(takewhile(lambda step: not isinstance(step, AssignStages), mpmd(str(schedule)))))
    with copy.context, ir.Location.unknown():
        return stage_reads(MicrobatchLoop.of(copy))


def cuts_of_layers(loop: LoopOfLayers, meshes: int, who: str) -> Cuts:
    """Returns cuts with equally many marked layers on each mesh; the first meshes may have one more.

    Raises:
        ScheduleError: there are fewer layers than meshes. The message begins with `who`.
    """
    if loop.layers < meshes:
        raise ScheduleError(f"{who}: {loop.layers} marked layers are fewer than {meshes} meshes: mark every layer")
    return even_cuts(loop.layers, meshes)


def schedule_of_layers(loop: LoopOfLayers, meshes: int, who: str) -> Schedule:
    """Returns a schedule with one stage per marked layer, which runs one microbatch after the other.

    Each mesh has equally many neighbouring layers; the first meshes may have one more.

    Raises:
        ScheduleError: there are fewer layers than meshes. The message begins with `who`.
    """
    layers, microbatches, _ = loop
    homes = [mesh for mesh, size in enumerate(cuts_of_layers(loop, meshes, who)) for _ in range(size)]
    rows: list[list[Task]] = [[] for _ in range(meshes)]
    for microbatch in range(microbatches):
        for layer in range(layers):
            rows[homes[layer]].append(Task("forward", layer, microbatch))
        for layer in reversed(range(layers)):
            rows[homes[layer]] += [Task(kind, layer, microbatch) for kind in ("input_grad", "weight_grad")]
    return Schedule("layers", Placement.of(*homes), tuple(map(tuple, rows)))


def _by_speed(
    costs: Costs, schedule: Schedule, devices: Sequence[int], in_costs: Sequence[float], speeds: Sequence[float]
) -> Costs:
    """Returns the costs as if all layers had run on one of the smallest meshes at full speed.

    The costs get the speed of each mesh, relative to that mesh. They stay as they are if all meshes are alike.

    devices: the number of devices of each mesh.
    in_costs: the speeds with which the layers were measured.
    speeds: the speeds of the meshes; they may be lower than `in_costs`.
    """
    size = [count / min(devices) for count in devices]
    shown = list(map(operator.mul, size, in_costs))
    speed = list(map(operator.mul, size, speeds))
    if len(set(zip(shown, speed, strict=True))) == 1:
        return costs
    kinds = ("forward", "input_grad", "weight_grad")
    times = {
        kind: [
            time * shown[schedule.placement[layer]]
            for layer, time in enumerate(cast("Sequence[float]", getattr(costs, kind)))
        ]
        for kind in kinds
    }
    return replace(costs, **times, speed=speed)


def _as_written(module: ir.Module) -> Program:
    """Returns the program as if all meshes had the largest sizes of the axes.

    Otherwise values on a mesh whose axis has one device would lack their shardings.
    """
    with module.context:
        if at.MESH_SIZES in module.operation.attributes:
            del module.operation.attributes[at.MESH_SIZES]
        return ProgramReader(module).program


@dataclass(frozen=True)
class _DeviceBytes:
    """The bytes of values on the devices of each mesh, by their shardings.

    program: the program.
    written: the program as if all meshes had the largest sizes of the axes.
    """

    program: Program
    written: Program

    def of(self, spec: TensorSpec) -> list[int]:
        """Returns the bytes that a value would take on each device of each mesh."""
        return [self.program.shard_bytes(mesh, spec)[0] for mesh in range(self.program.meshes)]

    @cached_property
    def _kept(self) -> dict[int, list[int]]:
        """For each stage the bytes of the residuals of one microbatch, on each device of each mesh."""
        registers = self.written.registers
        return {
            stage: list(map(sum, zip(*(self.of(registers[mesh][register]) for mesh, register in places), strict=True)))
            or [0] * self.program.meshes
            for stage, places in kept_places(self.program).items()
        }

    @property
    def shares(self) -> list[float]:
        """For each mesh the share of an activation that is on each of its devices, averaged over all layers."""
        places = chain.from_iterable(kept_places(self.program).values())
        whole = sum(self.program.registers[mesh][register].device_bytes for mesh, register in places)
        if not whole:
            return [1 / devices for devices in self.program.partitions]
        return [sum(each) / whole for each in zip(*self._kept.values(), strict=True)]

    def resident(self, schedule: Schedule, peaks: Sequence[int]) -> list[list[float]]:
        """Returns the bytes that each layer takes at all times on each device of each mesh: [layer][mesh].

        The layers of a mesh share its peak, less the residuals of one microbatch. Each layer's share is proportional to
        the bytes of the arguments that it reads. An argument that several meshes hold in whole, such as a stack of
        layers, is left out: a mesh holds it whichever layers it has.
        """
        meshes, always = range(self.program.meshes), list(map(float, peaks))
        read = [[1.0 for _ in meshes] for _ in range(schedule.stages)]
        for argument in self.written.arguments.values():
            if len(argument.registers) > 1 and not argument.stacked:
                for mesh, _ in argument.registers:
                    always[mesh] -= self.of(argument.spec)[mesh]
            for mesh, register in argument.registers:
                calls = self.written.calls[mesh]
                readers = {call.stage for call in calls if call.stage is not None and register in call.operands}
                for stage, (where, size) in product(readers, enumerate(self.of(argument.spec))):
                    read[stage][where] += size / len(readers)
        homes = [schedule.placement[stage] for stage in range(schedule.stages)]
        there = [0.0 for _ in meshes]
        for stage, mesh in enumerate(homes):
            there[mesh] += read[stage][mesh]
            always[mesh] -= self._kept[stage][mesh]
        factors = [max(0.0, have) / of for have, of in zip(always, there, strict=True)]
        return [[size * factors[home] for size in row] for row, home in zip(read, homes, strict=True)]
