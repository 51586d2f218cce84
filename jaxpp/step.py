"""A step on its way: lowered, rewritten to a program of several meshes, compiled."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import key_implementation, own_copy, weakly_typed
from jaxpp.array import plain
from jaxpp.dump import dump_of
from jaxpp.hlo_passes import Pass, PassError, run_passes
from jaxpp.hlo_passes.ir.attributes import ROWS_SENT, integer
from jaxpp.hlo_passes.ir.program import stacked_arguments
from jaxpp.hlo_passes.loop.delay_reductions import once_per_step_bytes
from jaxpp.hlo_passes.loop.find_microbatch_loop import location_of_the_loop, microbatches_without_schedule
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdSharding
from jaxpp.runtime import Event, Executable, load, measured_costs, processes, trace_step
from jaxpp.runtime.analysis import MemoryStats, cost_analysis, memory_analysis
from jaxpp.runtime.arrays import Shardings
from jaxpp.runtime.program import Argument, Result
from jaxpp.runtime.progress import Progress
from jaxpp.runtime.summary import summary, title
from jaxpp.times import current_times, record

Schedule = schedules.BaseSchedule | schedules.Schedule | os.PathLike[str] | str
"""What `jaxpp.schedules.resolve` takes."""


class LoweredStep:
    """A lowered step: its module, its program, and the way to an executable."""

    def __init__(
        self,
        lowered: Lowered,
        schedule: Schedule | None,
        compiler_options: Mapping[str, Any] | None,
        passes: Mapping[str, str],
    ) -> None:
        self._lowered, self._schedule, self._compiler_options = lowered, schedule, compiler_options
        self._passes = passes
        self._program: ProgramModule | None = None

    def __repr__(self) -> str:
        arguments, results = len(self._lowered.in_avals), len(self._lowered.out_avals)
        mesh = self._lowered.mpmd_mesh
        return f"<LoweredStep of {self._lowered.name}: {arguments} arrays in, {results} out, {mesh}>"

    def as_text(self, *, debug_info: bool = False) -> str:
        """The lowered module as MLIR text: what `jaxpp-opt` reads."""
        return str(self._lowered.module.operation.get_asm(enable_debug_info=debug_info))

    def program(self) -> "ProgramModule":
        """The program module: one function per mesh, verified.

        Raises:
            PassError: the marks, the loop or the schedule don't fit together.
        """
        if self._program is None:
            dump = dump_of(self._lowered.module)
            if dump:
                dump.lowered(self._lowered.module)
            module = own_copy(self._lowered.module)
            schedule = self._schedule_text(module)
            mesh = self._lowered.mpmd_mesh
            passes = mpmd(schedule, mesh.mpmd_dim, **self._passes)
            with contextlib.closing(Progress("rewriting the module", len(passes), bar=False)) as progress:
                run_passes(module, passes, [_PassProgress(progress), *([dump] if dump else [])])
            module.operation.verify()
            meshes = ir.IntegerAttr(module.operation.attributes["jaxpp.meshes"]).value
            if meshes > mesh.mpmd_dim:
                raise PassError(
                    f"the schedule runs on {meshes} meshes, the mesh axis '{mesh.mpmd_axis_name}' has {mesh.mpmd_dim}",
                    hint="give a larger mesh, or a schedule that places several stages on one mesh",
                )
            _check_stacks(self._lowered.stacks, module)
            if dump:
                dump.program(module)
            self._program = ProgramModule(module)
        return self._program

    def _schedule_text(self, module: ir.Module) -> str:
        if self._schedule is None:
            return ""
        run_passes(module, (InlineCalls(),))
        length = microbatches_without_schedule(module)
        if length is None:
            return ""
        try:
            meshes = self._lowered.mpmd_mesh.mpmd_dim
            return str(schedules.resolve(self._schedule, meshes=meshes, microbatches=length))
        except schedules.ScheduleError as error:
            raise PassError(str(error), location=location_of_the_loop(module)) from error

    def compile(self) -> "CompiledStep":
        """Compile every distinct stage program for its submesh."""
        program = self.program()
        mesh = self._lowered.mpmd_mesh
        loaded = load(program.module)
        if mesh.cluster is not None:
            return mesh.cluster.compile(self._lowered, loaded, self._compiler_options)
        submeshes = mesh.unstack[: loaded.meshes]
        executable = Executable(
            loaded,
            submeshes,
            peers=processes.peers(submeshes, program.as_text, self._lowered.described),
            names=self._lowered.in_names,
            mpmd_axis=mesh.mpmd_axis_name,
            compiler_options=self._compiler_options,
            host_callbacks=self._lowered.host_callbacks,
        )
        return CompiledStep(self._lowered, executable)


class _PassProgress:
    """An observer of the passes that tells how far they are."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, 0

    def before(self, step: Pass, module: ir.Module) -> None:
        self._progress.report(self._done, [step.name])

    def after(self, step: Pass, module: ir.Module) -> None:
        self._done += 1
        self._progress.report(self._done, ())


