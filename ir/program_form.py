"""Checks the attributes of a program module, one by one, against docs/ir.md (section 6).

`read_line` reads and checks the attributes of calls, sends and receives.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import functions, name_of, terminator
from jaxpp.ir.shardings import MeshAxes

Entry = Mapping[str, ir.Attribute]


class Border(NamedTuple):
    """An argument or result of a mesh function: argument or result `number` of the step, or a block of it.

    block: (index, count) of a block of a stack; None for a value that each of its meshes has whole.
    """

    number: int
    type: ir.Type
    donated: bool
    block: tuple[int, int] | None
    sharding: ir.Attribute | None
    memory: ir.Attribute | None


def check_form(module: ir.Module, meshes: Sequence[ir.Operation]) -> None:
    """Checks the attributes of the module and of its functions; `meshes` are the mesh functions.

    Raises ProgramError for an attribute that is wrong or missing, with its location and the expected value.
    """
    said = at.integer(module.operation, at.MESHES)
    if said != len(meshes):
        raise ProgramError(f"{at.MESHES} is {said}, the module has {len(meshes)} mesh functions")
    for op in module.body.operations:
        if op.operation.name not in ("func.func", "sdy.mesh"):
            raise ProgramError(f"a {op.operation.name} outside of the functions", location=op.location)
    _check_sizes(module, len(meshes))
    for function in functions(module).values():
        _check_function(function)
    for mesh in meshes:
        _check_results(mesh)


def _check_results(mesh: ir.Operation) -> None:
    end = terminator(mesh.regions[0].blocks[0])
    for number, value in enumerate(end.operands):
        if not isinstance(value.type, ir.RankedTensorType):
            raise ProgramError(f"result {number} is of type {value.type}, expected a tensor", location=end.location)


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


def read_borders(meshes: Sequence[ir.Operation], kind: str, axes: Sequence[MeshAxes]) -> list[list[Border]]:
    """Reads the arguments, or the results (`kind`), of each mesh function. `axes` are those of each mesh.

    Those that meshes of different sizes share are replicated: a `jax.Array` allows nothing else. Raises ProgramError
    where the borders do not make up the arguments or results of one step.
    """
    table = at.argument_attributes if kind == "argument" else at.result_attributes
    values: dict[int, dict[int, Border]] = {}
    borders: list[list[Border]] = []
    for mesh, function in enumerate(meshes):
        function_name = name_of(function)
        signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        types = signature.inputs if kind == "argument" else signature.results
        borders.append([])
        for position, (type_, entry) in enumerate(zip(types, table(function), strict=True)):
            what = f"{kind} {position} of @{function_name}"
            border = _read_border(function, what, kind, type_, entry)
            value = values.setdefault(border.number, {})
            if mesh in value:
                said = at.found(entry, at.NUMBER)
                raise ProgramError(f"@{function_name} has a second {kind} with {said}", location=function.location)
            value[mesh] = border
            borders[-1].append(border)
    for number, value in values.items():
        _check_value(f"{kind} {number} of the step", value, meshes)
    missing = next((number for number in range(len(values)) if number not in values), None)
    if kind == "result" and missing is not None:
        raise ProgramError(f"no mesh returns result {missing} of the step")
    whole = {number for number, value in values.items() if len({axes[mesh] for mesh in value}) > 1}
    return [[each._replace(sharding=None) if each.number in whole else each for each in own] for own in borders]


def _read_border(function: ir.Operation, what: str, kind: str, type_: ir.Type, entry: Entry) -> Border:
    match at.plain(entry.get(at.NUMBER)):
        case int(number) if number >= 0:
            block = None
        case [number, index, count] if number >= 0 and 0 <= index < count:
            block = index, count
        case _:
            expected = f"the number of the step's {kind}, or array<i64: number, block, blocks>"
            message = f"{what} has {at.found(entry, at.NUMBER)}, expected {expected}"
            raise ProgramError(message, location=function.location)
    donated = at.DONOR in entry or at.ALIAS in entry
    return Border(number, type_, donated, block, entry.get(at.SHARDING), entry.get(at.MEMORY))


def _check_value(what: str, value: Mapping[int, Border], meshes: Sequence[ir.Operation]) -> None:
    """Checks that the meshes agree about a value of the step, and have all its blocks. value: its border on each."""
    first, expected = next(iter(value.items()))
    for mesh, border in value.items():
        where = meshes[mesh].location
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
            raise ProgramError(message, location=meshes[next(iter(blocks))].location)
