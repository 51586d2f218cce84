"""Lowers a JAX function to one ordinary StableHLO module that serves every submesh."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Mesh
from jaxlib.mlir import ir

from jaxpp._compat import (
    as_passes_read,
    host_callbacks,
    other_devices,
    own_copy,
    source_of_ordered_effect,
)
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import main_of, nested
from jaxpp.ir.kinds import write_operations
from jaxpp.ir.loop import entries as loop_entries
from jaxpp.lowering import arguments as arguments_
from jaxpp.lowering.arguments import Placer, StaticArguments
from jaxpp.lowering.feeds import match_state
from jaxpp.lowering.locations import name_of_function, source_line
from jaxpp.lowering.marks import lost_marks, stage_numbering, traced_marks
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.lowering.microbatch_loop import schedule_text
from jaxpp.lowering.narrow import Axes, narrow
from jaxpp.lowering.operations import BoundFunction
from jaxpp.lowering.structures import leaf_names
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.given import library_name


@dataclass(frozen=True)
class Lowered:
    """A function lowered for the submeshes of `mpmd_mesh`; leaves are in the order of `@main`'s arguments and results.

    Attributes:
        module: the module (docs/ir.md, section 1), which the caller owns and may rewrite.
        mpmd_mesh: the user's mesh.
        in_tree: the structure of `(args, kwargs)` without static arguments.
        out_tree: the structure of the function's result.
        in_avals: the type of every argument.
        out_avals: the type of every result.
        in_names: the name of every argument, e.g. `state['params']['w']`.
        out_names: the name of every result, e.g. `result[0]`.
        donated: which arguments the caller donates.
        static: which arguments of a call are static.
        host_callbacks: the Python functions that the module calls back (`jax.debug.print`, `jax.pure_callback`), by the
            index in its custom calls; they are compiled with every program of the module.
        stacks: for each argument that the user wants sharded over the mpmd axis, the error if it is no stack of layers,
            as only stacks can be.
        feeds: for the index of each result that is an argument of the next step, the index of that argument.
        operations: the user's functions that are called as tasks, by kind.
    """

    module: ir.Module
    mpmd_mesh: MpmdMesh
    in_tree: Any
    out_tree: Any
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    in_names: tuple[str, ...]
    out_names: tuple[str, ...]
    donated: tuple[bool, ...]
    static: StaticArguments
    host_callbacks: tuple[Any, ...]
    stacks: Mapping[int, str]
    feeds: Mapping[int, int]
    operations: Mapping[str, BoundFunction] = field(default_factory=dict[str, BoundFunction])

    @property
    def name(self) -> str:
        """The name of the function that was lowered."""
        return ir.StringAttr(self.module.operation.attributes["sym_name"]).value.removeprefix("jit_")

    def described(self) -> list[str]:
        """Returns the name of the function, and the name and type of each argument, for errors."""
        arguments = zip(self.in_names, self.in_avals, strict=True)
        return [self.name, *(f"{argument}: {aval.str_short()}" for argument, aval in arguments)]


def lower(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mpmd_mesh: MpmdMesh,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    schedule: Any = None,
    operations: Mapping[str, BoundFunction] | None = None,
    state: int | None = None,
) -> Lowered:
    """Traces `fun` over the whole mesh and narrows its module to one submesh.

    Args:
        fun: a function of arrays, or one that is jitted already.
        args: positional arguments: arrays on any devices, numbers, `jax.ShapeDtypeStruct`s, static values.
        kwargs: keyword arguments of the same kinds.
        mpmd_mesh: the mesh; the function's own constraints may name the whole of it, or `lowering_mesh()`.
        in_shardings: a pytree prefix of the positional, non-static arguments. Its leaves are NamedShardings over the
            whole mesh or a submesh, PartitionSpecs, or None. With None a `jax.Array` on such a mesh keeps its
            PartitionSpec, and propagation decides the rest.
        out_shardings: a pytree prefix of the results, with the same kinds of leaves.
        static_argnums: as for `jax.jit`.
        static_argnames: as for `jax.jit`.
        donate_argnums: as for `jax.jit`.
        donate_argnames: as for `jax.jit`.
        schedule: the schedule of a `treduce` that names none.
        operations: the user's functions that are called as tasks, by kind.
        state: the number of leading arguments that are the first results of the step before; None: find them by type.

    Raises:
        TypeError: an argument is not an array and not static; a sharding is of another kind.
        ValueError: `in_shardings` don't fit; a value is sharded over the mpmd axis or a collective runs over it; a side
            effect is ordered.
    """
    request = _Request(
        _numbered(fun),
        tuple(args),
        dict(kwargs or {}),
        mpmd_mesh,
        in_shardings,
        out_shardings,
        arguments_.resolve_static(fun, len(args), static_argnums, static_argnames),
        {"donate_argnums": donate_argnums, "donate_argnames": donate_argnames},
    )
    request.check()
    with traced_marks() as marks:
        traced, lowered, placer = request.lowered()
    module = own_copy(lowered.compiler_ir())
    in_avals = tuple(traced.jaxpr.in_avals)
    donated = tuple(bool(leaf.donated) for leaf in jax.tree.leaves(lowered.args_info))
    feeds = {number: number for number in range(state or 0)}
    if state is None:
        feeds = match_state(lowered.in_tree, in_avals, donated, lowered.out_tree, traced.jaxpr.out_avals)
    narrow(module, Axes(placer.mesh.axis_names, placer.mesh.axis_sizes, mpmd_mesh.mpmd_axis))
    names = request.in_names()
    out_names = tuple(leaf_names("result", lowered.out_info))
    _check_types(out_names, traced.jaxpr.out_avals)
    _check_memory(module, out_names, placer)
    _set_sizes(module, mpmd_mesh)
    results = arguments_.result_memories(placer, request.out_shardings, lowered.out_info)
    _annotate(module, feeds, {names.index(name): kind for name, kind in placer.memories.items()}, results)
    _set_schedule(module, schedule, mpmd_mesh.mpmd_dim)
    if lost := lost_marks(marks, module):
        with module.context:
            module.operation.attributes[at.LOST_MARKS] = ir.ArrayAttr.get([ir.StringAttr.get(each) for each in lost])
    write_operations(module, {kind: each.reads_residuals for kind, each in (operations or {}).items()})
    return Lowered(
        module,
        mpmd_mesh,
        lowered.in_tree,
        lowered.out_tree,
        in_avals,
        tuple(traced.jaxpr.out_avals),
        names,
        out_names,
        donated,
        request.static,
        host_callbacks(lowered),
        {names.index(name): arguments_.over_mpmd_axis(what, mpmd_mesh) for name, what in placer.stacks.items()},
        feeds,
        operations or {},
    )


def _numbered(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `fun` with its marks numbered from 0; a new function, so that JAX traces it anew."""

    def traced(*args: Any, **kwargs: Any) -> Any:
        with stage_numbering():
            return fun(*args, **kwargs)

    functools.update_wrapper(traced, fun)
    traced.__name__ = name_of_function(fun)
    return traced


