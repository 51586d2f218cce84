"""Counted loops: the carried values of a `stablehlo.while` that count, and the number of its trips."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import loop_body, terminator
from jaxpp.ir.tensors import read_constant
from jaxpp.ir.values import defining_op


def constant_integer(value: ir.Value) -> int | None:
    """Returns the value of an integer scalar constant, which loops may hand on; None for anything else."""
    op = defining_op(value)
    if op is None:
        outside = handed_on(value)
        return None if outside is None else constant_integer(outside)
    if op.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    type_ = ir.RankedTensorType(value.type)
    if type_.rank or not isinstance(type_.element_type, ir.IntegerType) or type_.element_type.width == 1:
        return None
    return int(read_constant(op))


def direction_of(compare: ir.Operation) -> str:
    """Returns the direction of a comparison: `LT`, `LE`, `GT`, `GE`, `EQ` or `NE`."""
    return stablehlo.ComparisonDirectionAttr(compare.attributes["comparison_direction"]).value


def handed_on(argument: ir.Value) -> ir.Value | None:
    """Returns the initial value of the carried value `argument`, if the loop hands it on unchanged; otherwise None."""
    block, number = ir.BlockArgument(argument).owner, ir.BlockArgument(argument).arg_number
    loop = block.owner.operation
    if loop.name != "stablehlo.while":
        return None
    body = loop_body(loop)
    return loop.operands[number] if terminator(body).operands[number] == body.arguments[number] else None


def counters(loop: ir.Operation) -> list[tuple[int, int, int]]:
    """Returns (position, start, step) of each carried value that counts iterations by constants."""
    body = loop_body(loop)
    found: list[tuple[int, int, int]] = []
    for position, (argument, value, initial) in enumerate(
        zip(body.arguments, terminator(body).operands, loop.operands, strict=True)
    ):
        start, op = constant_integer(initial), defining_op(value)
        if start is None or op is None or op.name != "stablehlo.add":
            continue
        left, right = op.operands
        step = constant_integer(right if left == argument else left)
        if argument in (left, right) and step is not None:
            found.append((position, start, step))
    return found


_SUMS = ("stablehlo.add", "stablehlo.subtract")
_MOST = 1 << 14
"""The most values that `line` adds up: a value that is added to itself again and again has many more."""


def line(
    value: ir.Value, counts: Mapping[ir.Value, tuple[int, int]], names: Sequence[str] = _SUMS, width: int = 0
) -> tuple[int, int] | None:
    """Returns (start, step) of an integer that is a sum of counts and constants, or a difference; otherwise None.

    Args:
        value: the integer.
        counts: (start, step) of each count.
        names: the operations between: additions and subtractions, or others that hand on an operand.
        width: the fewest bits that the results of these operations may have.
    """
    start = step = 0
    terms = [(value, 1)]
    for term, sign in terms:  # it grows
        known, op = counts.get(term), defining_op(term)
        if known is None and (number := constant_integer(term)) is not None:
            known = number, 0
        if known is not None:
            start, step = start + sign * known[0], step + sign * known[1]
        elif op is None or op.name not in names or _integer_width(term) < width or len(terms) > _MOST:
            return None
        elif op.name in _SUMS:
            terms += [(op.operands[0], sign), (op.operands[1], sign if op.name == "stablehlo.add" else -sign)]
        else:
            terms.append((op.operands[ir.OpResult(term).result_number], sign))
    return start, step


def advance(argument: ir.Value, value: ir.Value) -> int | None:
    """Returns the constant `c` where `value` is `argument + c`, both integer scalars; None for any other value.

    Several additions, barriers (marks) and wider integers may stand in between. The sum holds modulo 2 to the power of
    the argument's width.
    """
    width = _integer_width(argument)
    names = (*_SUMS, "stablehlo.convert", "stablehlo.optimization_barrier")
    found = line(value, {argument: (0, 1)}, names, width) if width > 1 else None
    return wrapped(found[0], width) if found is not None and found[1] == 1 else None


def affine(value: ir.Value, counts: Mapping[ir.Value, tuple[int, int]], trips: int) -> tuple[int, int] | None:
    """Returns the `line` of an integer that stays in the range of its type for `trips` trips; None for any other value.

    An integer that leaves the range wraps around there.
    """
    found = line(value, counts)
    if found is None:
        return None
    first, last = found[0], found[0] + (trips - 1) * found[1]
    return found if first in _range(value) and last in _range(value) else None


def _range(value: ir.Value) -> range:
    """Returns the numbers that an integer scalar can hold."""
    type_ = ir.IntegerType(ir.RankedTensorType(value.type).element_type)
    return range(1 << type_.width) if type_.is_unsigned else range(-1 << (type_.width - 1), 1 << (type_.width - 1))


def wrapped(number: int, width: int = 64) -> int:
    """Returns `number`, wrapped around to a signed integer of `width` bits."""
    half = 1 << (width - 1)
    return (number + half) % (2 * half) - half


def _integer_width(value: ir.Value) -> int:
    """Returns the width of an integer scalar in bits; 0 for anything else."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or type_.rank or not isinstance(type_.element_type, ir.IntegerType):
        return 0
    return type_.element_type.width


