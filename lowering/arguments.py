"""The arguments of a function to be lowered: which are static, their names, types and shardings."""

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpp.ir.errors import described_value
from jaxpp.lowering.mesh import MpmdMesh, MpmdSharding, without_axis
from jaxpp.lowering.prefixes import entries_per_leaf, entries_per_result
from jaxpp.lowering.structures import is_array, leaf_names

HOST, DEVICE = "pinned_host", "device"
"""Kinds of memory, under JAX's names."""


@dataclass(frozen=True)
class StaticArguments:
    """The arguments that are Python values and not arrays: their positions (non-negative) and keywords."""

    nums: frozenset[int]
    names: frozenset[str]


def check_argument_options(options: Mapping[str, Any]) -> None:
    """Refuses options such as `static_argnums` and `donate_argnames` that are no positions or names of arguments.

    Raises:
        TypeError: an option is neither a position or name nor several of them; the message names the option.
    """
    for name, value in options.items():
        kind, what = (int | np.integer, "position") if name.endswith("nums") else (str, "name")
        entries = [value] if isinstance(value, kind) else value
        is_row = isinstance(entries, Iterable) and not isinstance(entries, str | bytes)
        if value is None or (is_row and all(isinstance(each, kind) for each in cast("Iterable[Any]", entries))):
            continue
        raise TypeError(f"{name} is {value!r}, expected the {what} of an argument, or a tuple of them")


def resolve_static(
    fun: Callable[..., Any],
    n_args: int,
    argnums: int | Sequence[int] | None,
    argnames: str | Iterable[str] | None,
) -> StaticArguments:
    """Resolves static arguments by position and by keyword; each infers the other, as for `jax.jit`.

    Args:
        fun: the function; only its signature matters.
        n_args: the number of positional arguments of this call; negative positions count from its end.
        argnums: as for `jax.jit`.
        argnames: as for `jax.jit`.
    """
    nums = {argnums} if isinstance(argnums, int | np.integer) else set(argnums or ())
    names = {argnames} if isinstance(argnames, str) else set(argnames or ())
    positional = positional_names(fun)
    nums = {k + n_args if k < 0 else k for k in nums}
    inferred = {positional[k] for k in nums if k < len(positional)} if argnames is None else set[str]()
    if argnums is None:
        nums = {positional.index(name) for name in names if name in positional}
    return StaticArguments(frozenset(nums), frozenset(names | inferred))


def positional_names(fun: Callable[..., Any]) -> list[str]:
    """Returns the names of the parameters that may be given by position; empty if Python can't tell."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def named_arguments(fun: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """Returns the name of each positional argument: the parameter's, or `args[2]` for an argument of `*args`."""
    names = positional_names(fun)
    return [names[k] if k < len(names) else f"args[{k}]" for k in range(len(args))]


def check_arrays(name: str, argument: Any) -> None:
    """Refuses an argument with a leaf that is not an array.

    Raises:
        TypeError: a leaf is not an array; the message names the leaf.
    """
    for leaf_name, leaf in zip(leaf_names(name, argument), jax.tree.leaves(argument), strict=True):
        if isinstance(leaf, np.ndarray | np.generic) and not is_array(leaf):
            raise TypeError(f"argument {leaf_name} is {described_value(leaf)}")
        if not is_array(leaf) and _has_equinox_module(argument):
            raise TypeError(
                f"argument {leaf_name} is of type {type(leaf).__name__}, not an array: take the arrays out of the "
                "module by eqx.partition(module, eqx.is_array), and put it together by eqx.combine inside of the step"
            )
        if not is_array(leaf):
            what = repr(leaf) if len(repr(leaf)) < 40 else "..."
            raise TypeError(
                f"argument {leaf_name} is of type {type(leaf).__name__} ({what}), not an array; "
                f"if {name} is a Python value, name it in static_argnums or static_argnames"
            )


def _has_equinox_module(argument: Any) -> bool:
    """Whether a node of the argument is a module of equinox, which may have any field."""
    kind = getattr(sys.modules.get("equinox"), "Module", None)
    if kind is None:
        return False
    nodes = jax.tree.leaves(argument, is_leaf=lambda node: isinstance(node, kind))
    return any(isinstance(node, kind) for node in nodes)


