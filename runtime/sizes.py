"""How many devices a mesh has, along which axes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.runtime.values import ProgramError, integer

MESH_SIZES = "jaxpp.mesh_sizes"
"""The axes of each mesh with their sizes, on a module whose meshes differ in size."""


@dataclass(frozen=True)
class Sizes:
    """The size of one mesh of a program.

    partitions: how many devices it has.
    named: the axes of the program's `sdy.mesh`, with their sizes here; none where it has no such mesh.
    own: whether these are the sizes for which the program was written.
    """

    partitions: int
    named: tuple[tuple[str, int], ...]
    own: bool = True

    @staticmethod
    def of(module: ir.Module) -> "Sizes":
        """Those for which a module was written."""
        attributes = module.operation.attributes
        partitions = integer(attributes["mhlo.num_partitions"]) if "mhlo.num_partitions" in attributes else 1
        for op in module.body.operations:
            if op.operation.name == "sdy.mesh":
                axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(op.operation.attributes["mesh"]).axes]
                return Sizes(partitions, tuple((axis.name, axis.size) for axis in axes))
        return Sizes(partitions, ())

    @staticmethod
    def of_meshes(module: ir.Module, meshes: int) -> list["Sizes"]:
        """Those of each mesh: those of the module, unless its `jaxpp.mesh_sizes` say otherwise."""
        own = Sizes.of(module)
        if MESH_SIZES not in module.operation.attributes:
            return [own] * meshes
        found = [
            own.changed({each.name: integer(each.attr) for each in ir.DictAttr(entry)})
            for entry in ir.ArrayAttr(module.operation.attributes[MESH_SIZES])
        ]
        if len(found) < meshes:
            raise ProgramError(f"{MESH_SIZES} names {len(found)} meshes, the program has {meshes}")
        return found[:meshes]

    def changed(self, axes: Mapping[str, int]) -> "Sizes":
        """The sizes of a mesh with these axes, among which are those named here."""
        named = tuple((name, axes.get(name, size)) for name, size in self.named)
        here = math.prod(axes.values()), named
        return Sizes(*here, own=here == (self.partitions, self.named))

    @property
    def axes(self) -> dict[str, int]:
        """The sizes by name."""
        return dict(self.named)

    @property
    def suffix(self) -> str:
        """What tells a function for a mesh of this size from the same function for others."""
        sizes = [size for _, size in self.named] or [self.partitions]
        return "" if self.own else "_on_" + "x".join(map(str, sizes))