def _check_stacks(wanted: Mapping[int, str], module: ir.Module) -> None:
    """Refuse an argument that the user wants sharded over the mpmd axis, and that is no stack of layers."""
    cut = stacked_arguments(module) if wanted else ()
    for number, message in wanted.items():
        if number not in cut:
            raise ValueError(message)


@dataclass(frozen=True, repr=False)
class ProgramModule:
    """A verified program module (docs/ir.md, section 6)."""

    module: ir.Module

    def __repr__(self) -> str:
        functions = [op for op in self.module.body.operations if op.operation.name == "func.func"]
        meshes = ir.IntegerAttr(self.module.operation.attributes["jaxpp.meshes"]).value
        return f"<ProgramModule of {meshes} meshes: {len(functions) - meshes} functions>"

    def as_text(self) -> str:
        """The program as MLIR text."""
        return str(self.module)

    @property
    def once_per_step_bytes(self) -> dict[str, int]:
        """What `gather_weights="step"` and `scatter_gradients="step"` cost, chosen or not.

        Bytes per device, summed over all stages; empty when no weight is sharded over the axis of the batch.
        """
        return once_per_step_bytes(self.module)

    @property
    def rows_sent_bytes(self) -> int:
        """The bytes of stacked layers that every step sends to the meshes of their stages; their gradients come back.

        0 where each mesh holds its own layers. Under schedules with several separate stages for each mesh it does when
        they are stored in the order of `jaxpp.rows_of_layers`.
        """
        return integer(self.module.operation, ROWS_SENT) or 0


