"""Shardings of the values that cross a function boundary: always present, closed, over whole mesh axes."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import callee
from jaxpp.ir.tensors import SubAxis, sharded_axes
from jaxpp.ir.values import byte_size, defining_op


class Shardings:
    """Reads the boundary shardings of one module. They are all None if the module is not partitioned."""

    def __init__(self, module: ir.Module) -> None:
        self._mesh = MeshAxes.of(module)
        self._module = module
        self._cache: dict[tuple[ir.Attribute | None, int], ir.Attribute] = {}
        self._results: dict[str, list[dict[str, ir.Attribute]]] = {}
        self._lists: dict[ir.Attribute, list[ir.Attribute]] = {}

    def of(self, value: ir.Value) -> ir.Attribute | None:
        """Returns the closed sharding of `value`: replicated where propagation left it open or split an axis."""
        if self._mesh is None or not isinstance(type_ := value.type, ir.RankedTensorType):
            return None
        op = defining_op(value)
        found = self._of_call(op, ir.OpResult(value)) if op is not None and op.name == "func.call" else None
        return self.closed(found or at.value_sharding(value, self._lists), type_.rank)

    def _of_call(self, op: ir.Operation, value: ir.OpResult) -> ir.Attribute | None:
        name = callee(op)
        if name not in self._results:
            self._results[name] = at.result_attributes(ir.SymbolTable(self._module.operation)[name].operation)
        return self._results[name][value.result_number].get(at.SHARDING)

    def closed(self, attribute: ir.Attribute | None, rank: int) -> ir.Attribute | None:
        """Returns `attribute` with closed dimensions, for a tensor of `rank`; replicated when it is None."""
        if self._mesh is None:
            return None
        key = (attribute, rank)
        if key not in self._cache:
            axes = _whole_axes(attribute) if attribute is not None else []
            # The sharding of a value on one device, such as a callback's, names no dimension.
            self._cache[key] = self._mesh.attribute(axes or [[]] * rank)
        return self._cache[key]


def _whole_axes(attribute: ir.Attribute) -> list[list[str]]:
    dimensions = sharded_axes(attribute)
    return [[axis for axis in axes if isinstance(axis, str)] if _are_whole(axes) else [] for axes in dimensions]


def _are_whole(axes: Sequence[str | SubAxis]) -> bool:
    return all(isinstance(axis, str) for axis in axes)


def boundary_attributes(shardings: Shardings, values: Sequence[ir.Value]) -> list[dict[str, ir.Attribute]]:
    """Returns the argument or result attributes of a function whose arguments or results stand for `values`."""
    found = [shardings.of(value) for value in values]
    return [{at.SHARDING: sharding} if sharding is not None else {} for sharding in found]


@dataclass(frozen=True)
class MeshAxes:
    """The mesh of a module, or one of its meshes where they differ in size; reads and writes shardings over its axes.

    name: the symbol of the module's `sdy.mesh`; empty where it has none.
    named: the axes of the `sdy.mesh`, with their sizes on this mesh.
    partitions: the number of devices of the mesh.
    own: whether the module was written for these sizes.
    """

    name: str
    named: tuple[tuple[str, int], ...]
    partitions: int
    own: bool = True
    _read: dict[ir.Attribute, list[tuple[str, ...]]] = field(default_factory=dict, compare=False, repr=False)
    _written: dict[tuple[tuple[str, ...], ...], ir.Attribute] = field(default_factory=dict, compare=False, repr=False)
    _lists: dict[ir.Attribute, list[ir.Attribute]] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(module: ir.Module) -> "MeshAxes | None":
        """Returns the mesh of `module`; None when its submeshes have one device."""
        found = MeshAxes.written_for(module)
        return found if found.name and found.partitions > 1 else None

    @staticmethod
    def written_for(module: ir.Module) -> "MeshAxes":
        """Returns the mesh for which `module` was written, however many devices it has."""
        partitions = at.integer(module.operation, at.PARTITIONS) or 1
        for op in module.body.operations:
            if op.operation.name == "sdy.mesh":
                axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(op.operation.attributes["mesh"]).axes]
                name = ir.StringAttr(op.operation.attributes["sym_name"]).value
                return MeshAxes(name, tuple((axis.name, axis.size) for axis in axes), partitions)
        return MeshAxes("", (), partitions)

    @staticmethod
    def of_each(module: ir.Module, meshes: int) -> "list[MeshAxes]":
        """Returns each mesh of a program: as the module was written, unless its `jaxpp.mesh_sizes` differ."""
        own = MeshAxes.written_for(module)
        sizes = mesh_sizes(module)
        return [own.resized(each) for each in sizes] if sizes else [own] * meshes

    def resized(self, axes: Mapping[str, int]) -> "MeshAxes":
        """Returns the mesh with these axes, which are at least the axes named here."""
        named = tuple((axis, axes.get(axis, size)) for axis, size in self.named)
        here = named, prod(axes.values())
        return MeshAxes(self.name, *here, own=here == (self.named, self.partitions))

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the axes, by name."""
        return dict(self.named)

    @property
    def suffix(self) -> str:
        """The suffix in the names of functions that are made for this mesh size."""
        sizes = [size for _, size in self.named] or [self.partitions]
        return "" if self.own else "_on_" + "x".join(map(str, sizes))

    def read(self, value: ir.Value) -> Sequence[tuple[str, ...]]:
        """Returns for each dimension of `value` the axes of several devices that shard it, without parts of axes."""
        sharding = at.value_sharding(value, self._lists)
        axes = self.axes(sharding) if sharding is not None else ()
        return axes or [()] * ir.RankedTensorType(value.type).rank  # a value on one device, as a callback's, has none

    def split_by(self, value: ir.Value) -> set[str | SubAxis]:
        """Returns the axes, and the parts of axes, that shard any dimension of `value`."""
        sharding = at.value_sharding(value, self._lists)
        return {axis for axes in sharded_axes(sharding) for axis in axes} if sharding is not None else set()

    def axes(self, sharding: ir.Attribute) -> Sequence[tuple[str, ...]]:
        """Returns for each dimension the axes of more than one device that `sharding` has."""
        found = self._read.get(sharding)
        if found is None:
            dimensions = _whole_axes(sharding)
            found = [tuple(axis for axis in axes if self.sizes[axis] > 1) for axes in dimensions]
            self._read[sharding] = found
        return found

    def count(self, axes: Iterable[str]) -> int:
        """Returns the number of devices along `axes`."""
        return prod(self.sizes[axis] for axis in axes)

    def bytes_per_device(self, type_: ir.Type, dimensions: Iterable[Sequence[str]]) -> int:
        """Returns the bytes on each device of a tensor of this type whose dimensions have these axes."""
        return byte_size(type_) // self.count(axis for axes in dimensions for axis in axes)

    def attribute(self, dimensions: Iterable[Sequence[str]]) -> ir.Attribute:
        """Returns the closed sharding with these axes on the dimensions."""
        named = tuple(map(tuple, dimensions))
        if named not in self._written:
            closed = [sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(a) for a in axes], True) for axes in named]
            self._written[named] = sdy.TensorShardingAttr.get(self.name, closed)
        return self._written[named]


