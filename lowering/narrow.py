"""Narrows a module over the whole mesh to one that serves every submesh."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import nested
from jaxpp.lowering import other_meshes
from jaxpp.lowering.locations import source_line
from jaxpp.lowering.other_meshes import SHARDINGS

MESH = "mesh"


@dataclass(frozen=True)
class Axes:
    """The axes of the mesh of the trace, and which of them is the mpmd axis.

    Args:
        names: the axes' names, outermost first.
        sizes: their sizes.
        mpmd: the position of the mpmd axis.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    mpmd: int

    @property
    def mpmd_name(self) -> str:
        """The name of the mpmd axis."""
        return self.names[self.mpmd]

    @property
    def groups(self) -> int:
        """The number of submeshes."""
        return self.sizes[self.mpmd]

    @property
    def inner(self) -> int:
        """The distance of two neighbours along the mpmd axis, in devices: the product of the sizes after it."""
        return int(np.prod(self.sizes[self.mpmd + 1 :], dtype=np.int64))

    @property
    def devices(self) -> int:
        """The number of devices of one submesh."""
        return int(np.prod(self.sizes, dtype=np.int64)) // self.groups

    def group(self, device: np.ndarray) -> np.ndarray:
        """Returns the mpmd coordinate of devices of the whole mesh."""
        return device // self.inner % self.groups

    def within(self, device: np.ndarray) -> np.ndarray:
        """Returns the index of a device of the whole mesh within its submesh."""
        return device // (self.inner * self.groups) * self.inner + device % self.inner


def narrow(module: ir.Module, axes: Axes) -> None:
    """Rewrites `module`, in place, for one submesh; device ids in it become those within the submesh.

    Args:
        module: a module that `jax.jit` lowered over a mesh with `axes`.
        axes: the axes of that mesh.

    Raises:
        ValueError: a value is sharded over the mpmd axis, or a collective runs over it. Or a sharding names another
            mesh that the axes of this one can't express. The message has the user's line.
    """
    with module.context, ir.Location.unknown():
        operations = list(nested(module.operation))
        other_meshes.onto(operations, list(zip(axes.names, axes.sizes, strict=True)))
        for op in operations:
            _refuse_mpmd_sharding(op, axes)
        meshes = [op for op in operations if op.name == "sdy.mesh"]
        for op in operations:
            _narrow_operation(op, axes)
        _one_mesh(module, meshes, axes)
        i32 = ir.IntegerType.get_signless(32)
        module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(i32, axes.devices)


def _refuse_mpmd_sharding(op: ir.Operation, axes: Axes) -> None:
    if axes.groups == 1:
        return
    if op.name == "func.func":
        _refuse_in_signature(op, axes)
        return
    for name in SHARDINGS:
        if name in op.attributes and _uses_axis(op.attributes[name], axes.mpmd_name):
            raise ValueError(_sharded_over_mpmd(f"{source_line(op.location)}: a value", op.attributes[name], axes))


def _refuse_in_signature(function: ir.Operation, axes: Axes) -> None:
    for what, table in (
        ("argument", at.argument_attributes(function)),
        ("result", at.result_attributes(function)),
    ):
        for k, entries in enumerate(table):
            if at.SHARDING in entries and _uses_axis(entries[at.SHARDING], axes.mpmd_name):
                raise ValueError(_sharded_over_mpmd(f"{what} {k}", entries[at.SHARDING], axes))


def _sharded_over_mpmd(what: str, sharding: Any, axes: Axes) -> str:
    others = [name for name in axes.names if name != axes.mpmd_name]
    return (
        f"{what} is sharded over the mpmd axis {axes.mpmd_name!r} ({sharding}); "
        f"a value lives on whole submeshes: shard it over {', '.join(others) or 'no axis'} "
        "(shard_map with check_vma=False shards what it keeps for the backward over every axis: "
        "give it check_vma=True, or the mesh's lowering_mesh())"
    )


def _uses_axis(attribute: ir.Attribute, axis: str) -> bool:
    """Whether a dimension is sharded (or unreduced) over `axis`; a value that is replicated over it does not use it."""
    if f'"{axis}"' not in str(attribute):
        return False
    if sdy.TensorShardingPerValueAttr.isinstance(attribute):
        return any(_uses_axis(sharding, axis) for sharding in sdy.TensorShardingPerValueAttr(attribute).shardings)
    sharding = sdy.TensorShardingAttr(attribute)
    dimensions = [ref for entry in sharding.dimension_shardings for ref in sdy.DimensionShardingAttr(entry).axes]
    return any(sdy.AxisRefAttr(ref).name == axis for ref in [*dimensions, *sharding.unreduced_axes])


