"""`mpmd_jit_with_loop`, `mpmd_jit_by_yield`: compile a function with stage marks to a program of several meshes."""

import contextlib
import functools
import os
import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Unpack

import jax
from jax.sharding import NamedSharding

from jaxpp import traced_call
from jaxpp._compat import is_traced, on_clear_caches, trace_context
from jaxpp.call_kinds import are_there, check_hashable, described_leaf, kind_of
from jaxpp.compatibility.array import plain
from jaxpp.hints import add_hint
from jaxpp.hlo_passes.stages.kept_values import Recompute, keep_text
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
from jaxpp.memory.limit import Limit, limit_text
from jaxpp.planning.backend import cannot_run
from jaxpp.program import ScheduleLike
from jaxpp.runtime.execution.options import Options, check_options
from jaxpp.schedules import Costs, Schedule
from jaxpp.schedules.given import AUTO, check_words, resolve
from jaxpp.schedules.search import Partition
from jaxpp.step import CompiledStep, LoweredStep
from jaxpp.step_options import OtherKeywords, StepOptions, with_keywords
from jaxpp.targets.target import target_of
from jaxpp.tuning.auto import AutoLowered, is_auto
from jaxpp.tuning.choices import Tuning
from jaxpp.tuning.layered_step import LayeredStep
from jaxpp.tuning.layers import Layers
from jaxpp.tuning.partitioning import cuts_options
from jaxpp.tuning.tuner import Auto
from jaxpp.tuning.ways import Ways
from jaxpp.zeros import array_of


