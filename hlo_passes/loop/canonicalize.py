"""Small rewrites that bring loops into a common form, whoever wrote them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace as replace_fields

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Marks
from jaxpp.ir.build import constant, recarried, replace, shardings, split_barrier
from jaxpp.ir.constant_arrays import Constants
from jaxpp.ir.counted import advance, constant_integer, counters, wrapped
from jaxpp.ir.functions import CONDITIONALS, blocks_of, loop_body, operations, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.values import defining_op, is_used


def drop_scalar_constraints(ops: Iterable[ir.Operation]) -> None:
    """Drops sharding constraints of scalars, which can't be sharded: explicit mesh axes put them on every value."""
    for op in ops:
        if op.name == "sdy.sharding_constraint" and ir.RankedTensorType(op.operands[0].type).rank == 0:
            replace(op, op.operands)


def take_known_branches(block: ir.Block) -> None:
    """Replaces each conditional that always takes the same branch by that branch, also inside other operations."""
    for op in operations(block):
        branches = blocks_of(op)
        if op.name in CONDITIONALS and (taken := _known_branch(op, branches)) is not None:
            take_known_branches(taken)
            *inside, end = operations(taken)
            returned = list(end.operands)
            for inner in inside:
                inner.move_before(op)
            replace(op, returned)
        else:
            for inner in branches:
                take_known_branches(inner)


def _known_branch(op: ir.Operation, branches: Sequence[ir.Block]) -> ir.Block | None:
    """Returns the branch that a conditional always takes; None if unknown. An index out of range takes the last one."""
    if len(branches) == 1:
        return branches[0]
    number = Constants().scalar(op.operands[0])
    if number is None:
        return None
    if op.name == "stablehlo.if":
        return branches[0 if number else 1]
    return branches[number if 0 <= number < len(branches) else -1]


def drop_invariants(ops: Iterable[ir.Operation], loop: ir.Operation) -> ir.Operation:
    """Drops what the loops among `ops` carry unchanged, and constraints of scalars. Returns the new `loop`."""
    names = {"stablehlo.while", "sdy.sharding_constraint"}
    found = [(op, name) for op in ops if (name := op.name) in names]
    inner = [op for op, name in found if name == "stablehlo.while" and op != loop]
    drop_scalar_constraints(op for op, name in found if name != "stablehlo.while")
    for each in reversed(inner):
        _drop_invariants(each)
    return _drop_invariants(loop)


def _drop_invariants(loop: ir.Operation) -> ir.Operation:
    """Rebuilds `loop` without the carried values that its body returns unchanged. Returns the new loop."""
    body = loop_body(loop)
    pairs = zip(body.arguments, terminator(body).operands, strict=True)
    unchanged = {number for number, (argument, value) in enumerate(pairs) if argument == value}
    if not unchanged:
        return loop
    kept = [at.value_sharding(result) for number, result in enumerate(loop.results) if number not in unchanged]
    return recarried(loop, without=unchanged, changed=shardings(kept))


def write_counts(loop: MicrobatchLoop) -> MicrobatchLoop:
    """Brings the counts of microbatches into a common form, and writes `loop` with them. Returns the loop."""
    _count_from_zero(loop.op)
    indices, starts, steps = ([wrapped(each[i]) for each in counters(loop.op)] for i in range(3))
    found = replace_fields(loop, indices=indices, starts=starts, steps=steps)
    found.write()
    return found


def _count_from_zero(loop: ir.Operation) -> None:
    """Rewrites each integer that the body advances by constants: it counts from a constant, by one addition.

    If the start is no constant, the count starts from 0. The body, and the operations after the loop, add the start
    where they use the integer. So a stage can compute the integer without the stages that advanced it before.
    """
    body, end = loop_body(loop), terminator(loop_body(loop))
    tested = loop.regions[0].blocks[0].arguments
    counting = {position for position, *_ in counters(loop)}
    for position, argument in enumerate(body.arguments):
        step = advance(argument, end.operands[position])
        if step is None or position in counting or is_used(tested[position]):
            continue
        start = loop.operands[position]
        with loop.location:
            if constant_integer(start) is None:
                loop.operands[position] = constant(start.type, 0, ip=ir.InsertionPoint(loop))
                _add_to(argument, start, ir.InsertionPoint.at_block_begin(body))
                _add_to(loop.results[position], start, ir.InsertionPoint.after(loop))
            with ir.InsertionPoint(end):
                end.operands[position] = stablehlo.add(argument, constant(start.type, step))


def _add_to(value: ir.Value, start: ir.Value, ip: ir.InsertionPoint) -> None:
    """Replaces `value` by `value + start` in its users."""
    if is_used(value):
        total = stablehlo.add(start, start, ip=ip)
        value.replace_all_uses_with(total)
        total.owner.operands[1] = value


def split_barriers(marks: Marks) -> None:
    """Splits each barrier of several values, if a mark takes one of them: the values belong to different stages.

    `jax.checkpoint` makes a barrier of its residuals and of the gradient for which the recomputation waits. When its
    function ends in a mark, this gradient comes from the next stage.
    """
    for mark, _ in marks:
        for number in range(len(mark.operands)):
            op = defining_op(mark.operands[number])
            if op is not None and boundary.is_barrier(op) and len(op.operands) > 1:
                split_barrier(op)