def _narrow_operation(op: ir.Operation, axes: Axes) -> None:
    if op.name == "stablehlo.partition_id":
        _narrow_partition_id(op, axes)
    elif "replica_groups" in op.attributes:
        _narrow_groups(op, axes)
    elif "source_target_pairs" in op.attributes:
        _narrow_pairs(op, axes)


def _narrow_groups(op: ir.Operation, axes: Axes) -> None:
    attribute = op.attributes["replica_groups"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        if f'"{axes.mpmd_name}"' in str(attribute):
            raise ValueError(_collective_over_mpmd(op, axes))
        return
    groups = np.array(attribute)
    if "channel_handle" not in op.attributes and groups.size == 1:
        return  # the collective is over the only replica
    kept = [row for row in groups if row.size and axes.group(row[row >= 0][:1]) == 0]
    for row in groups:
        if len(set(axes.group(row[row >= 0]).tolist())) > 1:
            raise ValueError(_collective_over_mpmd(op, axes))
    renumbered = np.array([np.where(row >= 0, axes.within(row), row) for row in kept], np.int64)
    op.attributes["replica_groups"] = _elements(renumbered)


def _narrow_pairs(op: ir.Operation, axes: Axes) -> None:
    pairs = np.array(op.attributes["source_target_pairs"]).reshape(-1, 2)
    groups = axes.group(pairs)
    if (groups[:, 0] != groups[:, 1]).any():
        raise ValueError(_collective_over_mpmd(op, axes))
    kept = np.ascontiguousarray(axes.within(pairs[groups[:, 0] == 0]), np.int64)
    op.attributes["source_target_pairs"] = _elements(kept)


def _elements(numbers: Any) -> ir.Attribute:
    return ir.DenseElementsAttr.get(numbers)


def _collective_over_mpmd(op: ir.Operation, axes: Axes) -> str:
    return (
        f"{source_line(op.location)}: {op.name.removeprefix('stablehlo.')} runs over the mpmd axis "
        f"{axes.mpmd_name!r}; the submeshes run different programs: leave that axis to the stage marks"
    )


def _narrow_partition_id(op: ir.Operation, axes: Axes) -> None:
    """Replaces the id by the id in the whole mesh of the device at the same position of submesh 0."""
    if axes.groups == 1:
        return
    with ir.InsertionPoint(op), op.location:
        own = stablehlo.partition_id()
        outer = stablehlo.divide(own, _constant(axes.inner, own.type))
        rest = stablehlo.remainder(own, _constant(axes.inner, own.type))
        whole = stablehlo.add(stablehlo.multiply(outer, _constant(axes.inner * axes.groups, own.type)), rest)
    op.result.replace_all_uses_with(whole)
    op.erase()


def _constant(value: int, kind: ir.Type) -> ir.Value:
    element = ir.RankedTensorType(kind).element_type
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(element, value)))


def _one_mesh(module: ir.Module, meshes: list[ir.Operation], axes: Axes) -> None:
    """Puts one `sdy.mesh`, `@mesh`, in place of all, except for JAX's own meshes of one device, for callbacks."""
    for op in meshes:
        _narrow_mesh(op, axes)
    sizes = [1 if k == axes.mpmd else size for k, size in enumerate(axes.sizes)]
    whole = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(*axis) for axis in zip(axes.names, sizes, strict=True)])
    symbols = ir.SymbolTable(module.operation)
    names = [ir.StringAttr(op.attributes["sym_name"]).value for op in meshes]
    for name, op in zip(names, meshes, strict=True):
        mesh = sdy.MeshAttr(op.attributes["mesh"])
        if not list(mesh.axes) and list(mesh.device_ids):
            if name == MESH:
                free = next(new for k in range(len(names)) if (new := f"{MESH}_{k}") not in names)
                ir.SymbolTable.replace_all_symbol_uses(name, free, module.operation)
                symbols.set_symbol_name(op, free)
            continue
        ir.SymbolTable.replace_all_symbol_uses(name, MESH, module.operation)
        symbols.erase(op.opview)
    with ir.InsertionPoint.at_block_begin(module.body):
        sdy.MeshOp(MESH, whole)


def _narrow_mesh(op: ir.Operation, axes: Axes) -> None:
    mesh = sdy.MeshAttr(op.attributes["mesh"])
    present = [sdy.MeshAxisAttr(axis) for axis in mesh.axes]
    if axes.mpmd_name not in [axis.name for axis in present]:
        return
    if list(mesh.device_ids):
        raise ValueError(f"{source_line(op.location)}: a mesh with its own order of devices can't be narrowed: {mesh}")
    narrowed = [sdy.MeshAxisAttr.get(axis.name, 1 if axis.name == axes.mpmd_name else axis.size) for axis in present]
    op.attributes["mesh"] = sdy.MeshAttr.get(narrowed)
    if "stablehlo.mesh" in op.attributes:  # JAX's second copy of the mesh, for collectives that name axes
        del op.attributes["stablehlo.mesh"]