def mpmd_jit_with_loop(
    fun: Callable[..., Any],
    mpmd_mesh: MpmdMesh,
    *,
    schedule: "ScheduleLike | MpmdFunction | None" = None,
    donate_argnums: int | Sequence[int] | None = None,
    memory_limit: Limit = None,
    cuts: Partition | Sequence[int] | None = None,
    recompute: Recompute | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    compiler_options: Options | None = None,
    options: StepOptions | None = None,
    **others: Unpack[OtherKeywords],
) -> "MpmdFunction":
    """Compiles a training step with one microbatch loop for the meshes of `mpmd_mesh`.

    The result is called like `jax.jit(fun)`, and returns the same values. Arguments may be numpy arrays, or
    `jax.Array`s on any devices. Results are `jax.Array`s on the meshes where they were computed. The next call takes
    them without moving them.

    Args:
        fun: a function of arrays with one `treduce`, or with one loop that has stage marks in its body.
        mpmd_mesh: the mesh and its mpmd axis. Mesh i runs the tasks that the schedule places on mesh i.
        schedule: the schedule of a loop that names none (a `treduce` without one, or a `lax.scan`), in the same forms
            as for `treduce`. For an evaluation it may also be another step of `mpmd_jit_with_loop` with the schedule
            "auto". The new step then runs its stages where that step runs them.
        donate_argnums: as for `jax.jit`.
        memory_limit: the most bytes that each device may need at once, for all meshes or one per mesh. Each is a
            number, or a text such as "70GiB", "500MB" or "4096B". Arguments, results and residuals count, and the
            temporaries of compiled tasks. If a mesh needs more and `recompute` is not given, jaxpp searches for the
            fastest step within the limit. Its stages recompute, offload or evict values. Or, if the schedule is one of
            the library, its tasks may get another order. `program().kept_less` has the choice.
        cuts: the number of layers of each stage, from the first stage on, if every layer is marked: [5, 5, 4, 2]. Or
            the result of `jaxpp.partition`, whose schedule then replaces the schedule of the loop.
        recompute: the values that a stage keeps of each microbatch from its forward to its backward. The backward
            recomputes the other residuals. "inputs": the inputs of the stage. "selective": products with weights are
            not recomputed, all other operations are. A number from 0 to 1: the share of the forward's FLOPs that may be
            recomputed. Bytes, such as "4096B": the most bytes of one microbatch on all devices of the mesh together,
            with the fewest FLOPs. A mapping from stages to these sets each stage. If the schedule has recomputes,
            the choice is for these; otherwise they are added. None: recomputes of the schedule keep the inputs.
        in_shardings: a pytree prefix of the arguments. Its leaves are NamedShardings over the whole mesh or over a
            submesh, PartitionSpecs, MpmdShardings, or None. With None the argument's own sharding decides, or
            propagation if it has none. Shardings are fixed by the first call with arguments of one structure, with
            these shapes and dtypes. Later calls move arguments that are sharded otherwise (`jax.jit` would compile
            again). An argument with the `memory_kind` "pinned_host" stays in host memory until its first use.
        out_shardings: the shardings of the results, in the same forms as `in_shardings`.
        static_argnums: as for `jax.jit`.
        static_argnames: as for `jax.jit`.
        donate_argnames: as for `jax.jit`.
        compiler_options: XLA options for every stage program. On GPUs some are set already (docs/gpu.md). Options under
            the index of a mesh are for the programs of this mesh alone, and override the common ones:
            {"xla_a": True, 3: {"xla_b": 2}}.
        options: the options that few steps need.
        others: `in_specs` and `out_specs`, JaxPP's names of `in_shardings` and `out_shardings`. For one release also
            the fields of `StepOptions`, with a DeprecationWarning.

    Raises:
        TypeError, ValueError: an option is invalid, or excludes another one.
        TypeError, ValueError (when called, lowered or compiled): as `jax.jit`, for arguments and shardings.
        PassError (then too): the marks, the loop or the schedule don't fit together; it has the user's file and line.
        LimitError (a PassError): a mesh needs more memory than its limit, on its devices or its host.
    """
    check_mesh(mpmd_mesh)
    check_options(compiler_options, mpmd_mesh.mpmd_dim)
    _check_schedule(schedule)
    rare = with_keywords(options, others)
    argument_options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    check_argument_options(argument_options)
    lowering_options = {
        "operations": read_operations(rare.operations),
        "in_shardings": _one_of("in_shardings", in_shardings, "in_specs", others.get("in_specs")),
        "out_shardings": _one_of("out_shardings", out_shardings, "out_specs", others.get("out_specs")),
        **argument_options,
    }
    passes = rare.of_pipeline(mpmd_mesh.mpmd_dim) | cuts_options(cuts)
    passes["recompute"] = keep_text(recompute)
    passes["memory_limit"] = limit_text(memory_limit, mpmd_mesh.mpmd_dim)
    if rare.costs is not None and (memory_limit is None or recompute is not None):
        raise ValueError("costs: they say what memory_limit chooses: expected a memory_limit, and no recompute")
    return MpmdFunction(fun, mpmd_mesh, schedule, lowering_options, compiler_options, passes, rare.costs)


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
    """Compiles a function with stage marks and no loop: inference, or a training step of one microbatch.

    Stage i runs on mesh i modulo the number of meshes. Operations on which no mark depends run where their operands
    are. A call returns before its results are computed, so several calls overlap on different meshes.

    Args:
        fun: a function of arrays with stage marks, at its top level or in jitted functions that it calls.
        mpmd_mesh: the mesh and its mpmd axis.
        target_num_stages: the number of stages: the number of marks, or one more if the last stage has no mark. None:
            one more than the marks if only that is a multiple of the number of meshes, otherwise the number of marks.
        in_shardings: as for `mpmd_jit_with_loop`.
        out_shardings: as for `mpmd_jit_with_loop`.
        in_specs: another name of `in_shardings`.
        out_specs: another name of `out_shardings`.
        static_argnums: as for `jax.jit`.
        static_argnames: as for `jax.jit`.
        donate_argnums: as for `jax.jit`.
        donate_argnames: as for `jax.jit`.
        compiler_options: as for `mpmd_jit_with_loop`.

    Raises (when called, lowered or compiled):
        ValueError: there is no mark, there is a loop over microbatches, or the marks don't make `target_num_stages`.
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
    """Raises ScheduleError or TypeError for an invalid `schedule`, even where the loop has its own."""
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

    Attributes:
        takes_cuts: whether a mark may end a layer, with several layers in a stage.
    """

    takes_cuts = True

    def __init__(
        self,
        fun: Callable[..., Any],
        mpmd_mesh: MpmdMesh,
        schedule: "ScheduleLike | MpmdFunction | None",
        options: Mapping[str, Any],
        compiler_options: Options | None,
        passes: Mapping[str, Any],
        costs: Costs | None = None,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._leader: MpmdFunction | None = None
        if isinstance(schedule, MpmdFunction):
            self._leader, schedule = schedule, AUTO
        self._auto = self._leader._auto if self._leader else Auto()
        self._is_fixed = False  # True once a lowering has found that the step has a schedule
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
        """Runs one step; compiles it first for new kinds of arguments. If traced, only the result types are known."""
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
        """Raises TypeError: a step can't be pickled, as its meshes and programs belong to this process."""
        raise TypeError(
            "a step of mpmd_jit_with_loop can't be pickled, as its devices and programs are of this process: pickle "
            "its function and call mpmd_jit_with_loop there, or save it, step.compile(...).save(path) and jaxpp.load"
        )

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and dtypes of the results for these arguments, as `jax.jit(fun)` does; lowers nothing."""
        names = ("static_argnums", "static_argnames")
        plain_step = jax.jit(self._fun, **{name: self._options[name] for name in names})
        args, kwargs = jax.tree.map(described_leaf, plain((args, kwargs)))
        with self._explained(args, kwargs):
            return plain_step.eval_shape(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> "CompiledStep":
        """Compiles for these arguments (arrays or `jax.ShapeDtypeStruct`s): `lower(...).compile()`.

        Returns the existing step if one was compiled for such arguments, also by a call.
        """
        return self._made_for(*self._keys(args, kwargs), None) or self.lower(*args, **kwargs).compile()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds a decorated method to its instance, as for a plain function."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> "LoweredStep":
        """Traces and lowers for these arguments (arrays or `jax.ShapeDtypeStruct`s), without compiling."""
        traced_call.check_outside()
        if not isinstance(self._fun, TrainLoop):  # a train_loop has no static arguments; it raises for them itself
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
        """Returns the key of calls with such arguments, and this key together with the shardings of the arguments.

        Raises TypeError for a static argument that is not hashable.
        """
        static, leaves, tree = self._split(args, kwargs)
        key = (tree, static, tuple(map(kind_of, leaves)), trace_context())
        check_hashable(static, positional_names(self._fun))
        shardings = (getattr(leaf, "sharding", None) for leaf in leaves)
        return key, (key, tuple(each if isinstance(each, NamedSharding) else None for each in shardings))

    def _made_for(self, key: Any, sharded: Any, made: "CompiledStep | None") -> "CompiledStep | None":
        """Keeps `made`, if it is given, for arguments with these keys; returns the step that is kept for them."""
        if made is not None:
            self._sharded[sharded] = made
            self._compiled.setdefault(key, made)
        alike = ((given, made) for (other, given), made in self._sharded.items() if other == key)
        serving = (made for given, made in alike if are_there(sharded[1], given, made.places()))
        return self._sharded.get(sharded) or next(serving, None)

    def clear_cache(self) -> None:
        """Forgets the compiled steps of this function, as `jax.clear_caches()` does for all functions."""
        self._compiled.clear()
        self._sharded.clear()
        self._auto.forget()

    cache_clear = clear_cache  # the name by which JAX calls it

    @contextlib.contextmanager
    def _explained(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[None]:
        """Names the argument where the user's function fails because it is None, or unlike that of earlier calls."""
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
        """Returns how an argument differs from the most similar earlier call; "" if there was none."""
        static = self._static_of(len(args))
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in static.nums)
        rest = {name: value for name, value in kwargs.items() if name not in static.names}
        found = [compiled.differences(dynamic, rest) for compiled in self._compiled.values()]
        return next(iter(min(found, key=len, default=[])), "")

    def _check_auto(self, ways: Ways) -> None:
        """Raises ValueError if the step has an option that `schedule="auto"` can't have, or takes no gradients.

        Also if the step given as `schedule` is not tuned, or the mesh is on several, but not all processes.
        """
        given = {"cuts": "cuts" in ways.passes, "recompute": bool(self._passes["recompute"])}
        given |= {"operations": bool(self._options["operations"]), "costs": self._costs is not None}
        for name in [name for name, is_given in given.items() if is_given]:
            raise ValueError(f"{name}: {_WITHOUT[name]}")
        if self._leader and self._leader._is_fixed:
            raise ValueError(f'schedule: {self._leader!r} is not tuned: give its own, or "auto" to that step')
        owners = {device.process_index for mesh in self._mesh.unstack for device in mesh.devices.flat}
        if self._mesh.runs_here and 1 < len(owners) < jax.process_count():
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
        """Returns plain `jax.jit` of the function, and this step lowered for these arguments, for `jaxpp.compare`."""
        names = ("static_argnums", "static_argnames")
        plain_step = jax.jit(self._fun, keep_unused=True, **{name: self._options[name] for name in names})
        return plain_step, self.lower(*args)

    def to_tune(self, args: Sequence[Any], seconds: float, memory_limit: Limit) -> tuple[AutoLowered, list[Any]]:
        """Returns this step, lowered for tuning without donation, and the leaves of its arguments, for `jaxpp.tune`."""
        lowered = self._lower_for(args, donates=False)
        passes = {name: value for name, value in self._passes.items() if name not in ("cuts", "schedule")}
        if memory_limit is not None:
            passes["memory_limit"] = limit_text(memory_limit, self._mesh.mpmd_dim)
        ways = Ways(lowered, self._compiler_options, passes, seconds)
        self._check_auto(ways)
        return AutoLowered(ways, Auto(is_quiet=True)), self._split(args, {})[1]

    @property
    def tuned(self) -> Tuning | None:
        """The trials of `schedule="auto"` and the fastest choice; None until the tuning is done."""
        return self._auto.tuned

    def measure_layers(self, *args: Any) -> Layers:
        """Returns the costs of each marked layer as a stage of its own, for `jaxpp.partition`; donates nothing.

        Traces one step, with zeros where only shapes are given. On the devices of a `jaxpp.target` it plans the step.
        """
        lowered = self._lower_for(args, donates=False, operations={})
        donating = functools.cache(lambda: self._lower_for(args, donates=True, operations={}))
        step = LayeredStep(lowered, self._compiler_options, self._passes, "partition", donating)
        if not self._mesh.is_present:
            return step.layers()
        leaves = self._split(args, {})[1]
        return step.layers(step.compiled.executable.trace([array_of(leaf) for leaf in leaves])[1])

    def _lower_for(self, args: Sequence[Any], *, donates: bool, **options: Any) -> Lowered:
        """Lowers this step for these arguments; without `donates` they stay alive, so that it can run again."""
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
        """Returns which arguments are static in a call with `count` positional arguments."""
        if count not in self._static:
            nums, names = self._options["static_argnums"], self._options["static_argnames"]
            self._static[count] = resolve_static(self._fun, count, nums, names)
        return self._static[count]

    def _split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any], Any]:
        """Returns the static arguments, the leaves of the other arguments, and their structure."""
        static = self._static_of(len(args))
        given: dict[int | str, Any] = {i: args[i] for i in sorted(static.nums) if i < len(args)}
        given.update((name, kwargs[name]) for name in sorted(static.names & kwargs.keys()))
        # The key has the type too: 1, 1.0 and True are equal, and trace differently.
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
"""The options that a step with `schedule="auto"` can't have, and the hint of the error for each."""