@dataclass(frozen=True)
class _Request:
    """The function, arguments and options of the user, ready to be traced over a mesh."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mpmd_mesh: MpmdMesh
    in_shardings: Any
    out_shardings: Any
    static: StaticArguments
    donation: dict[str, Any]

    def named(self) -> list[tuple[str, Any]]:
        """Returns the arguments that are not static, with their names, in the order of `@main`."""
        names = arguments_.named_arguments(self.fun, self.args)
        positional = [
            (name, arg) for k, (name, arg) in enumerate(zip(names, self.args, strict=True)) if k not in self.static.nums
        ]
        return positional + list(arguments_.keyword_leaves(self.kwargs, self.static).items())

    def in_names(self) -> tuple[str, ...]:
        return tuple(leaf for name, arg in self.named() for leaf in leaf_names(name, arg))

    def check(self) -> None:
        for name, argument in self.named():
            arguments_.check_arrays(name, argument)

    def lowered(self) -> tuple[Any, Any, Placer]:
        """Traces and lowers over the whole mesh, or over one submesh if the function's own shardings name that.

        After tracing, it is known which devices a constraint names. A `shard_map` refuses, while it is traced, any mesh
        but the mesh of the trace. So the function is traced over both meshes to find out which one it names. If both
        fail, the first error is raised.
        """
        refused: ValueError | None = None
        for mesh in self._meshes():
            placer = Placer(self.mpmd_mesh, mesh)
            try:
                traced, lowered = self._lowered_over(placer)
            except ValueError as error:
                refused = refused or error
                continue
            if lowered is not None:
                return traced, lowered, placer
            others = other_devices(traced.jaxpr.jaxpr, mesh)
            refused = ValueError(
                f"{others}: a sharding or shard_map names other devices than those of the mpmd mesh, fewer, or in "
                "another order; every stage is traced for the same mesh: name that, as mpmd_mesh.jax_mesh or "
                "mpmd_mesh.lowering_mesh(), or its axes alone, as PartitionSpec('data')"
            )
        assert refused is not None
        raise refused

    def _meshes(self) -> list[Mesh]:
        """Returns the meshes over which to trace, the whole mesh first.

        If JAX's context has a mesh, the meshes of its size are returned. If no mesh has this size, all are returned.
        """
        meshes = list(dict.fromkeys((self.mpmd_mesh.jax_mesh, self.mpmd_mesh.lowering_mesh())))
        context = jax.sharding.get_abstract_mesh()
        return [mesh for mesh in meshes if mesh.size == context.size] or meshes

    def _lowered_over(self, placer: Placer) -> tuple[Any, Any]:
        """Returns the function traced over a mesh, and lowered; the latter is None if it names other devices."""
        options = dict(self.donation)
        if self.out_shardings is not None:
            options["out_shardings"] = arguments_.out_shardings(placer, self.out_shardings)
        args, kwargs = self._described(placer)
        ambient = nullcontext() if _has_mesh() else jax.set_mesh(placer.mesh)
        with ambient, as_passes_read(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            try:
                traced = self._jitted(options).trace(*args, **kwargs)
                _check_effects(traced)
                if other_devices(traced.jaxpr.jaxpr, placer.mesh):
                    return traced, None
                return traced, traced.lower(lowering_platforms=self.mpmd_mesh.platforms)
            except (ValueError, AssertionError):  # JAX asserts that there is a sharding at all
                self._check_results(placer, args, kwargs)
                raise

    def _check_results(self, placer: Placer, args: Any, kwargs: Any) -> None:
        """Raises ValueError for `out_shardings` that don't fit; JAX's own error does not name the result."""
        if self.out_shardings is None:
            return
        try:
            results = self._jitted({}).eval_shape(*args, **kwargs)
        except ValueError:  # the function itself raised the error
            return
        arguments_.check_results(placer, self.out_shardings, results)

    def _jitted(self, options: Mapping[str, Any]) -> Any:
        nums, names = tuple(self.static.nums) or None, tuple(self.static.names) or None
        return jax.jit(self.fun, keep_unused=True, static_argnums=nums, static_argnames=names, **options)

    def _described(self, placer: Placer) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of the call, with types and shardings instead of arrays."""
        dynamic = [k for k in range(len(self.args)) if k not in self.static.nums]
        shardings = arguments_.per_leaf("in_shardings", self.in_shardings, [self.args[k] for k in dynamic])
        names = arguments_.named_arguments(self.fun, self.args)
        args = list(self.args)
        for k, entries in zip(dynamic, shardings, strict=True):
            args[k] = placer.describe(names[k], args[k], entries)
        kwargs = dict(self.kwargs)
        for name, value in arguments_.keyword_leaves(kwargs, self.static).items():
            kwargs[name] = placer.describe(name, value, [None] * len(jax.tree.leaves(value)))
        return args, kwargs


