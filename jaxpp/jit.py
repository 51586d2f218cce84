"""`mpmd_jit_with_loop`, `mpmd_jit_by_yield`: a function with stage marks becomes a program of several meshes."""

import contextlib
import functools
import os
import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

import jax
from jax.sharding import NamedSharding

from jaxpp import traced_call
from jaxpp._compat import is_traced, on_clear_caches, trace_context
from jaxpp.auto import AutoLowered, is_auto
from jaxpp.auto_step import Auto
from jaxpp.call_kinds import check_hashable, described_leaf, kind_of
from jaxpp.compatibility.array import plain
from jaxpp.hints import add_hint
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.program.share_tasks import ShareTasks
from jaxpp.hlo_passes.stages.kept_values import Recompute, keep_text
from jaxpp.layered_step import LayeredStep
from jaxpp.layers import Layers
from jaxpp.lowering.arguments import (
    StaticArguments,
    check_argument_options,
    named_arguments,
    positional_names,
    resolve_static,
)
from jaxpp.lowering.locations import is_ours
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdMesh, check_mesh
from jaxpp.lowering.operations import read_operations
from jaxpp.lowering.single import in_one_microbatch
from jaxpp.lowering.structures import described, only_none
from jaxpp.lowering.train_loop import OneStep, TrainLoop, lower_step
from jaxpp.memory_limit import Limit, limit_text
from jaxpp.partitioning import array_of, cuts_options
from jaxpp.planning.backend import cannot_run
from jaxpp.planning.target import target_of
from jaxpp.program import ScheduleLike
from jaxpp.runtime.execution.options import Options, check_options
from jaxpp.schedules import Costs, Partition, Schedule
from jaxpp.schedules.given import AUTO, check_words, resolve
from jaxpp.step import CompiledStep, LoweredStep
from jaxpp.traced_call import check_outside
from jaxpp.tuning import Tuning
from jaxpp.ways import Ways


