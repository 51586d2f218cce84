"""Checks the attributes of a program module, one by one, against docs/ir.md (section 6).

`read_lines` checks the attributes of calls, sends and receives.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import functions, name_of
from jaxpp.ir.mesh_lines import Border, MeshLine
from jaxpp.ir.shardings import MeshAxes

Entry = Mapping[str, ir.Attribute]


def check_form(module: ir.Module, meshes: int) -> None:
    """Checks the attributes of a module with so many mesh functions, and of all its functions.

    Raises ProgramError for an attribute that is wrong or missing, with its location and the expected value.
    """
    said = at.integer(module.operation, at.MESHES)
    if said != meshes:
        raise ProgramError(f"{at.MESHES} is {said}, the module has {meshes} mesh functions")
    for op in module.body.operations:
        if op.operation.name not in ("func.func", "sdy.mesh"):
            raise ProgramError(f"a {op.operation.name} outside of the functions", location=op.location)
    _check_sizes(module, meshes)
    for function in functions(module).values():
        _check_function(function)


def _check_sizes(module: ir.Module, meshes: int) -> None:
    partitions = module.operation.attributes.get(at.PARTITIONS)
    if partitions is not None and not at.is_number(partitions, least=1):
        raise ProgramError(f"{at.PARTITIONS} is {partitions}, expected the number of devices of a mesh")
    sizes = module.operation.attributes.get(at.MESH_SIZES)
    if sizes is None:
        return
    axes = at.plain(sizes)
    count = len(axes) if isinstance(sizes, ir.ArrayAttr) else 0
    if count != meshes:
        raise ProgramError(f"{at.MESH_SIZES} is a list of {count}, the module has {meshes} meshes")
    for mesh, each in enumerate(axes):
        fits = isinstance(each, dict) and each and each.keys() == axes[0].keys()
        if not fits or not all(isinstance(size, int) and size > 0 for size in each.values()):
            raise ProgramError(
                f"{at.MESH_SIZES} says {ir.ArrayAttr(sizes)[mesh]} of mesh {mesh}, expected the size of every axis"
            )


def _is_flag(said: ir.Attribute) -> bool:
    return isinstance(said, ir.BoolAttr | ir.UnitAttr)


def _check_function(function: ir.Operation) -> None:
    """Checks the kind, the stage and the parts of a function, and the arguments whose buffers it takes over."""
    for name, expected, holds in (
        (at.KIND, "a string", at.is_text),
        (at.STAGE, "the number of a stage", at.is_number),
    ):
        _check(function, f"@{name_of(function)}", function.attributes, name, expected, holds)
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    inputs, outputs = types.inputs, types.results  # each look at them makes a list
    check_parts(function)
    arguments = at.argument_attributes(function) if len(function.regions[0].blocks) else []
    taken: dict[int, int] = {}
    count = len(outputs)
    for number, entry in enumerate(arguments):
        if at.DONOR not in entry and at.ALIAS not in entry:
            continue
        what = f"argument {number} of @{name_of(function)}"
        _check(function, what, entry, at.DONOR, "true or false", _is_flag)
        if at.ALIAS not in entry:
            continue
        _check(
            function, what, entry, at.ALIAS, f"the number of one of {count} results", partial(at.is_number, below=count)
        )
        result = ir.IntegerAttr(entry[at.ALIAS]).value
        if result in taken:
            message = f"{what} becomes result {result}, and so does argument {taken[result]}"
            raise ProgramError(message, location=function.location)
        taken[result] = number
        if inputs[number] != outputs[result]:
            found = f"{inputs[number]}, {outputs[result]}"
            message = f"{what} becomes result {result}, which is of another type: {found}"
            raise ProgramError(message, location=function.location)


def check_parts(function: ir.Operation) -> None:
    """Checks that each argument and result of a fused function names its task, and that other functions name none.

    Raises ProgramError.
    """
    arguments = at.argument_attributes(function) if len(function.regions[0].blocks) else []
    results = at.result_attributes(function)
    kind = function.attributes.get(at.KIND)
    count = ir.StringAttr(kind).value.count("+") + 1 if kind is not None else 1
    for border, entries in (("argument", arguments), ("result", results)):
        for number, entry in enumerate(entries):
            if (at.TASK in entry) != (count > 1) or (count > 1 and not at.is_number(entry[at.TASK], below=count)):
                what = f"{border} {number} of @{name_of(function)}, which is {count} tasks"
                raise ProgramError(f"{what}, has {at.found(entry, at.TASK)}", location=function.location)


def _check(
    op: ir.Operation,
    what: str,
    entry: Entry | ir.OpAttributeMap,
    name: str,
    expected: str,
    holds: Callable[[ir.Attribute], bool],
) -> None:
    """Raises ProgramError where `entry` has an attribute of this name for which `holds` is false."""
    if name in entry and not holds(entry[name]):
        raise ProgramError(f"{what}: {name} is {entry[name]}, expected {expected}", location=op.location)


def check_borders(lines: Sequence[MeshLine], kind: str, axes: Sequence[MeshAxes]) -> list[list[Border]]:
    """Checks the arguments, or the results (`kind`), of all meshes, and returns them. `axes` has the axes of each mesh.

    Values that meshes of different sizes share are replicated: a `jax.Array` allows nothing else. Raises ProgramError
    where the borders do not make up the arguments or results of one step.
    """
    borders = [line.arguments if kind == "argument" else line.results for line in lines]
    values: dict[int, dict[int, Border]] = {}
    for line, own in zip(lines, borders, strict=True):
        for border in own:
            value = values.setdefault(border.number, {})
            if line.mesh in value:
                message = f"@{line.name} has a second {kind} with {at.NUMBER} = {border.numbers}"
                raise ProgramError(message, location=line.locations[-1])
            value[line.mesh] = border
    for number, value in values.items():
        _check_value(f"{kind} {number} of the step", value, lines)
    missing = next((number for number in range(len(values)) if number not in values), None)
    if kind == "result" and missing is not None:
        raise ProgramError(f"no mesh returns result {missing} of the step")
    whole = {number for number, value in values.items() if len({axes[mesh] for mesh in value}) > 1}
    return [[each._replace(sharding=None) if each.number in whole else each for each in own] for own in borders]


def _check_value(what: str, value: Mapping[int, Border], lines: Sequence[MeshLine]) -> None:
    """Checks that the meshes agree about a value of the step, and have all its blocks. value: its border on each."""
    first, expected = next(iter(value.items()))
    for mesh, border in value.items():
        where = lines[mesh].locations[-1]
        if border.type != expected.type:
            found = f"of type {border.type} on mesh {mesh}, {expected.type} on mesh {first}"
            raise ProgramError(f"{what} is {found}", location=where)
        if border.donated != expected.donated:
            giver, keeper = (first, mesh) if expected.donated else (mesh, first)
            raise ProgramError(f"{what} is donated on mesh {giver}, kept on mesh {keeper}", location=where)
    blocks = {mesh: border.block for mesh, border in value.items() if border.block is not None}
    if blocks:
        found, count = sorted(map(list, blocks.values())), len(value)
        if found != [[number, count] for number in range(count)]:
            message = f"{what} has the blocks {found}, expected one of {count} on each of its meshes"
            raise ProgramError(message, location=lines[next(iter(blocks))].locations[-1])
