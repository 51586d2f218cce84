"""Functions of a module: finding them, making them, calling them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cmp_to_key
from graphlib import CycleError, TopologicalSorter
from io import BytesIO

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.passmanager import PassManager

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.ops import COMMUTATIVE, traits, traits_of
from jaxpp.ir.values import closure, defining_op


def functions(module: ir.Module) -> dict[str, ir.Operation]:
    """Returns the functions of `module` by name, in their order."""
    return {name_of(op): op.operation for op in module.body.operations if op.operation.name == "func.func"}


def name_of(function: ir.Operation | ir.OpView) -> str:
    """Returns the symbol name of a func.func, or an sdy.mesh."""
    return ir.StringAttr(function.attributes["sym_name"]).value


def main_of(module: ir.Module) -> ir.Operation:
    """Returns the function `@main`. Raises PassError when it is missing or private, or has not one block."""
    main = functions(module).get("main")
    if main is None:
        raise PassError("the module has no function @main", hint="give a module as JAX lowers it")
    if str(main.attributes.get("sym_visibility")) == '"private"':
        raise PassError("@main is private", location=main.location, hint="give a module as JAX lowers it")
    if len(main.regions[0].blocks) != 1:
        raise PassError(
            f"@main has {len(main.regions[0].blocks)} blocks, expected one",
            location=main.location,
            hint="give a module as JAX lowers it",
        )
    return main


def body_of(function: ir.Operation) -> ir.Block:
    """Returns the single block of a function, or of another operation with one region."""
    return function.regions[0].blocks[0]


def loop_body(loop: ir.Operation) -> ir.Block:
    """Returns the block that a `stablehlo.while` runs in each trip."""
    return loop.regions[1].blocks[0]


def operations(block: ir.Block) -> list[ir.Operation]:
    """Returns the operations of a block, as a list that survives edits."""
    first = ir.InsertionPoint.at_block_begin(block).ref_operation
    return [] if first is None else [first.operation, *following(first.operation)]


def following(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the operations after `op` in its block, in a third of the time that `block.operations` takes for each."""
    after = ir.InsertionPoint.after
    while (behind := after(op).ref_operation) is not None:
        op = behind.operation
        yield op


def _compare(one: ir.Operation, other: ir.Operation) -> int:
    return other.is_before_in_block(one) - one.is_before_in_block(other)


program_order = cmp_to_key(_compare)
"""A key that sorts operations of one block in program order."""


def terminator(block: ir.Block) -> ir.Operation:
    """Returns the last operation of a block, without the walk over all others that `block.operations[-1]` takes."""
    last = ir.InsertionPoint.at_block_terminator(block).ref_operation
    assert last is not None  # MLIR raises ValueError for a block without a terminator
    return last.operation


def callee(call: ir.Operation) -> str:
    """Returns the name of the function that a func.call calls."""
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


CONDITIONALS = ("stablehlo.case", "stablehlo.if")
"""The operations that run one of their regions."""


def blocks_of(op: ir.Operation) -> list[ir.Block]:
    """Returns all blocks of an operation's regions: the test and the body of a loop, the branches of a conditional."""
    return [block for region in op.regions for block in region.blocks]


def nested(op: ir.Operation) -> Iterator[ir.Operation]:
    """Returns an iterator over all operations inside the regions of `op`, outermost first; it survives edits."""
    if not len(op.regions):
        return iter(())
    found: list[ir.Operation] = []
    add, advance = found.append, ir.WalkResult.ADVANCE

    def visit(inner: ir.Operation) -> ir.WalkResult:
        add(inner)
        return advance

    op.walk(visit, ir.WalkOrder.PRE_ORDER)  # three times as fast as Python's loops over regions and blocks
    return iter(found[1:])


