"""Shardings of the values that cross a function boundary: always there, closed, over whole mesh axes."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import callee, functions
from jaxpp.hlo_passes.ir.values import byte_size


class Shardings:
    """Reads the boundary shardings of one module; None for every value of a module that is not partitioned."""

    def __init__(self, module: ir.Module) -> None:
        meshes = [op.operation for op in module.body.operations if op.operation.name == "sdy.mesh"]
        partitions = at.integer(module.operation, "mhlo.num_partitions") or 1
        self._mesh = ir.StringAttr(meshes[0].attributes["sym_name"]).value if meshes and partitions > 1 else None
        self._module = module
        self._cache: dict[tuple[ir.Attribute | None, int], ir.Attribute] = {}
        self._results: dict[str, list[dict[str, ir.Attribute]]] = {}

    def of(self, value: ir.Value) -> ir.Attribute | None:
        """The closed sharding of `value`: replicated where propagation left it open or split an axis."""
        if self._mesh is None or not isinstance(value.type, ir.RankedTensorType):
            return None
        found = self._of_call(value) if isinstance(value, ir.OpResult) else None
        return self.closed(found or at.value_sharding(value), ir.RankedTensorType(value.type).rank)

    def _of_call(self, value: ir.OpResult) -> ir.Attribute | None:
        op = value.owner.operation
        if op.name != "func.call":
            return None
        name = callee(op)
        if name not in self._results:
            self._results.update((n, at.result_attributes(f)) for n, f in functions(self._module).items())
        return self._results[name][value.result_number].get(at.SHARDING)

    def closed(self, attribute: ir.Attribute | None, rank: int) -> ir.Attribute | None:
        """`attribute` with closed dimensions, for a tensor of `rank`; replicated when it is None."""
        if self._mesh is None:
            return None
        key = (attribute, rank)
        if key not in self._cache:
            axes = _whole_axes(attribute) if attribute is not None else []
            axes = axes or [[] for _ in range(rank)]  # what is on one device, as a callback is, names no dimension
            dimensions = ", ".join("{" + ", ".join(f'"{axis}"' for axis in names) + "}" for names in axes)
            self._cache[key] = ir.Attribute.parse(f"#sdy.sharding<@{self._mesh}, [{dimensions}]>")
        return self._cache[key]


def _whole_axes(attribute: ir.Attribute) -> list[list[str]]:
    dimensions: list[list[str]] = []
    for dimension in sdy.TensorShardingAttr(attribute).dimension_shardings:
        axes = [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dimension).axes]
        whole = all(axis.sub_axis_info is None for axis in axes)
        dimensions.append([axis.name for axis in axes] if whole else [])
    return dimensions


def boundary_attributes(shardings: Shardings, values: list[ir.Value]) -> list[dict[str, ir.Attribute]]:
    """The argument or result attributes of a function whose arguments or results stand for `values`."""
    found = [shardings.of(value) for value in values]
    return [{at.SHARDING: sharding} if sharding is not None else {} for sharding in found]


@dataclass(frozen=True)
class MeshAxes:
    """The mesh of a partitioned module: reads and writes shardings as the axes of each dimension."""

    name: str
    sizes: Mapping[str, int]

    @staticmethod
    def of(module: ir.Module) -> "MeshAxes | None":
        """The mesh of `module`; None when its submeshes have one device."""
        if (at.integer(module.operation, "mhlo.num_partitions") or 1) == 1:
            return None
        for op in module.body.operations:
            if op.operation.name == "sdy.mesh":
                axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(op.operation.attributes["mesh"]).axes]
                name = ir.StringAttr(op.operation.attributes["sym_name"]).value
                return MeshAxes(name, {axis.name: axis.size for axis in axes})
        return None

    def read(self, value: ir.Value) -> list[tuple[str, ...]]:
        """For each dimension of `value` the axes of more than one device that shard it; a part of an axis is none."""
        sharding = at.value_sharding(value)
        if sharding is None:
            return [()] * ir.RankedTensorType(value.type).rank
        dimensions = _whole_axes(sharding) or [[] for _ in range(ir.RankedTensorType(value.type).rank)]
        return [tuple(axis for axis in axes if self.sizes[axis] > 1) for axes in dimensions]

    def count(self, axes: Iterable[str]) -> int:
        """The number of devices along `axes`."""
        return prod(self.sizes[axis] for axis in axes)

    def bytes_per_device(self, type_: ir.Type, dimensions: Iterable[Sequence[str]]) -> int:
        """Bytes that each device has of a tensor of this type."""
        return byte_size(type_) // self.count(axis for axes in dimensions for axis in axes)

    def attribute(self, dimensions: Iterable[Sequence[str]]) -> ir.Attribute:
        """The closed sharding with these axes on the dimensions."""
        closed = [sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(a) for a in axes], True) for axes in dimensions]
        return sdy.TensorShardingAttr.get(self.name, closed)


def uneven_axes(module: ir.Module) -> set[str]:
    """The axes that have different sizes on different meshes (`jaxpp.mesh_sizes`)."""
    attribute = module.operation.attributes.get(at.MESH_SIZES)
    meshes = [at.dictionary(entry) for entry in ir.ArrayAttr(attribute)] if attribute is not None else []
    return {axis for mesh in meshes for axis, size in mesh.items() if size != meshes[0][axis]}


def without(dimensions: Iterable[Sequence[str]], axes: Container[str]) -> list[tuple[str, ...]]:
    """`dimensions` with nothing sharded over `axes`."""
    return [tuple(axis for axis in names if axis not in axes) for names in dimensions]