@dataclass(frozen=True)
class Placer:
    """Describes arrays for a trace: by type, and by sharding over the mesh of the trace.

    Args:
        mpmd_mesh: the user's mesh.
        mesh: the mesh of the trace: the whole mesh, or one submesh.
        stacks: filled, for each argument whose first dimension is sharded over only the mpmd axis, with a text for
            errors.
        memories: filled, by argument, with the memory of arguments that are not in the devices' own memory.
    """

    mpmd_mesh: MpmdMesh
    mesh: Mesh
    stacks: dict[str, str] = field(default_factory=dict[str, str])
    memories: dict[str, str] = field(default_factory=dict[str, str])

    def describe(self, name: str, argument: Any, shardings: Sequence[Any]) -> Any:
        """Returns the argument with each array replaced by its type and sharding; `shardings` has an entry per leaf."""
        leaves, tree = jax.tree.flatten(argument)
        names = leaf_names(name, argument)
        described = [self._describe(*each) for each in zip(names, leaves, shardings, strict=True)]
        return jax.tree.unflatten(tree, described)

    def _describe(self, name: str, leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        aval = jax.typeof(leaf)
        placed = self.requested(f"in_shardings for {name}", sharding)
        if 0 in self._over_mpmd(spec := getattr(sharding, "spec", sharding)):
            self.stacks[name] = f"in_shardings for {name}: {spec}"
        memory = self.other_memory(sharding)
        if memory is not None:
            self.memories[name] = memory
        if placed is None:
            placed = self._present(leaf)
        else:
            _check_fits(f"in_shardings for {name}", "argument", aval.shape, placed, self.mpmd_mesh.is_uneven)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=placed, weak_type=aval.weak_type)

    def requested(self, what: str, sharding: Any, of_result: bool = False) -> NamedSharding | None:
        """Returns the user's sharding over the mesh of the trace, without the mpmd axis, which has size 1 there.

        Scripts written for JaxPP name that axis beside others, and for results: outside of the step their arrays are
        sharded over it.

        Args:
            what: the subject of the error, e.g. `in_shardings for x`.
            sharding: None, a PartitionSpec, an MpmdSharding, or a NamedSharding over a mesh with the same axis names.
            of_result: whether it is for a result: the mpmd axis may shard any dimension of a result.

        Raises:
            TypeError: `sharding` is of another type.
            ValueError: it names an axis that the mesh lacks, or a memory that is neither the devices' own nor
                `pinned_host`. Or it shards a dimension of an argument over only the mpmd axis; this is allowed for the
                first dimension, which may count stacked layers.
        """
        if sharding is None:
            return None
        spec = sharding.spec if isinstance(sharding, (NamedSharding, MpmdSharding)) else sharding
        if not isinstance(spec, PartitionSpec):
            raise TypeError(f"{what}: {type(sharding).__name__}; expected a NamedSharding, a PartitionSpec or None")
        memory = self.other_memory(sharding)
        if memory not in (None, HOST):
            raise ValueError(
                f"{what}: memory_kind={memory!r}; values of a step are in the memory of its devices or in {HOST!r}"
            )
        axes, mpmd = _axes(spec), self.mpmd_mesh.mpmd_axis_name
        for axis in axes:
            if axis not in self.mesh.axis_names:
                raise ValueError(f"{what}: {spec} names the axis {axis!r}; the mesh has {self.mesh.axis_names}")
        if not of_result and set(self._over_mpmd(spec)) - {0}:
            raise ValueError(over_mpmd_axis(f"{what}: {spec}", self.mpmd_mesh))
        return NamedSharding(self.mesh, without_axis(spec, mpmd) if mpmd in axes else spec)

    def _over_mpmd(self, spec: Any) -> list[int]:
        """Returns the dimensions that a PartitionSpec shards over only the mpmd axis."""
        entries = [_axes(PartitionSpec(entry)) for entry in spec] if isinstance(spec, PartitionSpec) else []
        return [dimension for dimension, names in enumerate(entries) if names == [self.mpmd_mesh.mpmd_axis_name]]

    def other_memory(self, sharding: Any) -> str | None:
        """Returns the memory that a sharding names, if it is not the devices' own; otherwise None."""
        kind = getattr(sharding, "memory_kind", None)
        return None if kind in (None, DEVICE, self._own_memory) else kind

    @property
    def _own_memory(self) -> str | None:
        # JAX has None if all devices belong to other processes.
        return NamedSharding(self.mpmd_mesh.jax_mesh, PartitionSpec()).memory_kind

    def check_memory(self, what: str, kind: str) -> None:
        """Refuses a result that the function itself puts into a memory other than the devices' own."""
        own = self._own_memory
        if own is not None and kind != own:
            raise ValueError(
                f"{what}: memory_kind={kind!r}; the functions of a step make values in the memory of its devices "
                f"({own!r}): give the result its memory_kind in out_shardings"
            )

    def _present(self, leaf: Any) -> NamedSharding | None:
        """Returns the sharding of a `jax.Array` without the mpmd axis, if its mesh has the axes of `mesh`.

        Returns None if the sizes of these axes differ, or if they don't divide the shape.
        """
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.mesh.axis_names != self.mesh.axis_names:
            return None
        mpmd = self.mpmd_mesh.mpmd_axis_name
        sizes = {name: size for name, size in sharding.mesh.shape.items() if name != mpmd}
        if self.mpmd_mesh.is_uneven:
            # An array on several meshes is replicated only because they differ in size, not as the user wants it.
            mesh = sharding.mesh
            if not isinstance(mesh, Mesh) or len(self.mpmd_mesh.mpmd_indices_for_mesh(mesh) or ()) != 1:
                return None
        elif any(self.mesh.shape[name] != size for name, size in sizes.items()):
            return None
        found = NamedSharding(self.mesh, without_axis(sharding.spec, mpmd))
        return found if _divides(found, leaf.shape) else None


