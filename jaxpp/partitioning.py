"""`cuts` and `jaxpp.partition`: which layers of a step that marks all of them each stage has."""

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, product, takewhile
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import own_copy
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.loop.assign_stages import AssignStages
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.merge_stages import LoopOfLayers, MergeStages, find_layers
from jaxpp.hlo_passes.loop.split_conditionals import SplitConditionals
from jaxpp.hlo_passes.loop.stage_graph import Reads, stage_reads
from jaxpp.hlo_passes.loop.unroll_layers import UnrollLayers
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.ir import attributes as at
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.program import Call, Program
from jaxpp.ir.read_program import ProgramReader
from jaxpp.ir.tensors import TensorSpec
from jaxpp.lowering.lower import Lowered
from jaxpp.memory_limit import Limit, limit_text
from jaxpp.runtime import Event, kept_places, mesh_speeds
from jaxpp.runtime.execution.options import Options
from jaxpp.schedules import Costs, Partition, Placement, Schedule, ScheduleError, Task
from jaxpp.schedules.cost_values import positive
from jaxpp.schedules.errors import true_or_false, whole_number
from jaxpp.schedules.layers import layers_of_stages
from jaxpp.schedules.search.cuts import Cuts, even_cuts
from jaxpp.step import LoweredStep


def cuts_options(cuts: Partition | Sequence[int] | None) -> dict[str, str]:
    """The options of passes that say it: "cuts", and with a partition "schedule".

    Raises:
        TypeError: it is neither a partition nor a row of whole numbers.
        ValueError: a stage has no layer.
    """
    if cuts is None:
        return {}
    if isinstance(cuts, Partition):
        return {"cuts": _text(cuts.cuts), "schedule": str(cuts.schedule)}
    sizes = layers_of_stages(cuts)
    if not sizes or min(sizes) < 1:
        raise ValueError(f"cuts: each stage has at least one layer, found {cuts!r}")
    return {"cuts": _text(sizes)}


def _text(cuts: Sequence[int]) -> str:
    return MergeStages(",".join(map(str, cuts))).cuts


class _Measurable(Protocol):
    """What `mpmd_jit_with_loop` makes."""

    def measure_layers(self, *args: Any) -> "Layers":
        """What each marked layer costs."""
        ...


def partition(
    step: _Measurable,
    *args: Any,
    memory_limit: Limit = None,
    chunks: int | None = 1,
    placement: str | Placement = "any",
    split_backward: bool = True,
    seconds: float = 10.0,
    seed: int = 0,
) -> Partition:
    """How many layers each stage should have, and their schedule, for a step that marks every layer.

    Each layer is a stage of its own once, one microbatch after the other, to find what it costs: a step is traced, or
    planned on the devices of a `jaxpp.target`. Equal layers are compiled once. From these costs `schedules.partition`
    finds the rest; give what it returns to the step:

        step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh, cuts=jaxpp.partition(step, *args))

    Args:
        step: of `mpmd_jit_with_loop`, with any schedule: it is not used.
        args: its arguments, which are not donated; or `jax.ShapeDtypeStruct`s, for which zeros are made.
        memory_limit: the bytes that each device may need at once, for all meshes or mesh by mesh. What a layer takes at
            all times, its parameters, gradients and state, is reckoned from the program.
        chunks: as for `schedules.partition`, as is all that follows.
        placement: see there.
        split_backward: see there.
        seconds: see there.
        seed: see there.

    Returns:
        The cuts, the schedule, the costs of the stages in milliseconds, the predicted makespan and a lower bound.

    Raises:
        PassError: the marks don't fit, as when it is compiled.
        ScheduleError: there are fewer layers than meshes, nothing fits the memory, or an argument is wrong.
        TypeError, ValueError: the limit is none, or the step; or it takes no gradients.
    """
    check_step("partition", step)
    positive(seconds, "seconds")
    whole_number(seed, "seed", least=0)
    split_backward = true_or_false(split_backward, "split_backward")
    layers = step.measure_layers(*args)
    limit = limit_text(memory_limit, len(layers.shares))
    return layers.partition(
        limit, chunks=chunks, placement=placement, split_backward=split_backward, seconds=seconds, seed=seed
    )


