"""Counted loops: which carried values of a `stablehlo.while` count, and how often it runs."""

from collections.abc import Iterable

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir.functions import operations, terminator
from jaxpp.hlo_passes.ir.values import defining_op


def constant_integer(value: ir.Value) -> int | None:
    """The value of an integer scalar constant; None for anything else."""
    op = defining_op(value)
    if op is None or op.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    type_ = ir.RankedTensorType(value.type)
    if type_.rank or not isinstance(type_.element_type, ir.IntegerType) or type_.element_type.width == 1:
        return None
    return int(ir.DenseIntElementsAttr(op.attributes["value"])[0])


def counters(loop: ir.Operation) -> list[tuple[int, int, int]]:
    """The carried positions that count iterations: (position, start, step), from constants."""
    body = loop.regions[1].blocks[0]
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
    """The constant that `value` adds to `argument`, an integer scalar; None for any other value.

    It adds it step by step, perhaps through barriers (marks) and in wider integers. The sum holds modulo 2 to the power
    of the argument's width.
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


def wrapped(number: int, width: int = 64) -> int:
    """`number` as a signed integer of `width` bits holds it."""
    half = 1 << (width - 1)
    return (number + half) % (2 * half) - half


def _integer_width(value: ir.Value) -> int:
    """The bits of an integer scalar; 0 for anything else."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or type_.rank or not isinstance(type_.element_type, ir.IntegerType):
        return 0
    return type_.element_type.width


def trips(loop: ir.Operation) -> int | None:
    """How often `loop` runs, at least once; None when that is not a constant known from the IR."""
    found = _tested(loop)
    return found and found[1]


def counter_of_test(loop: ir.Operation) -> tuple[int, int, int]:
    """(position, start, step) of what the test of a loop with known trips reads: it takes no value twice."""
    found = _tested(loop)
    assert found is not None, "the number of trips is not known"
    return found[0]


def _tested(loop: ir.Operation) -> tuple[tuple[int, int, int], int] | None:
    """The counter that the test compares with a constant, and how often the loop runs."""
    op = defining_op(terminator(loop.regions[0].blocks[0]).operands[0])
    if op is None or op.name != "stablehlo.compare" or "LT" not in str(op.attributes["comparison_direction"]):
        return None
    index, limit = op.operands[0], constant_integer(op.operands[1])
    arguments = list(loop.regions[0].blocks[0].arguments)
    counter = next((each for each in counters(loop) if arguments[each[0]] == index), None)
    if limit is None or counter is None:
        return None
    _, start, step = counter
    return (counter, -(-(limit - start) // step)) if step > 0 and limit > start else None


def counted_loops(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """The loops of tensors among `ops` that run a known number of times, and those inside of them."""
    found: list[ir.Operation] = []
    for op in ops:
        tensors = op.name == "stablehlo.while" and all(isinstance(v.type, ir.RankedTensorType) for v in op.operands)
        if tensors and trips(op) is not None:
            found += [op, *counted_loops(operations(op.regions[1].blocks[0]))]
    return found


def trip_count(loop: ir.Operation) -> int:
    """How often the microbatch loop runs. Raises PassError when that is not a constant known from the IR."""
    found = trips(loop)
    if found is None:
        raise PassError(
            "the microbatch loop has no constant trip count",
            location=loop.location,
            hint="loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds",
        )
    return found


def never_ends(loop: ir.Operation) -> bool:
    """Whether `loop` counts to a constant that it does not come to: by 0, or away from it."""
    body, op = loop.regions[1].blocks[0], defining_op(terminator(loop.regions[0].blocks[0]).operands[0])
    if op is None or op.name != "stablehlo.compare":
        return False
    limit, argument = constant_integer(op.operands[1]), op.operands[0]
    if limit is None or not isinstance(argument, ir.BlockArgument):
        return False
    position = argument.arg_number
    steps = {where: step for where, _, step in counters(loop)}
    if terminator(body).operands[position] == body.arguments[position]:
        steps[position] = 0
    start = constant_integer(loop.operands[position])
    if start is None or position not in steps:
        return False
    step, direction = steps[position], str(op.attributes["comparison_direction"])
    if "LT" in direction or "LE" in direction:
        return step <= 0 and (start < limit or (start == limit and "LE" in direction))
    if "GT" in direction or "GE" in direction:
        return step >= 0 and (start > limit or (start == limit and "GE" in direction))
    return step == 0 and (start == limit) == ("EQ" in direction)