def nested_by_name(op: ir.Operation) -> defaultdict[str, list[ir.Operation]]:
    """Returns all operations inside the regions of `op` by name, outermost first: for callers that need a few names."""
    found: defaultdict[str, list[ir.Operation]] = defaultdict(list)
    for inner in nested(op):
        found[inner.name].append(inner)
    return found


def reachable(name: str, by_name: Mapping[str, ir.Operation]) -> list[str]:
    """Returns the functions to which function `name` refers, directly or not, by calls or otherwise; itself first."""

    def referred(each: str) -> list[str]:
        return [symbol for op in nested(by_name[each]) for symbol in symbols_in(op) if symbol in by_name]

    return list(closure([name], referred))


def clone_alone(module: ir.Module, name: str, into: ir.Module) -> ir.Operation:
    """Clones a function, as the public `@main` of an empty module, with the functions to which it refers and meshes."""
    by_name, at_end = functions(module), ir.InsertionPoint(into.body)
    for op in module.body.operations:
        if op.operation.name != "func.func":
            op.operation.clone(at_end)
    main, *_ = [by_name[needed].clone(at_end).operation for needed in reachable(name, by_name)]
    main.attributes["sym_name"] = ir.StringAttr.get("main")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    return main


def symbols_in(op: ir.Operation) -> list[str]:
    """Returns the names to which the attributes of `op` refer, a call's callee among them."""
    if not may_refer(op.name):
        return []
    return [symbol for attribute in op.attributes.values() for symbol in _symbols(attribute)]


def may_refer(name: str) -> bool:
    """Whether an operation of this name may refer to a function. jaxlib can't read all attributes of the others."""
    return not traits_of(name).light


def calls_in(function: ir.Operation) -> list[ir.Operation]:
    """Returns the calls in a function, also those in regions."""
    return [op for op in nested(function) if op.name == "func.call"]


def recursive(calls: Mapping[str, Iterable[str]]) -> str | None:
    """Returns the name of a function that calls itself, directly or not; None if no function does.

    calls: for each function the functions that it calls.
    """
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        return error.args[1][0]
    return None


def _symbols(attribute: ir.Attribute) -> list[str]:
    if isinstance(attribute, ir.FlatSymbolRefAttr):
        return [attribute.value]
    if isinstance(attribute, ir.ArrayAttr):
        return [name for entry in attribute for name in _symbols(entry)]
    return []


def has_side_effect(op: ir.Operation) -> bool:
    """Whether running `op` once differs from running it twice: a callback, `debug.print`, a stateful generator."""
    return _declares_effect(op) or (len(op.regions) > 0 and any(map(_declares_effect, nested(op))))


def _declares_effect(op: ir.Operation) -> bool:
    known = traits(op)
    if known.light:
        return False
    flag = op.attributes.get("has_side_effect")
    return known.effect or (flag is not None and isinstance(flag, ir.BoolAttr) and flag.value)


def is_product(op: ir.Operation) -> bool:
    """Whether `op` is or contains a matrix product, a convolution, or an operation that may take as long."""
    return traits(op).product or any(traits(each).product for each in nested(op))


def reducer(op: ir.Operation) -> str | None:
    """Returns the name of the operation by which a reduce or a scatter combines two elements.

    The operation takes both elements in their order, or in any order if it is commutative. Returns None where the body
    does more.
    """
    body = body_of(op)
    ops, arguments = operations(body), list(body.arguments)
    if len(ops) != 2 or len(arguments) != 2 or list(ops[1].operands) != list(ops[0].results):
        return None
    operands = list(ops[0].operands)
    is_known = operands == arguments or (ops[0].name in COMMUTATIVE and operands == arguments[::-1])
    return ops[0].name if is_known else None


def operands_with_captures(op: ir.Operation) -> list[ir.Value]:
    """Returns the operands of `op` and the values from outside that its regions use, each once, in order."""
    values = list(op.operands)
    if not len(op.regions):
        return values if len(values) < 2 else list(dict.fromkeys(values))
    inside: set[ir.Value] = set()
    _read_regions(op, values, inside)
    return [value for value in dict.fromkeys(values) if value not in inside]


