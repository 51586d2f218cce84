"""A step of which each marked layer is a stage of its own, to find what the layers cost."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product, takewhile
from typing import Final, cast

from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.loop.assign_stages import AssignStages
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.merge_stages import LoopOfLayers, find_layers
from jaxpp.hlo_passes.loop.split_conditionals import SplitConditionals
from jaxpp.hlo_passes.loop.stage_graph import Reads, stage_reads
from jaxpp.hlo_passes.loop.unroll_layers import UnrollLayers
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.liveness import loop_peaks
from jaxpp.ir import attributes as at
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.program import Call, Program
from jaxpp.ir.read_program import ProgramReader
from jaxpp.ir.tensors import TensorSpec
from jaxpp.layers import Layers, Peaks
from jaxpp.lowering.lower import Lowered
from jaxpp.partitioning import cuts_options
from jaxpp.program import rewrite
from jaxpp.runtime import Event, kept_places, load, mesh_speeds
from jaxpp.runtime.execution.options import Options
from jaxpp.schedules import Costs, Placement, Schedule, ScheduleError, Task
from jaxpp.schedules.search.cuts import Cuts, even_cuts
from jaxpp.step import LoweredStep

_KEPT: Final = ("gather_weights", "scatter_gradients")
"""The options of a step that its layers have when they are measured."""


class LayeredStep:
    """A step of which each marked layer is a stage of its own, to find what it costs.

    schedule: one microbatch after the other.
    compiled: the step, which computes what it computes in any other schedule.
    donating: lowers the step as it donates, whose programs say what cuts need of the memory. If not given, this is the
        step that is measured.
    """

    def __init__(
        self,
        lowered: Lowered,
        compiler_options: Options | None,
        passes: Mapping[str, str],
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
        """What the layers cost, by traced steps; on devices that are not here by the plan, without any.

        slow: the speeds of meshes that are known to be slow; no faster ones are measured.
        """
        costs, program = self.compiled.costs(*steps), self.compiled.executable.program
        devices = list(program.partitions)
        sizes = _DeviceBytes(program, _as_written(self.lowered.program().module))
        resident, shares = sizes.resident(self.schedule, loop_peaks(program)), sizes.shares
        in_costs = mesh_speeds(program, *steps, average=statistics.median)  # costs are medians, too
        known = [(slow or {}).get(mesh, 1.0) for mesh in range(len(devices))]
        speeds = list(map(min, in_costs, mesh_speeds(program, *steps), known))
        costs = _by_speed(costs, self.schedule, devices, in_costs, speeds)
        return Layers(costs, resident, shares, self.schedule.microbatches, speeds, self.reads, self._peaks)

    def _peaks(self, cuts: Cuts, schedule: Schedule) -> Peaks:
        """By the program of the step in these cuts and this order."""
        found = rewrite(self._donating(), None, {**self._kept, **cuts_options(cuts), "schedule": str(schedule)})
        return loop_peaks(load(found.module)), found.peak_bytes


def loop_of_layers(module: ir.Module) -> LoopOfLayers:
    """What a lowered step, which stays as it is, says of its marked layers.

    Raises:
        PassError: the marks are not in one loop over microbatches.
    """
    copy = own_copy(module)
    run_passes(copy, (InlineCalls(), SplitConditionals(), UnrollLayers()))
    with copy.context, ir.Location.unknown():
        return find_layers(copy)


def reads_of_layers(module: ir.Module, schedule: Schedule) -> Reads:
    """Which layers of a lowered step, which stays as it is, read which; `schedule` has a stage for each."""
    copy = own_copy(module)
    run_passes(copy, tuple(takewhile(lambda step: not isinstance(step, AssignStages), mpmd(str(schedule)))))
    with copy.context, ir.Location.unknown():
        return stage_reads(MicrobatchLoop.of(copy))


def cuts_of_layers(loop: LoopOfLayers, meshes: int, who: str) -> Cuts:
    """As many marked layers on each mesh.

    Raises:
        ScheduleError: there are fewer layers than meshes; `who` asks for them.
    """
    if loop.layers < meshes:
        raise ScheduleError(f"{who}: {loop.layers} marked layers are fewer than {meshes} meshes: mark every layer")
    return even_cuts(loop.layers, meshes)


def schedule_of_layers(loop: LoopOfLayers, meshes: int, who: str) -> Schedule:
    """Each marked layer of a loop as a stage, equally many on each mesh, microbatch after microbatch.

    Raises:
        ScheduleError: there are fewer layers than meshes; `who` asks for them.
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
    """The costs of layers that were measured on meshes of different size or speed, as on one of the smallest.

    in_costs: the speeds that the times of the layers show, which may be less slow than the meshes are.
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
    """The program as if all meshes had the size for which it was written: an axis of one device shards nothing."""
    copy = own_copy(module)
    with copy.context:
        if at.MESH_SIZES in copy.operation.attributes:
            del copy.operation.attributes[at.MESH_SIZES]
        return ProgramReader(copy).program


@dataclass(frozen=True)
class _DeviceBytes:
    """What values take on the devices of each mesh, by their shardings.

    written: the program, as if all meshes had the size for which it was written.
    """

    program: Program
    written: Program

    def of(self, spec: TensorSpec) -> list[int]:
        """What a value would take on each device of each mesh."""
        return [self.program.shard_bytes(mesh, spec)[0] for mesh in range(self.program.meshes)]

    @cached_property
    def _kept(self) -> dict[int, list[int]]:
        """For each stage what one microbatch keeps on each device of each mesh."""
        registers = self.written.registers
        return {
            stage: list(map(sum, zip(*(self.of(registers[mesh][register]) for mesh, register in places), strict=True)))
            or [0] * self.program.meshes
            for stage, places in kept_places(self.program).items()
        }

    @property
    def shares(self) -> list[float]:
        """How much of an activation each device of each mesh has, on average over all layers."""
        places = chain.from_iterable(kept_places(self.program).values())
        whole = sum(self.program.registers[mesh][register].device_bytes for mesh, register in places)
        if not whole:
            return [1 / devices for devices in self.program.partitions]
        return [sum(each) / whole for each in zip(*self._kept.values(), strict=True)]

    def resident(self, schedule: Schedule, peaks: Sequence[int]) -> list[list[float]]:
        """What each layer takes at all times: the most that its mesh needs, less the activations of one microbatch.

        The layers of a mesh have it in proportion to the bytes of the arguments that they read, on any mesh. What is
        whole on several meshes, as a stack of layers may be, is there whichever layers a mesh has, and left out.
        """
        meshes, always = range(self.program.meshes), list(map(float, peaks))
        read = [[1.0 for _ in meshes] for _ in range(schedule.stages)]
        for argument in self.written.arguments.values():
            if len(argument.registers) > 1 and not argument.stacked:
                for mesh, _ in argument.registers:
                    always[mesh] -= self.of(argument.spec)[mesh]
            for mesh, register in argument.registers:
                calls = (each for each in self.written.sequences[mesh] if isinstance(each, Call))
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