def _check_effects(traced: Any) -> None:
    where = source_of_ordered_effect(traced.jaxpr.jaxpr)
    if where is not None:
        raise ValueError(
            f"{where}: error: an ordered side effect, such as jax.debug.print(..., ordered=True), has no order across "
            "meshes; leave out ordered=True"
        )


def _check_types(names: Sequence[str], avals: Sequence[Any]) -> None:
    """Refuses a float0 result, which holds nothing: no device array can have that type."""
    for name, aval in zip(names, avals, strict=True):
        if aval.dtype == jax.dtypes.float0:
            raise TypeError(f"{name} is float0, the gradient of an integer or a boolean: leave it out of the results")


def _check_memory(module: ir.Module, names: Sequence[str], placer: Placer) -> None:
    """Refuses a result that the function itself puts into a memory other than the devices' own."""
    for name, entries in zip(names, at.result_attributes(main_of(module)), strict=True):
        if at.MEMORY in entries:
            placer.check_memory(name, ir.StringAttr(entries[at.MEMORY]).value)


def _has_mesh() -> bool:
    return not jax.sharding.get_abstract_mesh().empty


def _set_sizes(module: ir.Module, mpmd_mesh: MpmdMesh) -> None:
    """Writes the sizes of the meshes, if they differ: the module's own mesh has each axis in its largest size."""
    if mpmd_mesh.is_uneven:
        with module.context:
            sizes = tuple(mesh.shape for mesh in mpmd_mesh.separate)
            module.operation.attributes[at.MESH_SIZES] = at.attribute_of(sizes)


def _annotate(
    module: ir.Module, feeds: Mapping[int, int], arguments: Mapping[int, str], results: Mapping[int, str]
) -> None:
    """Writes which argument each result feeds, and the memory of arguments and results on the host."""
    main = main_of(module)
    with module.context:
        tables = at.argument_attributes(main), at.result_attributes(main)
        for result, argument in feeds.items():
            tables[1][result][at.FEEDS] = at.i64(argument)
        for table, memories in zip(tables, (arguments, results), strict=True):
            for number, kind in memories.items():
                table[number][at.MEMORY] = ir.StringAttr.get(kind)
        at.set_tables(main, *tables)


def _set_schedule(module: ir.Module, schedule: Any, meshes: int) -> None:
    """Gives the caller's schedule to loops without one; writes the number of meshes if a schedule is given by name."""
    with module.context:
        for loop in nested(module.operation):
            if at.LOOP not in loop.attributes:
                continue
            fields = loop_entries(loop)
            if schedule is not None and not fields["schedule"]:
                fields["schedule"] = _text_for(loop, schedule, fields["length"])
                loop.attributes[at.LOOP] = at.attribute_of(fields)
            if library_name(fields["schedule"]):
                module.operation.attributes[at.MESHES] = at.i64(meshes)


def _text_for(loop: ir.Operation, schedule: Any, length: int) -> str:
    try:
        return schedule_text(schedule, length)
    except ScheduleError as error:
        raise ScheduleError(f"{source_line(loop.location)}: {error}", error.where) from error