def values_behind(values: Iterable[ir.Value], block: ir.Block | None = None) -> dict[ir.Value, None]:
    """Returns `values` and all values on which they depend, through operations of `block` only, if it is given."""

    def read(value: ir.Value) -> list[ir.Value]:
        op = defining_op(value)
        return operands_with_captures(op) if op is not None and (block is None or op.block == block) else []

    return closure(values, read)


def _read_regions(op: ir.Operation, used: list[ir.Value], made: set[ir.Value]) -> None:
    """Adds the values that the regions of `op` use to `used`, and those that they make to `made`."""
    for block in blocks_of(op):
        made.update(block.arguments)
        for inner in operations(block):
            used.extend(inner.operands)
            made.update(inner.results)
            if len(inner.regions):
                _read_regions(inner, used, made)


def create(
    module: ir.Module,
    name: str,
    inputs: Sequence[ir.Type],
    results: Sequence[ir.Type],
    attributes: Mapping[str, ir.Attribute],
    *,
    visibility: str = "private",
    before: ir.Operation | None = None,
) -> ir.Operation:
    """Makes a function with an empty entry block, at the end of the module or before `before`.

    Raises PassError when the module already has a function of that name; only a function that is no task can have it.
    """
    if name in ir.SymbolTable(module.operation):
        raise PassError(f"the module already has a function @{name}", hint="rename it: jaxpp needs the name")
    function = ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(list(inputs), list(results))),
            "sym_visibility": ir.StringAttr.get(visibility),
            **attributes,
        },
        regions=1,
        ip=ir.InsertionPoint(before) if before is not None else ir.InsertionPoint(module.body),
        loc=ir.Location.unknown(),
    )
    ir.Block.create_at_start(function.regions[0], list(inputs))
    return function


def set_results(function: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Ends the body of a new function with a return of these values."""
    func.return_(values, ip=ir.InsertionPoint(body_of(function)), loc=ir.Location.unknown())


def call(
    function: ir.Operation,
    operands: Sequence[ir.Value],
    attributes: Mapping[str, ir.Attribute],
    ip: ir.InsertionPoint,
    location: ir.Location,
) -> ir.Operation:
    """Makes a func.call of `function` at `ip`."""
    return ir.Operation.create(
        "func.call",
        results=ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results,
        operands=list(operands),
        attributes={"callee": ir.FlatSymbolRefAttr.get(name_of(function)), **attributes},
        ip=ip,
        loc=location,
    )


def bytecode_of(function: ir.Operation) -> bytes:
    """Returns bytes that are equal for two functions that differ only in their name, stage and source locations.

    The bytes are the bytecode of a copy without locations. Bytecode also tells the order of each value's uses, which in
    the copy is program order. C++ writes it in a fraction of the time in which `ir/numbering.py` would read the
    function. Equal bytes mean equal functions. Equal functions whose operations are in another order have other bytes.
    """
    copy = function.clone(ip=False).operation
    copy.attributes["sym_name"] = ir.StringAttr.get("")
    if at.STAGE in copy.attributes:
        del copy.attributes[at.STAGE]
    strip = PassManager.parse("func.func(strip-debuginfo)")
    strip.enable_verifier(False)
    strip.run(copy)
    return bytecode(copy)


def bytecode(op: ir.Operation) -> bytes:
    """Returns the MLIR bytecode of an operation."""
    buffer = BytesIO()
    op.write_bytecode(buffer)
    return buffer.getvalue()


def kind_and_stage(function: ir.Operation) -> tuple[str, int]:
    """Returns the `jaxpp.kind` and `jaxpp.stage` of a task function; stage -1 when it has none."""
    kind = function.attributes.get(at.KIND)
    stage = at.integer(function, at.STAGE)
    return (ir.StringAttr(kind).value if kind is not None else "", -1 if stage is None else stage)