@dataclass(frozen=True)
class _Test:
    """The condition of a loop: it compares a carried value, to which each trip adds `step`, with `limit`."""

    position: int
    start: int
    step: int
    direction: str
    limit: int


def _test(loop: ir.Operation) -> _Test | None:
    """Returns the test of `loop`, if it compares a counter, or a value that never changes, with a constant."""
    test, body = (region.blocks[0] for region in loop.regions)
    op = defining_op(terminator(test).operands[0])
    if op is None or op.name != "stablehlo.compare":
        return None
    argument, limit = op.operands[0], constant_integer(op.operands[1])
    if limit is None or not isinstance(argument, ir.BlockArgument) or argument.owner != test:
        return None
    position = argument.arg_number
    step = next((step for where, _, step in counters(loop) if where == position), None)
    if terminator(body).operands[position] == body.arguments[position]:
        step = 0
    start = constant_integer(loop.operands[position])
    if start is None or step is None:
        return None
    return _Test(position, start, step, direction_of(op), limit)


def trips(loop: ir.Operation) -> int | None:
    """Returns the number of trips of `loop`, if it counts up to a constant; None when the IR does not tell.

    Also returns None where the counter wraps around before its limit, or the count needs more than 64 bits.
    """
    test = _test(loop)
    if test is None or test.direction != "LT" or test.step <= 0:
        return None
    found = max(0, -(-(test.limit - test.start) // test.step))
    is_counted = found * test.step < 1 << 63 and test.start + found * test.step in _range(loop.operands[test.position])
    return found if is_counted else None


def counter_of_test(loop: ir.Operation) -> tuple[int, int, int]:
    """Returns (position, start, step) of the counter that the test reads, in a loop whose `trips` are known."""
    test = _test(loop)
    assert test is not None, "the number of trips is not known"
    return test.position, test.start, test.step


def never_ends(loop: ir.Operation) -> bool:
    """Whether `loop` counts to a constant that it never reaches: its step is 0, or leads away from the constant.

    A counter of fewer than 32 bits soon wraps around, and so reaches the constant.
    """
    test = _test(loop)
    if test is None or (test.step and _integer_width(loop.operands[test.position]) < 32):
        return False
    start, limit = test.start, test.limit
    match test.direction:
        case "LT" | "LE":
            return test.step <= 0 and (start < limit or (start == limit and test.direction == "LE"))
        case "GT" | "GE":
            return test.step >= 0 and (start > limit or (start == limit and test.direction == "GE"))
        case direction:
            return test.step == 0 and (start == limit) == (direction == "EQ")


def is_counted(op: ir.Operation) -> bool:
    """Whether `op` is a loop of tensors that runs a known number of times, at least once."""
    return (
        op.name == "stablehlo.while"
        and all(isinstance(v.type, ir.RankedTensorType) for v in op.operands)
        and bool(trips(op))
    )


def trip_count(loop: ir.Operation) -> int:
    """Returns the number of trips of the microbatch loop. Raises PassError when the IR does not tell it, or it is 0."""
    found = trips(loop)
    if not found:
        raise PassError(
            "the microbatch loop has no constant trip count" if found is None else "the microbatch loop has 0 trips",
            location=loop.location,
            hint="loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds",
        )
    return found
