"""Meshes and types of Shardy's `mpmd` dialect. Its bindings have no classes for them, so their text is read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import nested
from jaxpp.ir.shardings import MeshAxes, Shardings

TOPOLOGY = "topology"
MESH_SHAPE = "mesh_shape"
HOST = "pinned_host"
_TENSOR = re.compile(r'!mpmd\.mesh_tensor<"([^"]*)", (.*?)(?:, sharding=(<.*?>))?(?:, memory_kind="([^"]*)")?>')
_MESH = re.compile(r'<"([^"]*)" : <\[([^\]]*)\](.*?)>>')
_AXIS = re.compile(r'"([^"]*)"=(\d+)')
_SYMBOL = re.compile(r"<@[^,]+,")
_INLINED = re.compile(r"<mesh(<\[[^\]]*\](?:, device_ids=\[[^\]]*\])?>),")


@dataclass(frozen=True)
class MeshTensor:
    """A tensor on a mesh of the topology.

    Attributes:
        mesh: the name of the mesh.
        type: the type of the whole tensor.
        sharding: its `#sdy.sharding`, over the mesh `@mesh`; None if it has none.
        memory: its memory kind; empty for the memory of the devices.
    """

    mesh: str
    type: ir.Type
    sharding: ir.Attribute | None
    memory: str

    @staticmethod
    def of(type_: ir.Type) -> "MeshTensor | None":
        """Reads a type; returns None for any other type."""
        found = _TENSOR.fullmatch(str(type_))
        if found is None:
            return None
        mesh, tensor, sharding, memory = found.groups()
        parsed = on_one_mesh(ir.Attribute.parse(f"#sdy.sharding{sharding}")) if sharding else None
        return MeshTensor(mesh, ir.Type.parse(tensor), parsed, "" if memory in (None, "device") else memory)

    @property
    def mesh_type(self) -> ir.Type:
        """The type that `of` reads."""
        sharding = f", sharding={str(self.sharding).removeprefix('#sdy.sharding')}" if self.sharding else ""
        memory = f', memory_kind="{self.memory}"' if self.memory else ""
        return ir.Type.parse(f'!mpmd.mesh_tensor<"{self.mesh}", {self.type}{sharding}{memory}>')


Topology = Mapping[str, Mapping[str, int]]
"""The sizes of the axes of each mesh, by the names of the meshes and of the axes."""


def topology_of(function: ir.Operation) -> Topology:
    """Reads the topology of a function. Raises PassError if there is none, or its devices are in an order of its own.

    The devices of the meshes are given when the program runs, so an order of them has no meaning here.
    """
    attribute = function.attributes.get(TOPOLOGY)
    found = _MESH.findall(str(attribute))
    if not found:
        hint = "give a module of Shardy's mpmd dialect"
        raise PassError("@main has no mpmd topology", location=function.location, hint=hint)
    for name, _, rest in found:
        if rest:
            message = f"mesh '{name}' of the topology has{rest.lstrip(',')}, expected axes alone"
            raise PassError(message, location=function.location, hint="order the devices when you run the program")
    return {name: {axis: int(size) for axis, size in _AXIS.findall(axes)} for name, axes, _ in found}


def topology_attribute(topology: Topology) -> ir.Attribute:
    """Returns the attribute that `topology_of` reads."""
    meshes = ", ".join(f'<"{name}" : {_axes(axes)}>' for name, axes in topology.items())
    return ir.Attribute.parse(f"#mpmd.topology<{meshes}>")


def mesh_shape(axes: Mapping[str, int]) -> ir.Attribute:
    """Returns the `mesh_shape` of a function that a mesh with these axes runs."""
    return ir.Attribute.parse(f"#sdy.mesh{_axes(axes)}")


def _axes(axes: Mapping[str, int]) -> str:
    return "<[{}]>".format(", ".join(f'"{axis}"={size}' for axis, size in axes.items()))


def write_meshes(module: ir.Module, topology: Topology) -> None:
    """Replaces the meshes of `module` by one mesh `@mesh`, and writes how many meshes of which sizes there are.

    `@mesh` has the axes of all meshes, with their largest sizes. A mesh without one of these axes has size 1 there.
    Raises PassError for a mesh of `module` whose devices have an order of their own.
    """
    largest: dict[str, int] = {}
    for axes in topology.values():
        largest |= {axis: max(size, largest.get(axis, 1)) for axis, size in axes.items()}
    for op in list(module.body.operations):
        if op.operation.name == "sdy.mesh":
            _check_order(sdy.MeshAttr(op.operation.attributes["mesh"]), op.operation)
            op.operation.erase()
    if largest:
        create_mesh(module, largest, "mesh")
    sizes = [{axis: axes.get(axis, 1) for axis in largest} for axes in topology.values()]
    devices = max(prod(each.values()) for each in sizes)
    attributes = module.operation.attributes
    attributes[at.PARTITIONS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), devices)
    attributes[at.MESHES] = at.i64(len(topology))
    if any(each != largest for each in sizes):
        attributes[at.MESH_SIZES] = at.attribute_of(tuple(sizes))


def _check_order(mesh: sdy.MeshAttr, op: ir.Operation) -> None:
    """Raises PassError for a mesh whose devices have an order of their own."""
    if len(mesh.device_ids):
        hint = "order the devices when you run the program"
        raise refused(op, f"has device_ids={list(mesh.device_ids)}, expected axes alone", hint)


def create_mesh(module: ir.Module, axes: Mapping[str, int], name: str) -> None:
    """Makes a mesh with these axes at the beginning of `module`."""
    mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(axis, size) for axis, size in axes.items()])
    entries: dict[str, ir.Attribute] = {"sym_name": ir.StringAttr.get(name), "mesh": mesh}
    first = ir.InsertionPoint.at_block_begin(module.body)
    ir.Operation.create("sdy.mesh", attributes=entries, ip=first, loc=ir.Location.unknown())


def on_one_mesh(attribute: ir.Attribute) -> ir.Attribute:
    """Returns a sharding, or shardings per value, over `@mesh` instead of the mesh that it names."""
    text = str(attribute)
    renamed = _SYMBOL.sub("<@mesh,", text)
    return attribute if renamed == text else ir.Attribute.parse(renamed)


def put_on_one_mesh(op: ir.Operation) -> None:
    """Writes all shardings inside `op` over `@mesh`."""
    for inner in nested(op):
        for name, attribute in list(_shardings(inner)):
            inner.attributes[name] = on_one_mesh(attribute)


def _shardings(op: ir.Operation) -> Iterator[tuple[str, ir.Attribute]]:
    for name in op.attributes:
        if name.endswith(("sharding", "shardings")) and str(op.attributes[name]).startswith("#sdy."):
            yield name, op.attributes[name]


def per_value(attribute: ir.Attribute | None, count: int) -> Sequence[ir.Attribute | None]:
    """Returns the shardings, over `@mesh`, of `count` values; None for each value if the attribute is absent."""
    if attribute is None:
        return [None] * count
    return sdy.TensorShardingPerValueAttr(on_one_mesh(attribute)).shardings


def refused(op: ir.Operation, what: str, hint: str) -> PassError:
    """Returns the error for an operation that can't be imported."""
    return PassError(f"{op.name} {what}", location=op.location, hint=hint)