class CompiledStep:
    """An executable step for arguments of one kind."""

    def __init__(self, lowered: Lowered, executable: Executable) -> None:
        self.executable = executable
        self._lowered = lowered
        submeshes = lowered.mpmd_mesh.unstack[: executable.program.meshes]
        self._places = Shardings(executable.program, submeshes, lowered.mpmd_mesh.mpmd_axis_name)
        self._keys_in = _keys(lowered.in_avals)
        self._keys_out = _keys(lowered.out_avals)
        self._weak_out = [i for i, aval in enumerate(lowered.out_avals) if getattr(aval, "weak_type", False)]

    def __repr__(self) -> str:
        return f"<CompiledStep of {title(self.executable.program, self._lowered.name)}>"

    def memory_analysis(self) -> tuple[MemoryStats | None, ...]:
        """The memory that a step takes on each device of each mesh; None of a mesh that only other processes run.

        What `jax.stages.Compiled.memory_analysis` tells of one program, here of all programs of a mesh in their order.
        """
        return memory_analysis(self.executable.program, self.executable.stats)

    def cost_analysis(self) -> tuple[dict[str, float] | None, ...]:
        """What XLA says that a step costs each device of each mesh; None of a mesh that only other processes run.

        As `jax.stages.Compiled.cost_analysis`: "flops", "bytes accessed"...; XLA counts a loop inside a task once.
        Empty where the backend has no such analysis.
        """
        return cost_analysis(self.executable.program, self.executable.stats)

    def summary(self) -> str:
        """What each mesh does and takes, as a table to be printed: stages, parameters, FLOPs, bytes sent, memory.

        Parameters are the floating-point arguments that the step returns updated, and that tasks of the microbatches
        read; of a step that returns none of its arguments they are not known.
        """
        mesh = self._lowered.mpmd_mesh
        device = mesh.cluster.platform if mesh.cluster is not None else mesh.jax_mesh.devices.flat[0].device_kind
        return summary(
            self.executable.program,
            self.executable.stats,
            name=self._lowered.name,
            device=str(device),
            state=set(self._lowered.feeds.values()),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step with these arguments; static arguments are left out, as for `jax.stages.Compiled`."""
        return self.run(self._leaves(args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Event]]:
        """Run one step task by task; returns its results, and when each task and transfer ran, for how long."""
        results, events = self._trace(self._bits(self._leaves(args, kwargs)))
        return self._wrap(results), events

    def costs(self, *steps: Sequence[Event], unit: str = "ms") -> schedules.Costs:
        """What the tasks and hops of traced steps cost, for `jaxpp.schedules.simulate`, `search` and `tune`.

        Args:
            steps: the events of each, from `trace`.
            unit: of time: "s", "ms" or "us".

        How it is counted: `jaxpp.runtime.measured_costs`.

        Raises:
            ValueError: no task of a stage is among the events.
        """
        return measured_costs(self.executable.program, *steps, unit=unit)

    def _leaves(self, args: Any, kwargs: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self._lowered.in_tree:
            raise TypeError(f"compiled for arguments of the structure {self._lowered.in_tree}, called with {tree}")
        return plain(leaves)

    def run(self, leaves: Sequence[Any]) -> Any:
        """Run one step with the flat list of arguments."""
        times = current_times()
        if times is None:
            return self._wrap(self.executable(self._bits(leaves)))
        results, events = self._trace(self._bits(leaves))
        record(times, events)
        return self._wrap(results)

    @property
    def in_shardings(self) -> Any:
        """Where the step wants its arguments, as `(args, kwargs)` of MpmdShardings without the static ones.

        An argument that no mesh uses has no meshes. Arguments elsewhere are moved when the step is called.
        """
        found = self.executable.program.arguments
        each = [found.get(number) for number in range(len(self._lowered.in_avals))]
        return jax.tree.unflatten(self._lowered.in_tree, [self._sharding(argument) for argument in each])

    @property
    def out_shardings(self) -> Any:
        """Where the results are, as a tree of MpmdShardings."""
        results = self.executable.program.results
        return jax.tree.unflatten(self._lowered.out_tree, [self._sharding(result) for result in results])

    def _sharding(self, value: Argument | Result | None) -> MpmdSharding:
        mesh = self._lowered.mpmd_mesh
        if value is None:
            return MpmdSharding(mesh, frozenset(), PartitionSpec())
        meshes = tuple(number for number, _ in value.registers)
        spec = self._places.place(value.spec, meshes[:1] or (0,)).sharding.spec
        return MpmdSharding(mesh, frozenset(meshes), spec, blocks=meshes if value.stacked else ())

    def _trace(self, bits: Sequence[Any]) -> tuple[list[Any], list[Event]]:
        return trace_step(self.executable, bits)

    def _bits(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The arguments as the program has them: key arrays as their bits."""
        if not self._keys_in:
            return leaves
        return [jax.random.key_data(leaf) if i in self._keys_in else leaf for i, leaf in enumerate(leaves)]

    def _wrap(self, results: list[Any]) -> Any:
        """The results of the program as the function returns them."""
        for i in self._weak_out:
            results[i] = weakly_typed(results[i])
        for i, implementation in self._keys_out.items():
            results[i] = jax.random.wrap_key_data(results[i], impl=implementation)
        return jax.tree.unflatten(self._lowered.out_tree, results)


def _keys(avals: Sequence[Any]) -> dict[int, str]:
    """The positions of key arrays, with the implementation of each: the program has their bits."""
    found = {i: aval.dtype for i, aval in enumerate(avals) if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)}
    return {i: key_implementation(dtype) for i, dtype in found.items()}
