"""Replaces a sum of stacks over the microbatches by a sum for each piece, on the stage that makes the piece."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.loop.pieces import Evaluator
from jaxpp.ir.accumulators import ADD, CONSTRAINT, SUBTRACT, carried_updates
from jaxpp.ir.build import remake, replace
from jaxpp.ir.counted import counters, handed_on
from jaxpp.ir.functions import loop_body, terminator
from jaxpp.ir.ops import shape_of
from jaxpp.ir.rows import concatenation, is_splat, resized, rows_of, with_size
from jaxpp.ir.values import is_zero


@dataclass(frozen=True)
class _StackSum:
    """A sum that the loop carries: `add` adds a stack of `rows` along `dimension`, or subtracts it."""

    add: ir.Operation
    dimension: int
    rows: Sequence[ir.Value]

    def initial(self, start: ir.Value, ip: ir.InsertionPoint) -> list[ir.Value]:
        """Returns the initial values of the sums of the rows, if the sum of the whole stack starts from `start`."""
        found, first = list[ir.Value](), 0
        for row in self.rows:
            size = shape_of(row)[self.dimension]
            type_ = with_size(start.type, self.dimension, size)
            is_one = is_splat(start)
            found.append(resized(start, type_, ip) if is_one else rows_of(start, self.dimension, first, size, ip))
            first += size
        return found


def split_row_accumulators(loop: ir.Operation) -> ir.Operation:
    """Rebuilds `loop` with a sum for each piece of the stacks that it sums, and concatenates these sums after it.

    A row to which only zeros are added stays outside of the loop, if its sum starts from zeros: no layer reads it.
    Returns the new loop, or `loop` if it sums no stack. The additions of whole stacks stay in the loop, without uses.
    """
    evaluator, body = Evaluator(), loop_body(loop)
    sums = {n: found for n in range(len(loop.operands)) if (found := _sum(loop, n, evaluator)) is not None}
    if not sums:
        return loop
    kept = [position for position in range(len(loop.operands)) if position not in sums]
    end, ip = terminator(body), ir.InsertionPoint(loop)
    starts: dict[int, list[tuple[ir.Value, bool]]] = {}
    operands, yielded = ([op.operands[position] for position in kept] for op in (loop, end))
    for position, found in sums.items():
        body.arguments[position].replace_all_uses_with(loop.operands[position])  # the addition is dead then
        begun = found.initial(loop.operands[position], ip)
        stays = [is_zero(start) and is_zero(row) for start, row in zip(begun, found.rows, strict=True)]
        starts[position] = list(zip(begun, stays, strict=True))
        for start, row in ((start, row) for start, row, stay in zip(begun, found.rows, stays, strict=True) if not stay):
            totals = [region.blocks[0].add_argument(start.type, loop.location) for region in loop.regions]
            operands.append(start)
            yielded.append(remake(found.add, [totals[1], row], [row.type], ip=ir.InsertionPoint(end)).results[0])
    replace(end, remake(end, yielded).results)
    new = remake(loop, operands, [operand.type for operand in operands])
    for block in (region.blocks[0] for region in new.regions):
        for position in sorted(sums, reverse=True):
            block.erase_argument(position)
    results = list(new.results)
    values: dict[int, ir.Value] = dict(zip(kept, results, strict=False))
    sums_of_rows = iter(results[len(kept) :])
    for position, found in sums.items():
        rows = [start if stays else next(sums_of_rows) for start, stays in starts[position]]
        values[position] = concatenation(rows, found.dimension, ip)
    replace(loop, [values[position] for position in range(len(values))])
    return new


def _sum(loop: ir.Operation, position: int, evaluator: Evaluator) -> _StackSum | None:
    uses = carried_updates(loop, position, (ADD, SUBTRACT, CONSTRAINT))
    adds = [use for use in uses if use.owner.operation.name != CONSTRAINT]
    if len(adds) != 1:
        return None
    add = adds[0].owner.operation
    stack = add.operands[1 - adds[0].operand_number]
    for dimension in range(len(shape_of(stack))):
        known = evaluator.pieces(stack, dimension)
        if known is None or _is_carried(loop, evaluator.sources(stack, dimension)):
            continue
        if sum(not is_zero(piece.rows.source) for piece in known.pieces) > 1:
            bounds = [(piece.start, piece.size) for piece in known.pieces]
            rows = [evaluator.make(stack, *each, add, dimension) for each in bounds]
            if sum(not is_zero(row) for row in rows) > 1:
                return _StackSum(add, dimension, rows)
    return None


def _is_carried(loop: ir.Operation, values: Sequence[ir.Value]) -> bool:
    """Returns whether a trip of the loop hands any of these values to the next trip.

    One stage makes such a value, for all rows.
    """
    body = loop_body(loop)
    numbers = {position for position, *_ in counters(loop)}
    carried = {each for n, each in enumerate(body.arguments) if n not in numbers and handed_on(each) is None}
    return not carried.isdisjoint(values)
