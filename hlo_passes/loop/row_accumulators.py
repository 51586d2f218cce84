"""Sums of stacks over the microbatches: one sum for each row, so that the stage that makes the row has it."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import terminator
from jaxpp.hlo_passes.loop.forward_rows import concatenation, rows_of
from jaxpp.hlo_passes.loop.rows import broadcast, constrained, cut_of, producer, row_type, rows_in, splat


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
    add = producer(constrained(terminator(body).operands[position]), body)
    if add is None or add.name != "stablehlo.add" or len(list(argument.uses)) != 1 or argument not in add.operands:
        return None
    stack = add.operands[1 if add.operands[0] == argument else 0]
    cut = cut_of(stack, body)
    if cut is None:
        return None
    return _Sum(position, add, rows_in(stack, body, cut, add), cut[0])


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
    type_ = row_type(initial.type, (found.dimension, len(found.rows)))
    ip, scalar = ir.InsertionPoint(loop), splat(initial)
    if scalar is not None:
        return [broadcast(scalar, type_, ip) for _ in found.rows]
    size = type_.shape[found.dimension]
    return [
        rows_of(initial, number * size, size, ip, loop.location, dimension=found.dimension)
        for number in range(len(found.rows))
    ]


def _erase_with_constraints(op: ir.Operation) -> None:
    for use in list(op.results[0].uses):
        _erase_with_constraints(use.owner.operation)
    op.erase()
