"""Checks of all attributes of a program module, one by one: that they say what docs/ir.md (section 6) promises."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, callee, functions, name_of, operations, terminator
from jaxpp.hlo_passes.ir.program import mesh_functions

Entry = Mapping[str, ir.Attribute]


def check_form(module: ir.Module) -> None:
    """Check the module's attributes, those of its functions, of their arguments and results, and of their calls.

    Raises PassError that says what was found where, and what was expected.
    """
    meshes = mesh_functions(module)
    said = at.integer(module.operation, at.MESHES)
    if said != len(meshes):
        raise PassError(f"{at.MESHES} is {said}, the module has {len(meshes)} mesh functions")
    for op in module.body.operations:
        if op.operation.name not in ("func.func", "sdy.mesh"):
            raise PassError(f"a {op.operation.name} outside of the functions", location=op.location)
    _check_sizes(module, len(meshes))
    for function in functions(module).values():
        _check_function(function)
    _check_borders(meshes)
    for mesh, function in enumerate(meshes):
        _check_tokens(function)
        for op in operations(body_of(function)):
            if op.name == "func.call":
                _check_call(op, mesh)


def _check_sizes(module: ir.Module, meshes: int) -> None:
    partitions = module.operation.attributes.get("mhlo.num_partitions")
    if partitions is not None and not at.is_number(partitions, least=1):
        raise PassError(f"mhlo.num_partitions is {partitions}, expected the number of devices of a mesh")
    sizes = module.operation.attributes.get(at.MESH_SIZES)
    if sizes is None:
        return
    entries = list(sizes) if isinstance(sizes, ir.ArrayAttr) else []
    axes = [at.dictionary(entry) if isinstance(entry, ir.DictAttr) else {} for entry in entries]
    if len(axes) != meshes:
        raise PassError(f"{at.MESH_SIZES} is a list of {len(axes)}, the module has {meshes} meshes")
    for mesh, each in enumerate(axes):
        if each.keys() != axes[0].keys() or not each or not all(at.is_number(size, least=1) for size in each.values()):
            raise PassError(f"{at.MESH_SIZES} says {entries[mesh]} of mesh {mesh}, expected the size of every axis")


def _is_flag(said: ir.Attribute) -> bool:
    return isinstance(said, ir.BoolAttr | ir.UnitAttr)


def _check_function(function: ir.Operation) -> None:
    """A function that is called: its kind, its stage, and the arguments whose buffers it takes over."""
    for name, expected, holds in (
        (at.KIND, "a string", at.is_text),
        (at.STAGE, "the number of a stage", at.is_number),
    ):
        _check(function, f"@{name_of(function)}", function.attributes, name, expected, holds)
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    _check_parts(function)
    taken: dict[int, int] = {}
    for number, entry in enumerate(_arguments(function)):
        what = f"argument {number} of @{name_of(function)}"
        _check(function, what, entry, at.DONOR, "true or false", _is_flag)
        if at.ALIAS not in entry:
            continue
        count = len(types.results)
        _check(
            function, what, entry, at.ALIAS, f"the number of one of {count} results", partial(at.is_number, below=count)
        )
        result = ir.IntegerAttr(entry[at.ALIAS]).value
        if result in taken:
            message = f"{what} becomes result {result}, and so does argument {taken[result]}"
            raise PassError(message, location=function.location)
        taken[result] = number
        if types.inputs[number] != types.results[result]:
            message = f"{what} becomes result {result}, which is of another type"
            raise PassError(f"{message}: {types.inputs[number]}, {types.results[result]}", location=function.location)


def _check_parts(function: ir.Operation) -> None:
    """In a function that is several tasks each argument and result says to which one it belongs; else none does."""
    kind = function.attributes.get(at.KIND)
    count = ir.StringAttr(kind).value.count("+") + 1 if kind is not None else 1
    for border, entries in (("argument", _arguments(function)), ("result", at.result_attributes(function))):
        for number, entry in enumerate(entries):
            if (at.PART in entry) != (count > 1) or (count > 1 and not at.is_number(entry[at.PART], below=count)):
                what = f"{border} {number} of @{name_of(function)}, which is {count} tasks"
                raise PassError(f"{what}, has {at.found(entry, at.PART)}", location=function.location)


def _check(
    op: ir.Operation,
    what: str,
    entry: Entry | ir.OpAttributeMap,
    name: str,
    expected: str,
    holds: Callable[[ir.Attribute], bool],
) -> None:
    """Raise PassError where `entry` has an attribute of this name for which `holds` is false."""
    if name in entry and not holds(entry[name]):
        raise PassError(f"{what}: {name} is {entry[name]}, expected {expected}", location=op.location)


def _arguments(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    return at.argument_attributes(function) if len(function.regions[0].blocks) else []


@dataclass
class _Value:
    """An argument or a result of the step, as the meshes have it."""

    types: dict[int, ir.Type] = field(default_factory=dict[int, ir.Type])
    donated: dict[int, bool] = field(default_factory=dict[int, bool])
    blocks: dict[int, ir.Attribute] = field(default_factory=dict[int, ir.Attribute])


def _check_borders(meshes: Sequence[ir.Operation]) -> None:
    """The arguments and results of the mesh functions are those of the step."""
    for kind, name, table in (
        ("argument", at.ARGUMENT, at.argument_attributes),
        ("result", at.RESULT, at.result_attributes),
    ):
        values: dict[int, _Value] = {}
        for mesh, function in enumerate(meshes):
            signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
            types = signature.inputs if kind == "argument" else signature.results
            for number, (type_, entry) in enumerate(zip(types, table(function), strict=True)):
                what = f"{kind} {number} of @{name_of(function)}"
                if name not in entry:
                    raise PassError(f"{what} has no {name}", location=function.location)
                _check(function, what, entry, name, f"the number of the step's {kind}", at.is_number)
                value = values.setdefault(ir.IntegerAttr(entry[name]).value, _Value())
                if mesh in value.types:
                    said = f"{name} = {entry[name]}"
                    raise PassError(f"@{name_of(function)} has a second {kind} with {said}", location=function.location)
                value.types[mesh] = type_
                value.donated[mesh] = at.DONOR in entry
                if at.BLOCK in entry:
                    _check(function, what, entry, at.BLOCK, "array<i64: number, count>", _is_block)
                    value.blocks[mesh] = entry[at.BLOCK]
        for number, value in values.items():
            _check_value(f"{kind} {number} of the step", value, meshes)
        missing = next((number for number in range(len(values)) if number not in values), None)
        if kind == "result" and missing is not None:
            raise PassError(f"no mesh returns result {missing} of the step")


def _are_some(said: ir.Attribute) -> bool:
    return at.are_numbers(said) and len(ir.DenseI64ArrayAttr(said)) > 0


def _is_block(said: ir.Attribute) -> bool:
    return isinstance(said, ir.DenseI64ArrayAttr) and len(said) == 2 and 0 <= said[0] < said[1]


def _check_value(what: str, value: _Value, meshes: Sequence[ir.Operation]) -> None:
    """All meshes agree about it, and its blocks are all there."""
    first = next(iter(value.types))
    for mesh, type_ in value.types.items():
        where = meshes[mesh].location
        if type_ != value.types[first]:
            found = f"of type {type_} on mesh {mesh}, {value.types[first]} on mesh {first}"
            raise PassError(f"{what} is {found}", location=where)
        if value.donated[mesh] != value.donated[first]:
            giver, keeper = (mesh, first) if value.donated[mesh] else (first, mesh)
            raise PassError(f"{what} is donated on mesh {giver}, kept on mesh {keeper}", location=where)
    if value.blocks:
        found = sorted((list(ir.DenseI64ArrayAttr(each)) for each in value.blocks.values()), key=tuple)
        count = len(value.types)
        if found != [[number, count] for number in range(count)]:
            where = meshes[next(iter(value.blocks))].location
            message = f"{what} has the blocks {found}, expected one of {count} on each of its meshes"
            raise PassError(message, location=where)


def _check_tokens(function: ir.Operation) -> None:
    """One chain: every send and recv takes the token of the one before it."""
    token: ir.Value | None = None
    for op in operations(body_of(function)):
        if op.name in ("stablehlo.send", "stablehlo.recv"):
            if token is None or op.operands[len(op.operands) - 1] != token:
                raise PassError(f"a {op.name} does not take the token of what is before it", location=op.location)
            token = op.results[len(op.results) - 1]
        elif op.name == "stablehlo.create_token":
            token = op.results[0]
    end = terminator(body_of(function))
    for number, value in enumerate(end.operands):
        if not isinstance(value.type, ir.RankedTensorType):
            raise PassError(f"result {number} is of type {value.type}, expected a tensor", location=end.location)


def _check_call(op: ir.Operation, mesh: int) -> None:
    what = f"the call of @{callee(op)}"
    expected = f"{mesh}, the mesh of its function"
    _check(op, what, op.attributes, at.MESH, expected, partial(at.is_number, least=mesh, below=mesh + 1))
    pairs = ((at.STAGE, at.MICROBATCH), (at.STAGES, at.MICROBATCHES))
    for name in pairs[0]:
        _check(op, what, op.attributes, name, "a number from 0 on", at.is_number)
    for name in pairs[1]:
        _check(op, what, op.attributes, name, "numbers from 0 on, array<i64: ...>", _are_some)
    given = Counter(name for pair in pairs for name in pair if name in op.attributes)
    if given and set(given) not in [set(pair) for pair in pairs]:
        expected = f"{at.STAGE} and {at.MICROBATCH}, or {at.STAGES} and {at.MICROBATCHES}"
        raise PassError(f"{what} has {' and '.join(given)}, expected {expected}", location=op.location)
