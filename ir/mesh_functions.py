"""The program module (docs/ir.md, section 6): its mesh functions and what they call."""

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, functions, operations
from jaxpp.ir.steps import MeshLines, Step, handed

_ALLOWED = {
    "func.call",
    "func.return",
    "stablehlo.constant",
    "stablehlo.create_token",
    "stablehlo.recv",
    "stablehlo.send",
}
"""The operations of a mesh function."""


def mesh_functions(module: ir.Module) -> list[ir.Operation]:
    """The functions `@mesh_k`, each of one block, in the order of their meshes.

    Raises ProgramError when one is missing, or all are.
    """
    found: dict[int, ir.Operation] = {}
    for function in functions(module).values():
        if at.MESH not in function.attributes:
            continue
        mesh = at.integer(function, at.MESH)
        if mesh is None or mesh < 0:
            said = function.attributes[at.MESH]
            raise ProgramError(f"{at.MESH} is {said}, expected the number of a mesh", location=function.location)
        if mesh in found:
            raise ProgramError(f"a second function for mesh {mesh}", location=function.location)
        blocks = len(function.regions[0].blocks)
        if blocks != 1:
            raise ProgramError(f"a mesh function has {blocks} blocks, expected one", location=function.location)
        found[mesh] = function
    if not found:
        raise ProgramError("the module has no mesh functions", hint="run insert-transfers first")
    meshes = sorted(found)
    if meshes != list(range(len(found))):
        last = found[meshes[-1]]
        missing = next(mesh for mesh, there in enumerate([*meshes, -1]) if mesh != there)
        raise ProgramError(f"a function for mesh {meshes[-1]}, none for mesh {missing}", location=last.location)
    return [found[mesh] for mesh in meshes]


def stacked_arguments(module: ir.Module) -> set[int]:
    """The numbers of the arguments of which each mesh has one block."""
    entries = [entry for function in mesh_functions(module) for entry in at.argument_attributes(function)]
    return {ir.IntegerAttr(entry[at.ARGUMENT]).value for entry in entries if at.BLOCK in entry}


def task_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions that the mesh functions call, by name."""
    return {name: function for name, function in functions(module).items() if at.KIND in function.attributes}


def mesh_lines(module: ir.Module) -> MeshLines:
    """What each mesh does. Raises ProgramError on an operation that no program has, and as `mesh_functions`."""
    return handed(module, MeshLines) or MeshLines([_steps_of(function) for function in mesh_functions(module)])


def _steps_of(function: ir.Operation) -> list[Step]:
    steps = [Step.of(op) for op in operations(body_of(function))]
    for step in steps:
        if step.name not in _ALLOWED:
            raise ProgramError(
                f"a mesh function has a {step.name}: only constants, calls, sends and receives are allowed",
                location=step.op.location,
            )
    return steps


def meshes_of(call_op: ir.Operation) -> list[int]:
    """The meshes that run a call of a placed `@main`."""
    mesh = at.integer(call_op, at.MESH)
    return [mesh] if mesh is not None else at.integers(call_op, at.MESHES)
