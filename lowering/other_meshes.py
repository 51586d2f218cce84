"""Translates shardings over a user's mesh, with other axes over the same devices, to shardings over the mpmd mesh."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.ir.attributes import SHARD_MAP
from jaxpp.ir.functions import name_of
from jaxpp.ir.tensors import SubAxis
from jaxpp.lowering.locations import source_line

SHARDINGS = ("sdy.sharding", "sharding", "in_shardings", "out_shardings")
_SIGNATURES = ("arg_attrs", "res_attrs")


AxisSizes = Sequence[tuple[str, int]]
"""The axes of a mesh with their sizes, outermost first."""


def onto(operations: Sequence[ir.Operation], axes: AxisSizes) -> None:
    """Rewrites, in place, every sharding over a mesh with other axes to one over the mesh with `axes`.

    Both have the same devices in the same order. An axis of one is an axis of the other, several axes, or a part of an
    axis.

    Raises:
        ValueError: a mesh has its devices in another order, or an axis that is no part of ours; has the user's line.
    """
    meshes = {name_of(op): sdy.MeshAttr(op.attributes["mesh"]) for op in operations if op.name == "sdy.mesh"}
    others = {name: mesh for name, mesh in meshes.items() if list(mesh.axes) and mesh != mesh_with(axes)}
    if not others:
        return
    for op in operations:
        for name in SHARDINGS if op.name != "func.func" else _SIGNATURES:
            if name in op.attributes:
                op.attributes[name] = _translated(op.attributes[name], op, others, axes)


def mesh_with(axes: Iterable[tuple[str, int]]) -> ir.Attribute:
    """Returns an `#sdy.mesh` with these axes, and its devices in order."""
    return sdy.MeshAttr.get([sdy.MeshAxisAttr.get(*axis) for axis in axes])


def parts_of(axis: str, sizes: AxisSizes, ours: AxisSizes) -> list[SubAxis] | None:
    """Returns the parts of the axes `ours` that an axis of a mesh with `sizes` consists of; None if there are none."""
    if math.prod(size for _, size in sizes) != math.prod(size for _, size in ours):
        return None
    low, high = _span(axis, sizes)
    parts: list[SubAxis] = []
    reached = high
    for name, _ in ours:
        first, last = _span(name, ours)
        start, end = max(first, low), min(last, high)
        if start < end:
            if end != reached or end % start or last % end or start % first:
                return None
            parts.append(SubAxis(name, last // end, end // start))
            reached = start
    return parts if reached == low else None


def _span(axis: str, sizes: AxisSizes) -> tuple[int, int]:
    """Returns the distance of two neighbours along the axis, in devices, and this times the axis's size."""
    position = next(k for k, (name, _) in enumerate(sizes) if name == axis)
    inner = math.prod(size for _, size in sizes[position + 1 :])
    return inner, inner * sizes[position][1]


def _joined(parts: Iterable[SubAxis]) -> list[SubAxis]:
    """Returns the parts, with neighbours joined that make one larger part, as Shardy requires."""
    joined: list[SubAxis] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.name == part.name and last.pre_size * last.size == part.pre_size:
            joined[-1] = last._replace(size=last.size * part.size)
        else:
            joined.append(part)
    return joined


def _sizes(mesh: Any) -> list[tuple[str, int]]:
    axes = [sdy.MeshAxisAttr(axis) for axis in mesh.axes]
    return [(axis.name, axis.size) for axis in axes]


def _translated(attribute: Any, op: ir.Operation, others: Mapping[str, Any], ours: AxisSizes) -> ir.Attribute:
    """Translates a sharding, several, or the attributes of a signature to our mesh."""
    if isinstance(attribute, ir.ArrayAttr):
        return ir.ArrayAttr.get([_translated(each, op, others, ours) for each in attribute])
    if isinstance(attribute, ir.DictAttr):
        return ir.DictAttr.get({each.name: _translated(each.attr, op, others, ours) for each in attribute})
    if sdy.TensorShardingPerValueAttr.isinstance(attribute):
        each = sdy.TensorShardingPerValueAttr(attribute).shardings
        return sdy.TensorShardingPerValueAttr.get([_translated(sharding, op, others, ours) for sharding in each])
    if not sdy.TensorShardingAttr.isinstance(attribute):
        return attribute
    sharding = sdy.TensorShardingAttr(attribute)
    mesh = others.get(str(sharding.mesh_or_ref).removeprefix("@"))
    if mesh is None:
        return attribute
    return _Translation(op, mesh, ours).of(sharding)


class _Translation:
    """Translates the axes of another mesh to ours, in a sharding of `op`."""

    def __init__(self, op: ir.Operation, mesh: Any, ours: AxisSizes) -> None:
        self._sizes, self._ours = _sizes(mesh), ours
        self._what = f"{source_line(op.location)}: a sharding names another mesh, {_words(self._sizes)}"
        self._hint = f"give it the axes of the mpmd mesh, {_words(ours)}"
        if list(mesh.device_ids):
            raise ValueError(f"{self._what}, with its devices in an order of its own; {self._hint}")
        if op.name == SHARD_MAP:
            raise ValueError(f"{self._what}, which a shard_map can't; {self._hint}")

    def of(self, sharding: Any) -> ir.Attribute:
        dimensions = [sdy.DimensionShardingAttr(each) for each in sharding.dimension_shardings]
        return sdy.TensorShardingAttr.get(
            sharding.mesh_or_ref,
            [
                sdy.DimensionShardingAttr.get(self._axes(each.axes), each.is_closed, each.priority)
                for each in dimensions
            ],
            self._axes(sharding.replicated_axes, ordered=True),
            self._axes(sharding.unreduced_axes, ordered=True),
        )

    def _axes(self, axes: Sequence[Any], ordered: bool = False) -> list[ir.Attribute]:
        """Returns our axes for theirs; with `ordered`, in the order of the mesh, as Shardy wants a set of axes."""
        parts = [part for axis in axes for part in self._parts(sdy.AxisRefAttr(axis))]
        if ordered:
            names = [name for name, _ in self._ours]
            parts.sort(key=lambda part: (names.index(part.name), part.pre_size))
        return [self._reference(part) for part in _joined(parts)]

    def _parts(self, axis: Any) -> list[SubAxis]:
        parts = None if axis.sub_axis_info is not None else parts_of(axis.name, self._sizes, self._ours)
        if parts is None:
            raise ValueError(f"{self._what}, whose axis {axis.name!r} is no part of ours; {self._hint}")
        return parts

    def _reference(self, part: SubAxis) -> ir.Attribute:
        if part.size == dict(self._ours)[part.name]:
            return sdy.AxisRefAttr.get(part.name)
        return sdy.AxisRefAttr.get(part.name, sdy.SubAxisInfoAttr.get(part.pre_size, part.size))


def _words(sizes: AxisSizes) -> str:
    return ", ".join(f"{name!r} ({size})" for name, size in sizes)
