"""The program module (docs/ir.md, section 6): its mesh functions and the functions that they call."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, callee, functions, operations
from jaxpp.ir.program import TaskName
from jaxpp.ir.steps import MeshLine, MeshLines, Step, handed

_ALLOWED = {
    "func.call",
    "func.return",
    "stablehlo.constant",
    "stablehlo.create_token",
    "stablehlo.recv",
    "stablehlo.send",
}
"""The operations that a mesh function may have."""

_HANDS_ON = {"stablehlo.create_token", "stablehlo.recv", "stablehlo.send"}
"""The operations that make a token, which the next send or receive takes."""

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


def stacked_arguments(module: ir.Module) -> set[int]:
    """Returns the numbers of the step's arguments of which each mesh has one block."""
    entries = [entry for function in mesh_functions(module) for entry in at.argument_attributes(function)]
    return {numbers[0] for entry in entries if isinstance(numbers := at.plain(entry[at.NUMBER]), list)}


def noted_peaks(module: ir.Module) -> list[tuple[int, int]]:
    """Returns the peaks in `jaxpp.bytes` of each mesh function: on each device, and in its host's memory for it."""
    noted = map(at.noted_bytes, mesh_functions(module))
    return [(each.get("peak", 0), each.get("host_peak", 0)) for each in noted]


def task_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """Returns the functions that have a kind, by name. The mesh functions call these."""
    return {name: function for name, function in functions(module).items() if at.KIND in function.attributes}


def mesh_lines(module: ir.Module) -> MeshLines:
    """Returns the lines of all mesh functions: as the last pass left them, or read anew. Raises as `read_meshes`."""
    return handed(module, MeshLines) or read_meshes(module)


def read_meshes(module: ir.Module) -> MeshLines:
    """Reads all mesh functions. Raises ProgramError for an operation that no program has, and as `mesh_functions`."""
    return MeshLines([_read(function) for function in mesh_functions(module)])


def _read(function: ir.Operation) -> MeshLine:
    """Reads one mesh function, whose sends and receives must form one chain of tokens."""
    values: list[ir.Value] = [*body_of(function).arguments]
    known = {value: number for number, value in enumerate(values)}
    steps: list[Step[int]] = []
    token: ir.Value | None = None
    for op in operations(body_of(function)):
        step = Step.of(op)
        if step.name not in _ALLOWED:
            found = f"a mesh function has a {step.name}"
            raise ProgramError(f"{found}: only constants, calls, sends and receives are allowed", location=op.location)
        if step.name in _HANDS_ON:
            token = _hand_on(token, step, function)
        numbers = range(len(values), len(values) + len(step.results))
        values.extend(step.results)
        known.update(zip(step.results, numbers, strict=True))
        if not known.keys() >= set(step.operands):
            raise ProgramError(f"a {step.name} of a token, which only a send or a recv takes", location=op.location)
        operands = [known[value] for value in step.operands]
        steps.append(Step(op, step.name, operands, numbers, step.callee))
    return MeshLine(steps, values)


def _hand_on(token: ir.Value | None, step: Step[ir.Value], function: ir.Operation) -> ir.Value:
    """Removes the tokens from `step` and returns the one that it makes. `token` is the one that it must take."""
    *results, made = step.results
    if step.name == "stablehlo.create_token":
        if token is not None:
            chains = sum(op.name == step.name for op in operations(body_of(function)))
            message = f"a mesh function has {chains} token chains, expected one"
            raise ProgramError(message, location=function.location)
    else:
        count = len(results) + len(step.operands) - 1
        if count != 1:
            raise ProgramError(f"a {step.name} of {count} values, expected one", location=step.op.location)
        if step.operands.pop() != token:
            message = f"a {step.name} does not take the token of what is before it"
            raise ProgramError(message, location=step.op.location)
    step.results = results
    return made


def location_of_tasks(module: ir.Module, mesh: int) -> ir.Location | None:
    """Returns the location of the first task that `mesh` runs, which is in the user's loop; None where it runs none."""
    calls = operations(body_of(mesh_functions(module)[mesh]))
    return next((op.location for op in calls if op.name == "func.call" and at.STAGE in op.attributes), None)


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