def check_step(who: str, step: Any) -> None:
    """Refuse what is no step that marks layers.

    Raises:
        TypeError: names `who` asks for one.
    """
    if not hasattr(step, "takes_cuts"):
        raise TypeError(f"{who}: expected a step of mpmd_jit_with_loop, which is not called yet, found {step!r}")
    if not step.takes_cuts:
        raise TypeError(f"{who}: the stages of mpmd_jit_by_yield are its marks, expected one of mpmd_jit_with_loop")


@dataclass(frozen=True)
class Layers:
    """What the layers of a step cost.

    Attributes:
        costs: with a stage for each layer, in milliseconds; the speed of each mesh is that of all its devices.
        resident: the bytes that each layer takes at all times on each device of each mesh: [layer][mesh].
        shares: of each mesh, how much of an activation each of its devices has: 1 if all of it, as where it is
            replicated.
        microbatches: how many there are.
        speeds: what is known of the speed of each mesh, as of `mesh_speeds`; the costs know it.
        reads: for each layer those whose results it reads.
    """

    costs: Costs
    resident: list[list[float]]
    shares: list[float]
    microbatches: int
    speeds: list[float]
    reads: Reads

    def cut(self, cuts: Sequence[int]) -> "Layers":
        """What so many neighbours together cost, each as one layer."""
        ends = list(accumulate(cuts))
        stages = [self.resident[end - size : end] for size, end in zip(cuts, ends, strict=True)]
        resident = [list(map(math.fsum, zip(*stage, strict=True))) for stage in stages]
        stage_of = [stage for stage, size in enumerate(cuts) for _ in range(size)]
        reads: list[set[int]] = [set() for _ in cuts]
        for stage, read in zip(stage_of, self.reads, strict=True):
            reads[stage].update(stage_of[layer] for layer in read if stage_of[layer] != stage)
        whole = tuple(tuple(sorted(each)) for each in reads)
        return replace(self, costs=self.costs.cut(cuts), resident=resident, reads=whole)

    @property
    def is_chain(self) -> bool:
        """Whether each layer comes after the one before it: then no two of them can run side by side."""
        return all(layer in read for layer, read in enumerate(self.reads[1:]))

    def partition(
        self, memory_limit: str, *, split_backward: bool = True, seconds: float, seed: int = 0, **options: Any
    ) -> Partition:
        """`schedules.partition` of them; the limit is in bytes per device, as the option of `verify-program`.

        Costs are of whole activations: a mesh has room for as many bytes of these as lie on a device, divided by its
        share. The cuts are those of a chain. Where the stages that they make are a graph, its order is taken if it is
        shorter.

        Raises:
            ScheduleError: nothing fits the memory.
        """
        limits = [float(word) for word in memory_limit.split()] or [math.inf]
        each = limits * len(self.shares) if len(limits) == 1 else limits
        by_mesh = [limit / share for limit, share in zip(each, self.shares, strict=False)]
        parts = 1 if self.is_chain else 2
        same: dict[str, Any] = {"split_backward": split_backward, "seconds": seconds / parts, "seed": seed}
        found = schedules.partition(
            self.costs,
            len(self.shares),
            self.microbatches,
            memory_bytes=by_mesh,
            resident_bytes=[list(map(operator.truediv, layer, self.shares)) for layer in self.resident],
            **same,
            **options,
        )
        return found if self.is_chain else self._side_by_side(found, by_mesh, same)

    def _side_by_side(self, found: Partition, limits: Sequence[float], options: Mapping[str, Any]) -> Partition:
        """What was found for a chain, or the order of the graph of its stages where that takes less.

        limits: the bytes of each mesh. options: of the search.
        """
        found = replace(found, lower_bound=min(found.lower_bound, self._least()))
        stages, placement = self.cut(found.cuts), found.schedule.placement
        if stages.is_chain:
            return found
        left = list(limits)
        for resident, (mesh, *_) in zip(stages.resident, placement.homes, strict=True):
            left[mesh] -= resident[mesh] / self.shares[mesh]
        placement = replace(placement, after=stages.reads)
        try:
            order = schedules.search(
                len(left), self.microbatches, found.costs, placement=placement, memory_bytes=left, **options
            )
        except ScheduleError:  # no order that was tried fits the memory
            return found
        return replace(found, schedule=order, value=order.value) if order.value < found.value else found

    def _least(self) -> float:
        """What any order takes of any graph of these layers: their work, divided by the speed of all meshes."""
        kinds = ("forward", "input_grad", "weight_grad")
        times = [cast("Sequence[float]", getattr(self.costs, kind)) for kind in kinds]
        speed = float(np.broadcast_to(np.array(self.costs.speed), len(self.shares)).sum())
        return self.microbatches * math.fsum(map(math.fsum, times)) / speed


