"""`import-shardings`: turns shardings of GSPMD into shardings of Shardy."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.shardy.mesh_tensors import create_mesh
from jaxpp.hlo_passes.shardy.tiles import (
    Tiles,
    TilesError,
    axes_of,
    axes_over,
    bounds_of,
    check_chain,
    read_tiles,
    split_tuple,
)
from jaxpp.ir import attributes as at
from jaxpp.ir.build import replace
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import name_of, nested
from jaxpp.ir.gate import GSPMD_SHARDING, LOWER_WITH_SHARDY, check_module

_OPEN = re.compile(r"unspecified_dims=\[(\d+(?:,\d+)*)\]")


@dataclass(frozen=True)
class ImportShardings(Pass):
    """Turns shardings of GSPMD (`mhlo.sharding`) into a mesh and shardings of Shardy.

    GSPMD numbers the tiles of a value by devices: `[2,1,4]<=[8]` splits the first dimension into two halves, each for
    four devices. The pass cuts the numbers of the devices into digits, so that each sharding splits by whole digits.
    The digits are the axes of the mesh, and `axis_0` is the slowest one. An `@Sharding` becomes a constraint.

    The tools refuse such modules, unless this pass is the first to run. It refuses shardings that no mesh with its
    devices in order has: lists of devices, values on one device (`maximal`), values per device (`manual`).

    Preconditions: the module has no mesh of Shardy, and `mhlo.num_partitions` is the number of its devices.

    ```mlir
    func.func @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
    ==>
    sdy.mesh @mesh = <["axis_0"=2, "axis_1"=4]>
    func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}, {}]>})
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Imports all shardings of `module`. Raises PassError for one that no mesh has."""
        everything = list(nested(module.operation))
        reader = _ShardingImport(at.integer(module.operation, at.PARTITIONS) or 1)
        for op in everything:
            for what, types, attribute in _places(op):
                reader.read(op, what, types, attribute)
        meshes = [op for op in everything if op.name == "sdy.mesh"]
        if meshes and reader.tiles:
            raise _refused(meshes[0], "a mesh of Shardy beside shardings of GSPMD, expected one of both")
        open_dimensions = [_open_dimensions(op) if _is_constraint(op) else () for op in everything]
        if reader.tiles:
            reader.write_mesh(module)
        for op, unspecified in zip(everything, open_dimensions, strict=True):
            if op.name == "func.func":
                at.set_tables(op, *([reader.imported(entry) for entry in table] for table in _tables(op)))
            elif GSPMD_SHARDING in op.attributes:
                _write(op, reader.shardings(op.attributes[GSPMD_SHARDING], unspecified))
        check_module(module)


def _refused(op: ir.Operation, what: str) -> PassError:
    return PassError(what, location=op.location, hint=LOWER_WITH_SHARDY)


def _is_constraint(op: ir.Operation) -> bool:
    return op.name == "stablehlo.custom_call" and at.plain(op.attributes["call_target_name"]) == "Sharding"


def _open_dimensions(constraint: ir.Operation) -> list[int]:
    """Returns the dimensions that a constraint leaves open. Raises PassError for a constraint of another form."""
    if GSPMD_SHARDING not in constraint.attributes:
        raise _refused(constraint, f"a custom call @Sharding without {GSPMD_SHARDING}")
    text = at.plain(constraint.attributes.get("backend_config")) or ""
    found = _OPEN.fullmatch(text)
    if text and not found:
        raise _refused(constraint, f'a custom call @Sharding with "{text}", expected unspecified_dims=[...] or nothing')
    return [int(each) for each in found[1].split(",")] if found else []


_Entry = dict[str, ir.Attribute]


def _tables(function: ir.Operation) -> tuple[list[_Entry], list[_Entry]]:
    return at.argument_attributes(function), at.result_attributes(function)


def _places(op: ir.Operation) -> Iterator[tuple[str, Sequence[ir.Type], ir.Attribute]]:
    """Yields each place with a sharding on an operation: its description, types and sharding."""
    if op.name == "func.func":
        type_ = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        for kind, types, table in zip(("argument", "result"), (type_.inputs, type_.results), _tables(op), strict=True):
            for number, (each, entry) in enumerate(zip(types, table, strict=True)):
                if GSPMD_SHARDING in entry:
                    yield f"{kind} {number} of @{name_of(op)}", [each], entry[GSPMD_SHARDING]
    elif GSPMD_SHARDING in op.attributes:
        yield op.name, [result.type for result in op.results], op.attributes[GSPMD_SHARDING]


class _ShardingImport:
    """Reads shardings, and writes them over the axes of one mesh.

    Attributes:
        tiles: for each attribute, the tiles of each of its values.
    """

    def __init__(self, devices: int) -> None:
        self.tiles: dict[ir.Attribute, list[Tiles]] = {}
        self._devices = devices
        self._bounds = {1, devices}
        self._mesh = ""

    def read(self, op: ir.Operation, what: str, types: Sequence[ir.Type], attribute: ir.Attribute) -> None:
        """Reads the shardings of values of some types. Raises PassError if no mesh has them and those before them."""
        text = at.plain(attribute)
        try:
            parts = split_tuple(text) if isinstance(text, str) else []
            if len(parts) != len(types):
                raise TilesError(f"it has {len(parts)} shardings, expected {len(types)}")
            tiles = [read_tiles(part, _rank(type_), self._devices) for part, type_ in zip(parts, types, strict=True)]
            bounds = self._bounds.union(*map(bounds_of, tiles))
            check_chain(bounds)
        except TilesError as error:
            raise _refused(op, f"{what} has {GSPMD_SHARDING} = {attribute}, which no mesh has: {error}") from None
        self.tiles[attribute], self._bounds = tiles, bounds

    def write_mesh(self, module: ir.Module) -> None:
        """Writes the mesh of all shardings that were read."""
        taken = {name_of(op.operation) for op in module.body.operations if "sym_name" in op.attributes}
        self._mesh = "mesh"
        while self._mesh in taken:
            self._mesh += "_"
        self._axes = axes_of(self._bounds)
        create_mesh(module, {name: high // low for name, (low, high) in self._axes.items()}, self._mesh)

    def imported(self, entry: _Entry) -> _Entry:
        """Returns the attributes of an argument or a result, with the sharding of Shardy."""
        if GSPMD_SHARDING not in entry:
            return entry
        (sharding,) = self.shardings(entry.pop(GSPMD_SHARDING))
        return entry | {at.SHARDING: sharding}

    def shardings(self, attribute: ir.Attribute, open_dimensions: Collection[int] = ()) -> list[ir.Attribute]:
        """Returns the shardings of Shardy for an attribute that was read."""
        texts: list[str] = []
        for tiles in self.tiles[attribute]:
            split = [[f'"{axis}"' for axis in axes_over(factors, self._axes)] for factors in tiles]
            split = [each + ["?"] * (number in open_dimensions) for number, each in enumerate(split)]
            dimensions = ", ".join(f"{{{', '.join(axes)}}}" for axes in split)
            texts.append(f"#sdy.sharding<@{self._mesh}, [{dimensions}]>")
        return [ir.Attribute.parse(text) for text in texts]


def _rank(type_: ir.Type) -> int:
    if not isinstance(type_, ir.RankedTensorType):
        raise TilesError(f"a value of type {type_} is not split")
    return type_.rank


def _write(op: ir.Operation, shardings: Sequence[ir.Attribute]) -> None:
    """Gives an operation its shardings; a constraint becomes one of Shardy."""
    if not _is_constraint(op):
        del op.attributes[GSPMD_SHARDING]
        op.attributes[at.SHARDING] = sdy.TensorShardingPerValueAttr.get(shardings)
        return
    (value,), (sharding,) = op.operands, shardings
    types, ip = [value.type], ir.InsertionPoint(op)
    name, entry = "sdy.sharding_constraint", {"sharding": sharding}
    replace(op, ir.Operation.create(name, types, [value], entry, loc=op.location, ip=ip).results)
