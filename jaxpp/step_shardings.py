"""The shardings that a program wants for the arguments of a step, and gives to its results."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxpp.ir.program import Argument, Result
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdSharding
from jaxpp.runtime import Program
from jaxpp.runtime.execution.shardings import SubmeshShardings


class StepShardings:
    """The shardings of a step's arguments and results.

    lowered: the lowered step.
    program: its program.
    """

    def __init__(self, lowered: Lowered, program: Program) -> None:
        self._lowered, self._program = lowered, program
        submeshes = lowered.mpmd_mesh.unstack[: program.meshes]
        self._places = SubmeshShardings(program, submeshes, lowered.mpmd_mesh.mpmd_axis_name)

    def of_arguments(self) -> Any:
        """Returns `(args, kwargs)` with an MpmdSharding per leaf; an argument that no mesh uses has no meshes."""
        found = self._program.arguments
        each = [found.get(number) for number in range(len(self._lowered.in_avals))]
        return jax.tree.unflatten(self._lowered.in_tree, [self._sharding(argument) for argument in each])

    def places(self) -> dict[int, NamedSharding]:
        """Returns the sharding of each argument, by its index, without the arguments that no mesh uses."""
        found: dict[int, NamedSharding] = {}
        for number, each in self._program.arguments.items():
            if meshes := tuple(mesh for mesh, _ in each.registers):
                found[number] = self._places.place(each.spec, meshes, each.stacked).sharding
        return found

    def of_results(self) -> Any:
        """Returns the results' tree of MpmdShardings."""
        return jax.tree.unflatten(self._lowered.out_tree, [self._sharding(each) for each in self._program.results])

    def _sharding(self, value: Argument | Result | None) -> MpmdSharding:
        mesh = self._lowered.mpmd_mesh
        if value is None:
            return MpmdSharding(mesh, frozenset(), PartitionSpec())
        meshes = tuple(number for number, _ in value.registers)
        spec = self._places.place(value.spec, meshes[:1] or (0,)).sharding.spec
        memory, blocks = value.spec.memory or None, meshes if value.stacked else ()
        return MpmdSharding(mesh, frozenset(meshes), spec, memory, blocks)
