"""Sums of stacks over the microbatches: one sum for each row, so that the stage that makes the row has it."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import terminator
from jaxpp.hlo_passes.ir.values import defining_op, is_zero
from jaxpp.hlo_passes.loop.forward_rows import concatenation, rows_of

_ELEMENTWISE = frozenset(f"stablehlo.{name}" for name in ("add convert divide multiply negate subtract".split()))


@dataclass(frozen=True)
class _Sum:
    """A carried value to which each iteration adds a stack of `rows` along `dimension`, as many in each."""

    position: int
    add: ir.Operation
    rows: list[ir.Value]
    dimension: int


def split_row_accumulators(loop: ir.Operation) -> None:
    """Rebuild `loop` with a sum for each row of the stacks that it adds up; the sums are put together after it."""
    sums = [found for position in range(len(loop.operands)) if (found := _sum(loop, position)) is not None]
    if sums:
        _rebuild(loop, sums)


def _sum(loop: ir.Operation, position: int) -> _Sum | None:
    body = loop.regions[1].blocks[0]
    argument = body.arguments[position]
    add = _producer(_constrained(terminator(body).operands[position]), body)
    if add is None or add.name != "stablehlo.add" or len(list(argument.uses)) != 1 or argument not in add.operands:
        return None
    stack = add.operands[1 if add.operands[0] == argument else 0]
    cut = _cut(stack, body)
    if cut is None:
        return None
    return _Sum(position, add, _rows(stack, body, cut, add), cut[0])


Cut = tuple[int, int]
"""(dimension, number of rows)."""


def _cut(value: ir.Value, body: ir.Block) -> Cut | None:
    """How `value` is a concatenation of equal rows or a sum of padded ones, or elementwise, or reshaped, of such."""
    op = _producer(value, body)
    if op is None:
        return None
    padded = _padded(value, body)
    if padded is not None:
        return _tiles(padded, ir.RankedTensorType(value.type).shape)
    if op.name == "stablehlo.concatenate":
        dimension = ir.IntegerAttr(op.attributes["dimension"]).value
        equal = len({ir.RankedTensorType(operand.type).shape[dimension] for operand in op.operands}) == 1
        return (dimension, len(op.operands)) if equal else None
    if op.name == "sdy.sharding_constraint":
        return _cut(op.operands[0], body)
    if op.name == "stablehlo.reshape":
        found, shape = _cut(op.operands[0], body), ir.RankedTensorType(value.type).shape
        # Row-major: what is cut along the first dimension stays in one piece.
        return found if found and found[0] == 0 and shape and shape[0] % found[1] == 0 else None
    if op.name not in _ELEMENTWISE:
        return None
    cuts = {_cut(operand, body) for operand in op.operands if _splat(operand) is None}
    return cuts.pop() if len(cuts) == 1 else None


def _rows(value: ir.Value, body: ir.Block, cut: Cut, before: ir.Operation) -> list[ir.Value]:
    """The rows of `value`, which `_cut` cuts so."""
    op = _producer(value, body)
    assert op is not None
    if op.name == "stablehlo.concatenate":
        return list(op.operands)
    if op.name == "sdy.sharding_constraint":
        return _rows(op.operands[0], body, cut, before)
    ip = ir.InsertionPoint(before)
    padded = _padded(value, body)
    if padded is not None:
        return _sums([(offset, row) for _, offset, row in padded], ip)
    each: list[Sequence[ir.Value]] = []
    for operand in op.operands:
        scalar = _splat(operand)
        if scalar is None:
            each.append(_rows(operand, body, cut, before))
        else:
            each.append([_broadcast(scalar, _row_type(operand.type, cut), ip)] * cut[1])
    attributes = {name: op.attributes[name] for name in op.attributes if name != at.SHARDING}
    type_ = _row_type(value.type, cut)
    return [
        ir.Operation.create(
            op.name, results=[type_], operands=list(operands), attributes=attributes, ip=ip, loc=op.location
        ).results[0]
        for operands in zip(*each, strict=True)
    ]


Padded = list[tuple[int, int, ir.Value]]
"""(dimension, offset, what is there) of each of the padded values that are added up."""


def _padded(value: ir.Value, body: ir.Block) -> Padded | None:
    """The summands of a sum of values padded with zeros: the gradient of `w[0]`, `w[1]`... of one stack."""
    work, found = [value], Padded()
    while work:
        op = _producer(_constrained(work.pop()), body)
        if op is not None and op.name == "stablehlo.add":
            work += op.operands
            continue
        if op is None or op.name != "stablehlo.pad" or not is_zero(op.operands[1]):
            return None
        low, high, interior = (
            list(ir.DenseI64ArrayAttr(op.attributes[name]))
            for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        dimensions = [d for d, edges in enumerate(zip(low, high, strict=True)) if any(edges)]
        if len(dimensions) != 1 or any(interior) or min(low + high) < 0:
            return None
        found.append((dimensions[0], low[dimensions[0]], op.operands[0]))
    return found


def _tiles(padded: Padded, shape: Sequence[int]) -> Cut | None:
    """The cut whose rows are where values are padded to; None if they don't fill `shape` evenly."""
    places = {(dimension, ir.RankedTensorType(row.type).shape[dimension]) for dimension, _, row in padded}
    if len(places) != 1:
        return None
    dimension, size = places.pop()
    tiled = {offset for _, offset, _ in padded} == set(range(0, shape[dimension], size))
    return (dimension, shape[dimension] // size) if tiled and shape[dimension] % size == 0 else None


def _sums(rows: Sequence[tuple[int, ir.Value]], ip: ir.InsertionPoint) -> list[ir.Value]:
    """The rows in the order of their offsets; those of one offset are added up."""
    sums: dict[int, ir.Value] = {}
    for offset, row in rows:
        if offset in sums:
            made = ir.Operation.create(
                "stablehlo.add", results=[row.type], operands=[sums[offset], row], ip=ip, loc=row.location
            )
            row = made.results[0]
        sums[offset] = row
    return [sums[offset] for offset in sorted(sums)]


def _rebuild(loop: ir.Operation, sums: Sequence[_Sum]) -> None:
    split = {found.position for found in sums}
    kept = [position for position in range(len(loop.operands)) if position not in split]
    operands = [loop.operands[position] for position in kept]
    blocks = [region.blocks[0] for region in loop.regions]
    end = terminator(blocks[1])
    yielded = [end.operands[position] for position in kept]
    for found in sums:
        starts = _initial_rows(loop, found)
        operands += starts
        for row, start in zip(found.rows, starts, strict=True):
            arguments = [block.add_argument(start.type, loop.location) for block in blocks]
            made = ir.Operation.create(
                "stablehlo.add",
                results=[start.type],
                operands=[arguments[1], row],
                ip=ir.InsertionPoint(end),
                loc=found.add.location,
            )
            yielded.append(made.results[0])
    ir.Operation.create("stablehlo.return", operands=yielded, ip=ir.InsertionPoint(end), loc=end.location)
    end.erase()
    for found in sums:
        _erase_with_constraints(found.add)
    new = ir.Operation.create(
        "stablehlo.while",
        results=[operand.type for operand in operands],
        operands=operands,
        attributes={name: loop.attributes[name] for name in (at.LOOP,) if name in loop.attributes},
        regions=2,
        ip=ir.InsertionPoint(loop),
        loc=loop.location,
    )
    for block, region in zip(blocks, list(new.regions), strict=True):
        block.append_to(region)
        for position in sorted(split, reverse=True):
            block.erase_argument(position)
    for number, position in enumerate(kept):
        loop.results[position].replace_all_uses_with(new.results[number])
    first = len(kept)
    for found in sums:
        rows = [new.results[k] for k in range(first, first + len(found.rows))]
        first += len(rows)
        result = loop.results[found.position]
        result.replace_all_uses_with(concatenation(rows, found.dimension, result.type, ir.InsertionPoint(loop)))
    loop.erase()


def _initial_rows(loop: ir.Operation, found: _Sum) -> list[ir.Value]:
    """What the sums of the rows start from."""
    initial = loop.operands[found.position]
    type_ = _row_type(initial.type, (found.dimension, len(found.rows)))
    ip, scalar = ir.InsertionPoint(loop), _splat(initial)
    if scalar is not None:
        return [_broadcast(scalar, type_, ip) for _ in found.rows]
    size = type_.shape[found.dimension]
    return [
        rows_of(initial, number * size, size, ip, loop.location, dimension=found.dimension)
        for number in range(len(found.rows))
    ]


def _erase_with_constraints(op: ir.Operation) -> None:
    for use in list(op.results[0].uses):
        _erase_with_constraints(use.owner.operation)
    op.erase()


def _splat(value: ir.Value) -> ir.Value | None:
    """The scalar of which `value` is a broadcast."""
    op = defining_op(value)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return None
    scalar = op.operands[0]
    return scalar if ir.RankedTensorType(scalar.type).rank == 0 else None


def _broadcast(scalar: ir.Value, type_: ir.Type, ip: ir.InsertionPoint) -> ir.Value:
    made = ir.Operation.create(
        "stablehlo.broadcast_in_dim",
        results=[type_],
        operands=[scalar],
        attributes={"broadcast_dimensions": at.i64s([])},
        ip=ip,
        loc=scalar.location,
    )
    return made.results[0]


def _row_type(type_: ir.Type, cut: Cut) -> ir.RankedTensorType:
    whole = ir.RankedTensorType(type_)
    shape = list(whole.shape)
    shape[cut[0]] //= cut[1]
    return ir.RankedTensorType.get(shape, whole.element_type)


def _constrained(value: ir.Value) -> ir.Value:
    op = defining_op(value)
    while op is not None and op.name == "sdy.sharding_constraint":
        value = op.operands[0]
        op = defining_op(value)
    return value


def _producer(value: ir.Value, body: ir.Block) -> ir.Operation | None:
    op = defining_op(value)
    return op if op is not None and op.block == body else None
