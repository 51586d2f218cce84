"""Counted loops: the carried values of a `stablehlo.while` that count, and the number of its trips."""

from collections.abc import Mapping
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


def advance(argument: ir.Value, value: ir.Value) -> int | None:
    """Returns the constant `c` where `value` is `argument + c`, both integer scalars; None for any other value.

    Several additions, barriers (marks) and wider integers may stand in between. The sum holds modulo 2 to the power of
    the argument's width.
    """
    width, total = _integer_width(argument), 0
    if width < 2:
        return None
    while value != argument:
        op = defining_op(value)
        if op is None or _integer_width(value) < width:
            return None
        if op.name == "stablehlo.optimization_barrier":
            value = op.operands[ir.OpResult(value).result_number]
        elif op.name == "stablehlo.convert":
            value = op.operands[0]
        elif op.name in ("stablehlo.add", "stablehlo.subtract"):
            left, right = op.operands
            if op.name == "stablehlo.add" and constant_integer(left) is not None:
                left, right = right, left
            constant = constant_integer(right)
            if constant is None:
                return None
            total += constant if op.name == "stablehlo.add" else -constant
            value = left
        else:
            return None
    return wrapped(total, width)


def affine(value: ir.Value, counts: Mapping[ir.Value, tuple[int, int]], trips: int) -> tuple[int, int] | None:
    """Returns (start, step) of an integer that is a constant plus or minus a count; None for any other value.

    Also returns None where the integer leaves the range of its type within `trips` trips, as it wraps around there.

    counts: (start, step) of each count.
    """
    whole = value
    sign, offset = 1, 0
    while value not in counts:
        op = defining_op(value)
        if op is None or op.name not in ("stablehlo.add", "stablehlo.subtract"):
            return None
        left, right = (constant_integer(operand) for operand in op.operands)
        minus = -1 if op.name == "stablehlo.subtract" else 1
        if right is not None:
            offset, value = offset + sign * minus * right, op.operands[0]
        elif left is not None:
            offset, sign, value = offset + sign * left, sign * minus, op.operands[1]
        else:
            return None
    start, step = offset + sign * counts[value][0], sign * counts[value][1]
    ends = start, start + (trips - 1) * step
    return (start, step) if all(map(_range(whole).__contains__, ends)) else None


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