def over_mpmd_axis(what: str, mpmd_mesh: MpmdMesh) -> str:
    """Returns the error for a sharding over the mpmd axis of an argument that is no stack of layers."""
    return (
        f"{what} shards over the mpmd axis {mpmd_mesh.mpmd_axis_name!r}; a value lives on whole submeshes, unless it "
        "is a stack of layers that the loop reads one by one, as many for each mesh"
        f"{', these being of one size' if mpmd_mesh.is_uneven else ''}: "
        f"shard it over {mpmd_mesh.spmd_axis_names or 'no axis'}"
    )


def _divides(sharding: NamedSharding, shape: Sequence[int]) -> bool:
    """Returns whether the axes of each dimension divide it; for axes of several sizes, the largest size counts."""
    return not any(size % count for size, count in zip(shape, _shards(sharding), strict=False))


def _shards(sharding: NamedSharding) -> list[int]:
    """Returns the number of parts into which each dimension is cut."""
    return [math.prod(sharding.mesh.shape[axis] for axis in _axes(PartitionSpec(entry))) for entry in sharding.spec]


def _check_fits(what: str, value: str, shape: tuple[int, ...], sharding: NamedSharding, uneven: bool) -> None:
    spec = sharding.spec
    if len(spec) > len(shape):
        raise ValueError(f"{what}: {spec} has {_entries(len(spec))}, but the {value} has shape {shape}")
    for size, count in zip(shape, _shards(sharding), strict=False):
        if size % count:
            where = (
                f" on the mesh {dict(sharding.mesh.shape)}, which has each axis in its largest size" if uneven else ""
            )
            raise ValueError(f"{what}: {spec} cuts a dimension of {size} into {count}{where}; shape {shape}")


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _axes(spec: PartitionSpec) -> list[str]:
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    return [axis for entry in entries for axis in entry if isinstance(axis, str)]


def per_leaf(what: str, prefix: Any, arguments: Sequence[Any]) -> list[list[Any]]:
    """Spreads a pytree prefix of shardings over the leaves of each argument.

    Args:
        what: the subject of the error, e.g. `in_shardings`.
        prefix: one sharding for all, or a tuple with one prefix per argument.
        arguments: the positional arguments that are not static.

    Raises:
        ValueError: the prefix does not fit.
    """
    if is_sharding(prefix):
        return [[prefix] * len(jax.tree.leaves(argument)) for argument in arguments]
    if not isinstance(prefix, (tuple, list)) or len(prefix) != len(arguments):
        found = _entries(len(prefix)) if isinstance(prefix, (tuple, list)) else type(prefix).__name__
        raise ValueError(f"{what}: {found} for {len(arguments)} positional arguments that are not static")
    spread: list[list[Any]] = []
    for k, (tree, argument) in enumerate(zip(prefix, arguments, strict=True)):
        try:
            spread.append(entries_per_leaf(tree, argument, is_sharding))
        except ValueError as error:
            raise ValueError(f"{what}[{k}] does not fit its argument: {str(error).splitlines()[0]}") from None
    return spread


def is_sharding(x: Any) -> bool:
    """Whether `x` is one entry of `in_shardings` or `out_shardings`."""
    return x is None or isinstance(x, (PartitionSpec, MpmdSharding, jax.sharding.Sharding))


def out_shardings(placer: Placer, prefix: Any) -> Any:
    """Returns a pytree prefix of shardings of the results, each over the mesh of the trace."""

    def requested(path: Any, sharding: Any) -> NamedSharding | None:
        return placer.requested(f"out_shardings{jax.tree_util.keystr(path)}", sharding, of_result=True)

    return jax.tree_util.tree_map_with_path(requested, prefix, is_leaf=is_sharding)


def result_memories(placer: Placer, prefix: Any, results: Any) -> dict[int, str]:
    """Returns the memory of each result that is not in the devices' own memory, by its index."""
    if prefix is None:
        return {}
    shardings = entries_per_result(prefix, results, is_sharding, "out_shardings do not", "sharding")
    found = {number: placer.other_memory(sharding) for number, sharding in enumerate(shardings)}
    return {number: memory for number, memory in found.items() if memory is not None}


def check_results(placer: Placer, prefix: Any, results: Any) -> None:
    """Refuses shardings that don't fit the results of the function.

    Raises:
        ValueError: `prefix` is no prefix of their tree, or a sharding has too many entries or does not divide.
    """
    shardings = entries_per_result(prefix, results, is_sharding, "out_shardings do not", "sharding")
    for name, result, sharding in zip(leaf_names("result", results), jax.tree.leaves(results), shardings, strict=True):
        placed = placer.requested(f"out_shardings for {name}", sharding, of_result=True)
        if placed is not None:
            uneven = placer.mpmd_mesh.is_uneven
            _check_fits(f"out_shardings for {name}", "result", result.shape, placed, uneven)


def keyword_leaves(kwargs: Mapping[str, Any], static: StaticArguments) -> dict[str, Any]:
    """Returns the keyword arguments that are not static, in the order in which JAX flattens them."""
    return {name: kwargs[name] for name in sorted(kwargs) if name not in static.names}
