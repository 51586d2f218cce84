"""Narrows a module over the whole mesh to one that serves every submesh."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant
from jaxpp.ir.functions import name_of, nested
from jaxpp.lowering import other_meshes
from jaxpp.lowering.locations import source_line
from jaxpp.lowering.other_meshes import SHARDINGS

MESH = "mesh"
_REPLICATED = re.compile(r"replicated=\{[^}]*\}")


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
        if axes.groups > 1:
            for op in operations:
                _refuse_mpmd_sharding(op, axes)
            for op in operations:
                _narrow_operation(op, axes)
        _one_mesh(module, axes)
        i32 = ir.IntegerType.get_signless(32)
        module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(i32, axes.devices)


def _refuse_mpmd_sharding(op: ir.Operation, axes: Axes) -> None:
    """Raises ValueError where a value is sharded, or unreduced, over the mpmd axis; it may be replicated over it."""
    places: list[tuple[str, Any]] = [("", op.attributes)]
    if op.name == "func.func":
        tables = {"argument": at.argument_attributes(op), "result": at.result_attributes(op)}
        places = [(f"{what} {k}", entries) for what, table in tables.items() for k, entries in enumerate(table)]
    for what, entries in places:
        for name in SHARDINGS:
            if name in entries and f'"{axes.mpmd_name}"' in _REPLICATED.sub("", str(entries[name])):
                where = what or f"{source_line(op.location)}: a value"
                raise ValueError(_sharded_over_mpmd(where, entries[name], axes))


def _sharded_over_mpmd(what: str, sharding: Any, axes: Axes) -> str:
    others = [name for name in axes.names if name != axes.mpmd_name]
    return (
        f"{what} is sharded over the mpmd axis {axes.mpmd_name!r} ({sharding}); "
        f"a value lives on whole submeshes: shard it over {', '.join(others) or 'no axis'} "
        "(shard_map with check_vma=False shards what it keeps for the backward over every axis: "
        "give it check_vma=True, or the mesh's lowering_mesh())"
    )


def _narrow_operation(op: ir.Operation, axes: Axes) -> None:
    if op.name == "stablehlo.partition_id":
        _narrow_partition_id(op, axes)
        return
    for name in ("replica_groups", "source_target_pairs"):
        if name in op.attributes:
            _narrow_rows(op, name, axes)


def _narrow_rows(op: ir.Operation, name: str, axes: Axes) -> None:
    """Keeps the rows of devices of submesh 0, a group or a pair each; all submeshes have the same rows."""
    attribute = op.attributes[name]
    if not isinstance(attribute, ir.DenseElementsAttr):
        if f'"{axes.mpmd_name}"' in str(attribute):
            raise ValueError(_collective_over_mpmd(op, axes))
        return
    rows = np.array(attribute)
    if "channel_handle" not in op.attributes and rows.size == 1:
        return  # the collective is over the only replica
    kept: list[Any] = []
    for row in rows:
        groups = set(axes.group(row[row >= 0]).tolist())
        if len(groups) > 1:
            raise ValueError(_collective_over_mpmd(op, axes))
        if groups == {0}:
            kept.append(np.where(row >= 0, axes.within(row), row))
    renumbered: Any = np.array(kept, np.int64).reshape(-1, rows.shape[-1])
    op.attributes[name] = ir.DenseElementsAttr.get(renumbered)


def _collective_over_mpmd(op: ir.Operation, axes: Axes) -> str:
    return (
        f"{source_line(op.location)}: {op.name.removeprefix('stablehlo.')} runs over the mpmd axis "
        f"{axes.mpmd_name!r}; the submeshes run different programs: leave that axis to the stage marks"
    )


def _narrow_partition_id(op: ir.Operation, axes: Axes) -> None:
    """Replaces the id by the id in the whole mesh of the device at the same position of submesh 0."""
    with ir.InsertionPoint(op), op.location:
        own = stablehlo.partition_id()
        outer = stablehlo.divide(own, constant(own.type, axes.inner))
        rest = stablehlo.remainder(own, constant(own.type, axes.inner))
        whole = stablehlo.add(stablehlo.multiply(outer, constant(own.type, axes.inner * axes.groups)), rest)
    op.result.replace_all_uses_with(whole)
    op.erase()


def _one_mesh(module: ir.Module, axes: Axes) -> None:
    """Puts one `sdy.mesh`, `@mesh`, in place of all, except for JAX's own meshes of one device, for callbacks."""
    symbols = ir.SymbolTable(module.operation)
    for op in [op.operation for op in module.body.operations if op.operation.name == "sdy.mesh"]:
        mesh = sdy.MeshAttr(op.attributes["mesh"])
        if list(mesh.axes) or not list(mesh.device_ids):
            ir.SymbolTable.replace_all_symbol_uses(name_of(op), MESH, module.operation)
            symbols.erase(op.opview)
    sizes = [1 if k == axes.mpmd else size for k, size in enumerate(axes.sizes)]
    with ir.InsertionPoint.at_block_begin(module.body):
        sdy.MeshOp(MESH, other_meshes.mesh_with(zip(axes.names, sizes, strict=True)))