class TypeReader:
    """Reads the types and shardings of a module whose meshes are written. Refuses those that can't be imported."""

    def __init__(self, module: ir.Module, topology: Topology) -> None:
        self._shardings = Shardings(module)
        self._is_sharded = MeshAxes.of(module) is not None
        self._topology = topology
        self._axes = {axis for axes in topology.values() for axis in axes}
        self._read: dict[ir.Type, MeshTensor | None] = {}

    def read(self, type_: ir.Type, op: ir.Operation, *, host: bool = False) -> MeshTensor:
        """Reads the type of an operand or result of `op`. Its mesh is empty if the type names none.

        Raises PassError for a type that is no tensor, an unknown mesh, or, unless `host`, the memory of the host.
        """
        if type_ not in self._read:
            self._read[type_] = MeshTensor.of(type_)
        found = self._read[type_]
        if found is None:
            if not isinstance(type_, ir.RankedTensorType):
                raise refused(op, f"has a value of type {type_}, expected tensors", "remove the tokens")
            return MeshTensor("", type_, None, "")
        if found.mesh not in self._topology:
            hint = f"the meshes are {', '.join(self._topology)}"
            raise refused(op, f"has a value on mesh '{found.mesh}', which the topology does not have", hint)
        if found.memory and not (host and found.memory == HOST):
            hint = f"transfer it to the memory 'device'; arguments and results of @main can be in '{HOST}'"
            raise refused(op, f"has a value in the memory '{found.memory}'", hint)
        return found

    def boundary(self, sharding: ir.Attribute | None, type_: ir.Type, op: ir.Operation) -> dict[str, ir.Attribute]:
        """Returns the attributes of an argument or result with this sharding.

        Raises PassError for a partial sum, for a part of an axis, and for an axis that no mesh has.
        """
        text = "" if sharding is None else str(sharding)
        for mesh in _INLINED.findall(text):
            _check_order(sdy.MeshAttr(ir.Attribute.parse(f"#sdy.mesh{mesh}")), op)
        if "unreduced" in text:
            raise refused(op, f"has the sharding {text}", "sum the value before it leaves its fragment")
        if ":(" in text:
            raise refused(op, f"has the sharding {text}", "make the part of an axis an axis of the topology")
        unknown = [axis for axis in re.findall(r'"([^"]*)"', text) if axis not in self._axes]
        if unknown:
            raise refused(op, f"is sharded over '{unknown[0]}', no axis of the topology", "use the axes of its meshes")
        closed = self._shardings.closed(sharding, ir.RankedTensorType(type_).rank)
        return {} if closed is None else {at.SHARDING: closed}

    def constrained(self, value: ir.Value, sharding: ir.Attribute | None, op: ir.Operation) -> ir.Value:
        """Returns `value` with a constraint on its sharding, at the current insertion point."""
        if sharding is None or not self._is_sharded:
            return value
        entry = {"sharding": sharding}
        return ir.Operation.create("sdy.sharding_constraint", [value.type], [value], entry, loc=op.location).results[0]
