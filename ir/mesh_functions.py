"""The program module (docs/ir.md, section 6): its mesh functions and the functions that they call."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import callee, functions
from jaxpp.ir.program import TaskName

TASK = (at.STAGE, at.MICROBATCH, at.SLICE)
"""The attributes of a call that name its tasks."""


def mesh_functions(module: ir.Module) -> list[ir.Operation]:
    """Returns the functions `@mesh_k`, each of one block, in the order of their meshes.

    Raises ProgramError where a mesh has no function or two, or a function has several blocks.
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


def task_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """Returns the functions that have a kind, by name. The mesh functions call these."""
    return {name: function for name, function in functions(module).items() if at.KIND in function.attributes}


def on_meshes(meshes: Sequence[int]) -> dict[str, ir.Attribute]:
    """Returns the attributes of a call that these meshes run."""
    return {at.MESH: at.i64(meshes[0])} if len(meshes) == 1 else {at.MESHES: at.i64s(meshes)}


def tasks_of_call(call_op: ir.Operation, kind: str) -> tuple[TaskName, ...]:
    """Returns the tasks that a call of a function of this kind runs: one, several that are fused, or none.

    Raises ProgramError unless the call has a stage and a microbatch for each task, and a slice for all or for none.
    """
    stages, microbatches, slices = [at.several(call_op, name) for name in TASK]
    if stages is None and microbatches is None:
        return ()
    kinds, stages, microbatches = kind.split("+"), stages or [], microbatches or []
    slices = [0] * len(kinds) if slices is None else slices
    fit = len(kinds) == len(stages) == len(microbatches) == len(slices)
    if not fit or min(*stages, *microbatches, *slices) < 0:
        names = TASK if at.SLICE in call_op.attributes else TASK[:2]
        found = " and ".join(at.found(call_op.attributes, name) for name in names)
        raise ProgramError(
            f"the call of @{callee(call_op)}, which is a {kind or 'function'}, has {found}",
            location=call_op.location,
            hint="unroll-microbatches writes them: a number from 0 on for each task, array<i64: ...> for several",
        )
    return tuple(map(TaskName, kinds, stages, microbatches, slices))