def manual_axes(shard_map: ir.Operation) -> list[str]:
    """Returns the axes over which the body of an `sdy.manual_computation` sees shards."""
    axes = sdy.ManualAxesAttr(shard_map.attributes["manual_axes"])
    return [axes[number] for number in range(len(axes))]


def shard_count(shard_map: ir.Operation, sizes: Mapping[str, int]) -> int:
    """Returns how many devices run the body of an `sdy.manual_computation` on shards of their own.

    Along an axis that shards nothing, all devices do the same, which counts once. A part that `unroll-loops` made
    counts as the whole (`jaxpp.devices`), because the shardings of the part name all axes.

    sizes: the sizes of the mesh's axes.
    """
    known = at.integer(shard_map, at.DEVICES)
    if known is not None:
        return known
    used = f"{shard_map.attributes['in_shardings']} {shard_map.attributes['out_shardings']}"
    return prod(sizes[axis] for axis in manual_axes(shard_map) if f'"{axis}"' in used)


def mesh_sizes(module: ir.Module) -> list[dict[str, int]]:
    """Returns the sizes of the axes of each mesh (`jaxpp.mesh_sizes`); empty where the meshes have one size."""
    return list(at.plain(module.operation.attributes.get(at.MESH_SIZES)) or ())


def uneven_axes(module: ir.Module) -> set[str]:
    """Returns the axes that have different sizes on different meshes (`jaxpp.mesh_sizes`)."""
    meshes = mesh_sizes(module)
    return {axis for mesh in meshes for axis, size in mesh.items() if size != meshes[0][axis]}


def without(dimensions: Iterable[Sequence[str]], axes: Container[str]) -> list[tuple[str, ...]]:
    """Returns `dimensions` without the axes in `axes`."""
    return [tuple(axis for axis in names if axis not in axes) for names in dimensions]