def mpmd_jit_with_loop(
    fun: Callable[..., Any],
    mpmd_mesh: MpmdMesh,
    *,
    schedule: "ScheduleLike | MpmdFunction | None" = None,
    operations: Mapping[str, Callable[..., Any]] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    in_specs: Any = None,
    out_specs: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    compiler_options: Options | None = None,
    gather_weights: str = "microbatch",
    scatter_gradients: str = "microbatch",
    share_tasks: str = "auto",
    cuts: Partition | Sequence[int] | None = None,
    recompute: Recompute | None = None,
    memory_limit: Limit = None,
    host_memory_limit: Limit = None,
    costs: Costs | None = None,
) -> "MpmdFunction":
    """Compile a training step with one microbatch loop for the meshes of `mpmd_mesh`.

    It is called like `jax.jit(fun)`, with the same results. Arguments may be numpy arrays or `jax.Array`s on any
    devices; results are `jax.Array`s on the meshes where they were computed, and go back in without being moved.

    Args:
        fun: a function of arrays with one `treduce`, or one loop with stage marks in its body.
        mpmd_mesh: the mesh and its mpmd axis; mesh i runs what the schedule places on mesh i.
        schedule: for a loop that names none (a `lax.scan`): as for `treduce`. Or another step of `mpmd_jit_with_loop`
            whose schedule is "auto", to run its stages where that one has them: for an evaluation.
        operations: a function for each kind of task of your own that the schedule has, called where the task stands. It
            is given what its parameters ask for, by their names: `task`, the `jaxpp.Task`, and `residuals`, the arrays
            that the stage keeps from the forward to the backward of that microbatch. They are valid until it returns,
            and may not be computed yet. Under `jax.jit` it runs on the devices of its mesh, in their order; else on the
            host, and what follows waits for it. What it returns is not used. What it raises ends the step.
        in_shardings: a pytree prefix of the arguments: NamedShardings over the whole mesh or a submesh,
            PartitionSpecs, MpmdShardings, or None: then the sharding that the argument has decides, or else
            propagation. The first call of a kind decides for all later ones with arguments of the same structure,
            shapes and dtypes, which are moved where they are sharded in another way (`jax.jit` compiles anew). With
            the `memory_kind` "pinned_host" an argument is in the memory of the host until its first use.
        out_shardings: likewise, of the results.
        in_specs: another name of `in_shardings`.
        out_specs: another name of `out_shardings`.
        static_argnums: as for `jax.jit`, as are the next three.
        static_argnames: see above.
        donate_argnums: see above.
        donate_argnames: see above.
        compiler_options: XLA options for every stage program; on GPUs some are chosen already (docs/gpu.md). By the
            number of a mesh options for its programs alone, which go before: {"xla_a": True, 3: {"xla_b": 2}}.
        gather_weights: of weights sharded over the axis of the batch (FSDP): "microbatch" gathers them for each
            microbatch, "chunk" for each run of tasks of one stage (breadth-first: all its microbatches), "ahead"
            likewise, but beside the last task of the run before, "step" once per step. What the last costs:
            `lower(...).program().once_per_step_bytes`.
        scatter_gradients: likewise "microbatch", "chunk" or "step": when the gradients of such weights are summed over
            that axis and scattered. Between runs a device has its shards of the sums, in a run of backwards of a stage
            ("chunk") the whole sums of that stage, or of all stages of its mesh ("step").
        share_tasks: "always" lets the first and the last stage call the programs of the layers that the middle stages
            have, and one of their own for the embedding or the head: less to compile, and one more call for each of
            their tasks. "never": one call for each. "auto": shares tasks that are so large that a call more counts for
            little: of 1e7 FLOPs on each device of a CPU, 1e11 elsewhere. Or from how many FLOPs on, such as "1e9".
        cuts: where every layer is marked, how many layers each stage has, from the first one on: [5, 5, 4, 2]. Or what
            `jaxpp.partition` found, whose schedule then takes the place of that of the loop.
        recompute: what stages keep of each microbatch from its forward to its backward, which makes the rest again:
            "inputs"; "selective": all but products with weights is done again; a share of the forward's FLOPs, from
            0 to 1, that may be done again; or as "4096B" the most bytes, of one microbatch on all devices of the mesh
            together, with the fewest FLOPs. A mapping says it stage by stage. Where the schedule has recomputes it is
            about these; to one without them they are added. None: the schedule's recomputes keep the inputs.
        memory_limit: the bytes that each device may need at once, as a number or as a text such as "70GiB", "500MB" or
            "4096B", for all meshes or mesh by mesh: arguments, results and residuals, and once they are compiled the
            temporaries of tasks. Where `recompute` is not given, stages compute again, offload or evict what takes the
            step the least time, if any mesh needs more, or the tasks of a schedule of the library or the search get
            another order. `program().kept_less` says what was chosen.
        host_memory_limit: likewise the bytes that the values of each device may take at once in the memory of its host:
            offloaded residuals, arguments and results.
        costs: what tasks, copies and sends take, as `compiled.costs(events)` measured it, for the choice of
            `memory_limit`, and for nothing else. None: their FLOPs, and the links of the chip of a `jaxpp.target`.

    Raises (when called, lowered or compiled):
        PassError: the marks, the loop or the schedule don't fit together; the message has the user's file and line.
        LimitError (a PassError): a mesh needs more memory than its limit, of its devices or its host.
        TypeError, ValueError: as `jax.jit`, for arguments and shardings.
    """
    check_mesh(mpmd_mesh)
    check_options(compiler_options, mpmd_mesh.mpmd_dim)
    _check_schedule(schedule)
    argument_options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    check_argument_options(argument_options)
    options = {
        "operations": read_operations(operations),
        "in_shardings": _one_of("in_shardings", in_shardings, "in_specs", in_specs),
        "out_shardings": _one_of("out_shardings", out_shardings, "out_specs", out_specs),
        **argument_options,
    }
    passes = {"gather_weights": gather_weights, "scatter_gradients": scatter_gradients}
    DelayReductions(**passes)  # refuses what is no choice
    passes["share_tasks"] = share_tasks if share_tasks == "auto" else ShareTasks(share_tasks).when
    passes |= cuts_options(cuts)
    passes["recompute"] = keep_text(recompute)
    for name, limit in (("memory_limit", memory_limit), ("host_memory_limit", host_memory_limit)):
        passes[name] = limit_text(limit, mpmd_mesh.mpmd_dim, name)
    if costs is not None and not isinstance(cast("object", costs), Costs):
        raise TypeError(f"costs: expected jaxpp.schedules.Costs, found {type(costs).__name__}; Costs.load reads a file")
    if costs is not None and (memory_limit is None or recompute is not None):
        raise ValueError("costs: they say what memory_limit chooses: expected a memory_limit, and no recompute")
    return MpmdFunction(fun, mpmd_mesh, schedule, options, compiler_options, passes, costs)


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
    compiler_options: Options | None = None,
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
    check_mesh(mpmd_mesh)
    step = mpmd_jit_with_loop(
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
    step.takes_cuts = False
    return step


def _check_schedule(schedule: object) -> None:
    """Refuse what is no schedule, also where the loop has one of its own."""
    if isinstance(schedule, str):
        check_words(schedule)
    elif isinstance(schedule, type) or not (
        schedule is None or hasattr(schedule, "build") or isinstance(schedule, MpmdFunction | Schedule | os.PathLike)
    ):
        resolve(schedule)  # raises


def _one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise TypeError(f"{name} and {other_name} are two names of one argument; give one of them")
    return other if value is None else value


class MpmdFunction:
    """A function that runs as a program of several meshes; compiled once per structure, shapes and static arguments.

    takes_cuts: whether its marks may be of layers, of which stages have several.
    """

    takes_cuts = True

    def __init__(
        self,
        fun: Callable[..., Any],
        mpmd_mesh: MpmdMesh,
        schedule: "ScheduleLike | MpmdFunction | None",
        options: Mapping[str, Any],
        compiler_options: Options | None,
        passes: Mapping[str, str],
        costs: Costs | None = None,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._leader: MpmdFunction | None = None
        if isinstance(schedule, MpmdFunction):
            self._leader, schedule = schedule, AUTO
        self._auto = self._leader._auto if self._leader else Auto()
        self._is_fixed = False  # True as soon as it is known that it has a schedule
        self._fun, self._mesh, self._schedule = fun, mpmd_mesh, schedule
        self._options, self._compiler_options = options, compiler_options
        self._passes, self._costs = passes, costs
        self._compiled: dict[Any, CompiledStep] = {}
        self._sharded: dict[Any, CompiledStep] = {}
        self._static: dict[int, StaticArguments] = {}
        on_clear_caches(self)

    def __repr__(self) -> str:
        name = getattr(self._fun, "__qualname__", None) or repr(self._fun)
        return f"<MpmdFunction {name} on {self._mesh}: compiled for {len(self._compiled)} kinds of arguments>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step; compiles it first when the arguments are of a new kind."""
        static, leaves, tree = self._split(args, kwargs)
        if is_traced():
            return traced_call.bind(leaves, self.eval_shape(*args, **kwargs))
        key = (tree, static, tuple(map(kind_of, leaves)), trace_context())
        try:
            compiled = self._compiled.get(key)
        except TypeError:
            compiled = None
            check_hashable(static, positional_names(self._fun))
        if compiled is None:
            if not self._mesh.is_present:
                raise cannot_run(target_of(self._mesh.jax_mesh).name)
            compiled = self.compile(*args, **kwargs)
        return compiled.run(leaves)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: meshes and compiled programs are of this process."""
        raise TypeError(
            "a step of mpmd_jit_with_loop can't be pickled, as its devices and programs are of this process: pickle "
            "its function and call mpmd_jit_with_loop there, or save it, step.compile(...).save(path) and jaxpp.load"
        )

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the results for these arguments, as of `jax.jit(fun)`; nothing is lowered."""
        names = ("static_argnums", "static_argnames")
        plain_step = jax.jit(self._fun, **{name: self._options[name] for name in names})
        args, kwargs = jax.tree.map(described_leaf, plain((args, kwargs)))
        with self._explained(args, kwargs):
            return plain_step.eval_shape(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledStep":
        """Compile for these arguments (arrays or `jax.ShapeDtypeStruct`s): `lower(...).compile()`.

        What is compiled for such arguments already, by a call too, is not compiled again.
        """
        return self._made_for(*self._keys(args, kwargs), None) or self.lower(*args, **kwargs).compile()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A decorated method is bound to its instance, as a function would be."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> "LoweredStep":
        """Trace and lower for these arguments (arrays or `jax.ShapeDtypeStruct`s), without compiling."""
        check_outside()
        if not isinstance(self._fun, TrainLoop):  # it has no static arguments, and says so itself
            check_hashable(self._split(args, kwargs)[0], positional_names(self._fun))
        step = self._lower(*jax.tree.map(described_leaf, plain((args, kwargs))))
        step.made = functools.partial(self._made_for, *self._keys(args, kwargs))
        return step

    def _lower(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "LoweredStep":
        with self._explained(args, kwargs):
            lowered = lower_step(
                self._fun, args, kwargs, mpmd_mesh=self._mesh, schedule=self._schedule, **self._options
            )
        if "schedule" not in self._passes and is_auto(lowered.module, self._schedule):
            if isinstance(self._fun, (TrainLoop, OneStep)):
                raise ValueError('schedule="auto": a step is tuned alone, and this is a train_loop; give a schedule')
            ways = Ways(lowered, self._compiler_options, self._passes)
            self._check_auto(ways)
            return AutoLowered(ways, self._auto, may_lead=self._leader is None)
        self._is_fixed = True
        return LoweredStep(lowered, self._schedule, self._compiler_options, self._passes, self._costs)

    def _keys(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns what calls with such arguments have in common, and this together with how the arguments are sharded.

        Raises TypeError for a static argument that is not hashable.
        """
        static, leaves, tree = self._split(args, kwargs)
        key = (tree, static, tuple(map(kind_of, leaves)), trace_context())
        check_hashable(static, positional_names(self._fun))
        shardings = (getattr(leaf, "sharding", None) for leaf in leaves)
        return key, (key, tuple(each if isinstance(each, NamedSharding) else None for each in shardings))

    def _made_for(self, key: Any, sharded: Any, made: "CompiledStep | None") -> "CompiledStep | None":
        """Keeps what was compiled for such arguments, if it is given; returns what is kept."""
        if made is not None:
            self._sharded[sharded] = made
            self._compiled.setdefault(key, made)
        return self._sharded.get(sharded)

    def clear_cache(self) -> None:
        """Forget what was compiled, as `jax.clear_caches()` does for all steps; the next call compiles anew."""
        self._compiled.clear()
        self._sharded.clear()
        self._auto.forget()

    cache_clear = clear_cache  # the name by which JAX calls it

    @contextlib.contextmanager
    def _explained(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[None]:
        """Names the argument where the user's function fails for one that is None, or unlike that of earlier calls."""
        try:
            yield
        except Exception as error:
            add_hint(error)
            if is_ours(error) or not isinstance(error, (TypeError, KeyError, AttributeError, IndexError)):
                raise
            named = [*zip(named_arguments(self._fun, args), args, strict=True), *kwargs.items()]
            none = only_none(named) if "NoneType" in str(error) else ""
            if what := f"argument `{none}` is None" if none else self._unlike(args, kwargs):
                raise TypeError(f"{what}; the function raised {type(error).__name__}: {error}") from error
            error.add_note(f"jaxpp: while tracing it for {described(named)}")
            raise

    def _unlike(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """How an argument differs from those of the calls that it is the most like; "" where there were none."""
        static = self._static_of(len(args))
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in static.nums)
        rest = {name: value for name, value in kwargs.items() if name not in static.names}
        found = [compiled.differences(dynamic, rest) for compiled in self._compiled.values()]
        return next(iter(min(found, key=len, default=[])), "")

    def _check_auto(self, ways: Ways) -> None:
        """Refuse what has no meaning for a step that chooses its stages itself.

        Raises:
            ValueError: names it.
        """
        given = {"cuts": "cuts" in ways.passes, "recompute": bool(self._passes["recompute"])}
        given |= {"operations": bool(self._options["operations"]), "costs": self._costs is not None}
        for name in [name for name, is_given in given.items() if is_given]:
            raise ValueError(f"{name}: {_WITHOUT[name]}")
        if self._leader and self._leader._is_fixed:
            raise ValueError(f'schedule: {self._leader!r} is not tuned: give its own, or "auto" to that step')
        owners = {device.process_index for mesh in self._mesh.unstack for device in mesh.devices.flat}
        if self._mesh.is_present and not self._mesh.backend and 1 < len(owners) < jax.process_count():
            raise ValueError(
                f'schedule="auto": the mesh is on {len(owners)} of {jax.process_count()} processes, expected all of '
                "them, which agree on what is tried, or a mesh on one; give a schedule"
            )
        if not self._leader and not ways.loop.has_backward:
            raise ValueError(
                'schedule="auto": a step is tuned by its forwards and backwards, and this one takes no gradients; '
                "give the step of the training, schedule=train, to run where that one runs"
            )

    def to_compare(self, args: Sequence[Any]) -> tuple[Any, LoweredStep]:
        """Plain `jax.jit` of the function, and this step lowered for these arguments: for `jaxpp.compare`."""
        names = ("static_argnums", "static_argnames")
        plain_step = jax.jit(self._fun, keep_unused=True, **{name: self._options[name] for name in names})
        return plain_step, self.lower(*args)

    def to_tune(self, args: Sequence[Any], seconds: float, memory_limit: Limit) -> tuple[AutoLowered, list[Any]]:
        """This step, to be tuned with these arguments, and their leaves: for `jaxpp.tune`; nothing is donated."""
        lowered = self._lower_for(args, donates=False)
        passes = {name: value for name, value in self._passes.items() if name not in ("cuts", "schedule")}
        if memory_limit is not None:
            passes["memory_limit"] = limit_text(memory_limit, self._mesh.mpmd_dim)
        ways = Ways(lowered, self._compiler_options, passes, seconds)
        self._check_auto(ways)
        return AutoLowered(ways, Auto(is_quiet=True)), self._split(args, {})[1]

    @property
    def tuned(self) -> Tuning | None:
        """With `schedule="auto"` what was tried and what is the fastest; None until that is known."""
        return self._auto.tuned

    def measure_layers(self, *args: Any) -> Layers:
        """What each marked layer costs as a stage of its own, for `jaxpp.partition`; nothing is donated.

        One step is traced, with zeros where only shapes are given; on the devices of a `jaxpp.target` it is planned.
        """
        lowered = self._lower_for(args, donates=False, operations={})
        donating = functools.cache(lambda: self._lower_for(args, donates=True, operations={}))
        step = LayeredStep(lowered, self._compiler_options, self._passes, "partition", donating)
        if not self._mesh.is_present:
            return step.layers()
        leaves = self._split(args, {})[1]
        return step.layers(step.compiled.executable.trace([array_of(leaf) for leaf in leaves])[1])

    def _lower_for(self, args: Sequence[Any], *, donates: bool, **options: Any) -> Lowered:
        """This step for these arguments; where it does not donate it leaves all of them alive, to run it once more."""
        if isinstance(self._fun, TrainLoop):
            raise ValueError(
                "a train_loop can't be measured: give the step that it runs, mpmd_jit_with_loop(step, mesh)"
            )
        described = jax.tree.map(described_leaf, plain(args))
        options = {**self._options, **options}
        if not donates:
            options |= {"donate_argnums": None, "donate_argnames": None}
        return lower_step(self._fun, described, {}, mpmd_mesh=self._mesh, schedule=self._schedule, **options)

    def _static_of(self, count: int) -> StaticArguments:
        """Which arguments are static in a call with so many by position."""
        if count not in self._static:
            nums, names = self._options["static_argnums"], self._options["static_argnames"]
            self._static[count] = resolve_static(self._fun, count, nums, names)
        return self._static[count]

    def _split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any], Any]:
        """(static arguments, leaves of the others, their structure)."""
        static = self._static_of(len(args))
        given: dict[int | str, Any] = {i: args[i] for i in sorted(static.nums) if i < len(args)}
        given.update((name, kwargs[name]) for name in sorted(static.names & kwargs.keys()))
        # The type too: 1, 1.0 and True are equal, and trace differently.
        values = tuple((name, type(value), value) for name, value in given.items())
        dynamic = [arg for i, arg in enumerate(args) if i not in static.nums]
        named = {name: value for name, value in kwargs.items() if name not in static.names}
        leaves, tree = jax.tree.flatten((dynamic, named))
        return values, plain(leaves), tree


_WITHOUT = {
    "cuts": 'schedule="auto" finds them; leave them out, or give a schedule',
    "recompute": 'schedule="auto" finds the stages; leave it out, and give a memory_limit, or use jax.checkpoint',
    "operations": 'schedule="auto" has no tasks of your own; leave them out, or give a schedule',
    "costs": 'schedule="auto" measures them; leave them out',
}
"""What a step that chooses its stages itself can't have."""