class LayeredStep:
    """A step of which each marked layer is a stage of its own, to find what it costs.

    schedule: one microbatch after the other.
    compiled: the step, which computes what it computes in any other schedule.
    """

    def __init__(self, lowered: Lowered, compiler_options: Options | None, passes: Mapping[str, str], who: str) -> None:
        loop = loop_of_layers(lowered.module)
        if not loop.has_backward:
            raise ValueError(
                f"{who}: layers are cut by their forwards and backwards, and this step takes no gradients: give the "
                f"step of the training; its cuts hold here as well"
            )
        self.schedule = schedule_of_layers(loop, lowered.mpmd_mesh.mpmd_dim, who)
        kept = {name: value for name, value in passes.items() if name in ("gather_weights", "scatter_gradients")}
        self.lowered = LoweredStep(lowered, None, compiler_options, kept | {"schedule": str(self.schedule)})
        self.compiled = self.lowered.compile()
        self.reads = reads_of_layers(lowered.module, self.schedule)

    def layers(self, *steps: Sequence[Event], slow: Mapping[int, float] | None = None) -> Layers:
        """What the layers cost, by traced steps; on devices that are not here by the plan, without any.

        slow: the speeds of meshes that are known to be slow; no faster ones are measured.
        """
        costs, program = self.compiled.costs(*steps), self.compiled.executable.program
        devices = list(program.partitions)
        module = self.lowered.program()
        sizes = _DeviceBytes(program, _as_written(module.module))
        resident, shares = sizes.resident(self.schedule, module.peak_bytes), sizes.shares
        in_costs = mesh_speeds(program, *steps, average=statistics.median)  # costs are medians, too
        known = [(slow or {}).get(mesh, 1.0) for mesh in range(len(devices))]
        speeds = list(map(min, in_costs, mesh_speeds(program, *steps), known))
        costs = _by_speed(costs, self.schedule, devices, in_costs, speeds)
        return Layers(costs, resident, shares, self.schedule.microbatches, speeds, self.reads)


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


def array_of(leaf: Any) -> Any:
    """The leaf; zeros where only its shape is given."""
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


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

        The layers of a mesh have it in proportion to the bytes of the arguments that they read, on any mesh.
        """
        meshes = range(self.program.meshes)
        read = [[1.0 for _ in meshes] for _ in range(schedule.stages)]
        for argument in self.written.arguments.values():
            for mesh, register in argument.registers:
                calls = (each for each in self.written.sequences[mesh] if isinstance(each, Call))
                readers = {call.stage for call in calls if call.stage is not None and register in call.operands}
                for stage, (where, size) in product(readers, enumerate(self.of(argument.spec))):
                    read[stage][where] += size / len(readers)
        homes = [schedule.placement[stage] for stage in range(schedule.stages)]
        there, always = [0.0 for _ in meshes], list(map(float, peaks))
        for stage, mesh in enumerate(homes):
            there[mesh] += read[stage][mesh]
            always[mesh] -= self._kept[stage][mesh]
        factors = [max(0.0, have) / of for have, of in zip(always, there, strict=True)]
        return [[size * factors[home] for size in row] for row, home in zip(read, homes, strict=True)]
