"""`mpmd_jit_with_loop`, `mpmd_jit_by_yield`: a function with stage marks becomes a program of several meshes."""

import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import key_implementation, own_copy, trace_context, weakly_typed
from jaxpp.array import plain
from jaxpp.hlo_passes import PassError, run_passes
from jaxpp.hlo_passes.ir.attributes import ROWS_SENT, integer
from jaxpp.hlo_passes.ir.program import stacked_arguments
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions, once_per_step_bytes
from jaxpp.hlo_passes.loop.find_microbatch_loop import location_of_the_loop, microbatches_without_schedule
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.lowering.arguments import StaticArguments, resolve_static
from jaxpp.lowering.lower import Lowered, lower
from jaxpp.lowering.mesh import MpmdMesh, MpmdSharding
from jaxpp.lowering.microbatch_loop import schedule_text
from jaxpp.lowering.single import in_one_microbatch
from jaxpp.runtime import Event, Executable, load, measured_costs, processes, trace_step
from jaxpp.runtime.arrays import Shardings
from jaxpp.runtime.program import Argument, Result
from jaxpp.runtime.remote import described
from jaxpp.times import current_times, record

Schedule = schedules.BaseSchedule | schedules.Schedule | str


def mpmd_jit_with_loop(
    fun: Callable[..., Any],
    mpmd_mesh: MpmdMesh,
    *,
    schedule: Schedule | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    in_specs: Any = None,
    out_specs: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    gather_weights: str = "microbatch",
    scatter_gradients: str = "microbatch",
) -> "MpmdFunction":
    """Compile a training step with one microbatch loop for the meshes of `mpmd_mesh`.

    It is called like `jax.jit(fun)`, with the same results. Arguments may be numpy arrays or `jax.Array`s on any
    devices; results are `jax.Array`s on the meshes where they were computed, and go back in without being moved.

    Args:
        fun: a function of arrays with one `treduce`, or one loop with stage marks in its body.
        mpmd_mesh: the mesh and its mpmd axis; mesh i runs what the schedule places on mesh i.
        schedule: for a loop that names none (a `lax.scan`): a schedule, or the name of one.
        in_shardings: a pytree prefix of the arguments: NamedShardings over the whole mesh or a submesh,
            PartitionSpecs, MpmdShardings, or None where the present sharding, or else propagation, decides.
        out_shardings: likewise, of the results.
        in_specs: another name of `in_shardings`.
        out_specs: another name of `out_shardings`.
        static_argnums: as for `jax.jit`, as are the next three.
        static_argnames: see above.
        donate_argnums: see above.
        donate_argnames: see above.
        compiler_options: XLA options for every stage program.
        gather_weights: of weights sharded over the axis of the batch (FSDP): "microbatch" gathers them for each
            microbatch, "step" once per step. What that costs: `lower(...).program().once_per_step_bytes`.
        scatter_gradients: likewise, when the gradients of such weights are summed and scattered.

    Raises (when called, lowered or compiled):
        PassError: the marks, the loop or the schedule don't fit together; the message has the user's file and line.
        TypeError, ValueError: as `jax.jit`, for arguments and shardings.
    """
    _check_mesh(mpmd_mesh)
    options = {
        "in_shardings": _one_of("in_shardings", in_shardings, "in_specs", in_specs),
        "out_shardings": _one_of("out_shardings", out_shardings, "out_specs", out_specs),
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    passes = {"gather_weights": gather_weights, "scatter_gradients": scatter_gradients}
    DelayReductions(**passes)  # refuses what is no choice
    return MpmdFunction(fun, mpmd_mesh, schedule, options, compiler_options, passes)


def mpmd_jit_by_yield(
    fun: Callable[..., Any],
    mpmd_mesh: MpmdMesh,
    *,
    target_num_stages: int | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    in_specs: Any = None,
    out_specs: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> "MpmdFunction":
    """Compile a function with stage marks and no loop: inference, or a training step of one microbatch.

    Stage i runs on mesh i, or i modulo the number of meshes; what leads to no mark runs where its operands are. Calls
    return before they are computed, so several of them overlap, each on other meshes.

    Args:
        fun: a function of arrays with stage marks, at its top level or in jitted functions that it calls.
        mpmd_mesh: the mesh and its mpmd axis.
        target_num_stages: the number of stages: that of the marks, or one more where the last stage has no mark.
            None: one more where only that is a multiple of the number of meshes.
        in_shardings: as for `mpmd_jit_with_loop`, as is all that follows.
        out_shardings: see there.
        in_specs: see there.
        out_specs: see there.
        static_argnums: see there.
        static_argnames: see there.
        donate_argnums: see there.
        donate_argnames: see there.
        compiler_options: see there.

    Raises (when called, lowered or compiled):
        ValueError: there is no mark, another number of stages than `target_num_stages`, or a loop over microbatches.
        PassError, TypeError, ValueError: as for `mpmd_jit_with_loop`.
    """
    _check_mesh(mpmd_mesh)
    return mpmd_jit_with_loop(
        in_one_microbatch(fun, mpmd_mesh.mpmd_dim, target_num_stages),
        mpmd_mesh,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        in_specs=in_specs,
        out_specs=out_specs,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        compiler_options=compiler_options,
    )


def _check_mesh(mpmd_mesh: Any) -> None:
    if not isinstance(mpmd_mesh, MpmdMesh):
        found = type(mpmd_mesh).__name__
        raise TypeError(f"mpmd_mesh: expected a jaxpp.MpmdMesh, found {found}; write jaxpp.MpmdMesh(mesh, 'mpmd axis')")


def _one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise TypeError(f"{name} and {other_name} are two names of one argument; give one of them")
    return other if value is None else value


class MpmdFunction:
    """A function that runs as a program of several meshes; compiled once per structure, shapes and static arguments."""

    def __init__(
        self,
        fun: Callable[..., Any],
        mpmd_mesh: MpmdMesh,
        schedule: Schedule | None,
        options: Mapping[str, Any],
        compiler_options: Mapping[str, Any] | None,
        passes: Mapping[str, str],
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun, self._mesh, self._schedule = fun, mpmd_mesh, schedule
        self._options, self._compiler_options, self._passes = options, compiler_options, passes
        self._compiled: dict[Any, CompiledStep] = {}
        self._static: dict[int, StaticArguments] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step; compiles it first when the arguments are of a new kind."""
        static, leaves, tree = self._split(args, kwargs)
        key = (tree, static, tuple(map(_kind, leaves)), trace_context())
        try:
            compiled = self._compiled.get(key)
        except TypeError:
            compiled = None
            _check_hashable(static)
        if compiled is None:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                raise TypeError(
                    "a step of mpmd_jit_with_loop was called inside jax.jit, jax.grad or another transformation; "
                    "it runs programs on several meshes, and must be called from outside"
                )
            compiled = self._compiled[key] = self.lower(*args, **kwargs).compile()
        return compiled.run(leaves)

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledStep":
        """Compile for these arguments (arrays or `jax.ShapeDtypeStruct`s): `lower(...).compile()`."""
        return self.lower(*args, **kwargs).compile()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A decorated method is bound to its instance, as a function would be."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> "LoweredStep":
        """Trace and lower for these arguments (arrays or `jax.ShapeDtypeStruct`s), without compiling."""
        args, kwargs = described(plain((args, kwargs)))
        lowered = lower(self._fun, args, kwargs, mpmd_mesh=self._mesh, schedule=self._schedule, **self._options)
        return LoweredStep(lowered, self._schedule, self._compiler_options, self._passes)

    def _split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any], Any]:
        """(static arguments, leaves of the others, their structure)."""
        static = self._static.get(len(args))
        if static is None:
            nums, names = self._options["static_argnums"], self._options["static_argnames"]
            static = self._static[len(args)] = resolve_static(self._fun, len(args), nums, names)
        given: dict[int | str, Any] = {i: args[i] for i in sorted(static.nums) if i < len(args)}
        given.update((name, kwargs[name]) for name in sorted(static.names & kwargs.keys()))
        # The type too: 1, 1.0 and True are equal, and trace differently.
        values = tuple((name, type(value), value) for name, value in given.items())
        dynamic = [arg for i, arg in enumerate(args) if i not in static.nums]
        named = {name: value for name, value in kwargs.items() if name not in static.names}
        leaves, tree = jax.tree.flatten((dynamic, named))
        return values, plain(leaves), tree


def _check_hashable(static: Sequence[tuple[int | str, type, Any]]) -> None:
    for name, kind, value in static:
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"static argument {name} is a {kind.__name__}, which is not hashable; "
                "give a hashable value, such as a tuple"
            ) from None


def _kind(leaf: Any) -> Any:
    """What two arguments must have in common to share a compiled step."""
    try:
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    except AttributeError:
        return type(leaf)


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

    def as_text(self, *, debug_info: bool = False) -> str:
        """The lowered module as MLIR text: what `jaxpp-opt` reads."""
        return str(self._lowered.module.operation.get_asm(enable_debug_info=debug_info))

    def program(self) -> "ProgramModule":
        """The program module: one function per mesh, verified.

        Raises:
            PassError: the marks, the loop or the schedule don't fit together.
        """
        if self._program is None:
            module = own_copy(self._lowered.module)
            schedule = self._schedule_text(module)
            mesh = self._lowered.mpmd_mesh
            run_passes(module, mpmd(schedule, mesh.mpmd_dim, **self._passes))
            module.operation.verify()
            meshes = ir.IntegerAttr(module.operation.attributes["jaxpp.meshes"]).value
            if meshes > mesh.mpmd_dim:
                raise PassError(
                    f"the schedule runs on {meshes} meshes, the mesh axis '{mesh.mpmd_axis_name}' has {mesh.mpmd_dim}",
                    hint="give a larger mesh, or a schedule that places several stages on one mesh",
                )
            _check_stacks(self._lowered.stacks, module)
            self._program = ProgramModule(module)
        return self._program

    def _schedule_text(self, module: ir.Module) -> str:
        if self._schedule is None:
            return ""
        run_passes(module, (InlineCalls(),))
        length = microbatches_without_schedule(module)
        if length is None:
            return ""
        schedule = self._schedule
        try:
            if isinstance(schedule, str) and "\n" not in schedule:
                schedule = schedules.make(schedule, meshes=self._lowered.mpmd_mesh.mpmd_dim, microbatches=length)
            return schedule_text(schedule, length)
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
            peers=processes.peers(submeshes, program.as_text),
            names=self._lowered.in_names,
            mpmd_axis=mesh.mpmd_axis_name,
            compiler_options=self._compiler_options,
            host_callbacks=self._lowered.host_callbacks,
        )
        return CompiledStep(self._lowered, executable)


def _check_stacks(wanted: Mapping[int, str], module: ir.Module) -> None:
    """Refuse an argument that the user wants sharded over the mpmd axis, and that is no stack of layers."""
    cut = stacked_arguments(module) if wanted else ()
    for number, message in wanted.items():
        if number not in cut:
            raise ValueError(message)


@dataclass(frozen=True)
class ProgramModule:
    """A verified program module (docs/ir.md, section 6)."""

    module: ir.Module

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
