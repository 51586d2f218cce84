"""Stage marks inside of `jax.checkpoint`: the backward rematerialises marked values that the forward already made."""

from collections.abc import Hashable, Sequence

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Marks
from jaxpp.ir.build import replace, split_barrier
from jaxpp.ir.functions import loop_body, operands_with_captures
from jaxpp.ir.numbering import Numbering
from jaxpp.ir.values import closure, defining_op


def reuse_recomputed_marks(loop: ir.Operation, marks: Marks) -> Marks:
    """Replaces each mark that `jax.checkpoint` rematerialises by the first mark of the same value.

    Each stage then rematerialises from its own boundary on, whatever the checkpoint encloses: a block with a mark, or
    the whole model. A barrier of `jax.checkpoint` would then hold values of several stages. The function therefore
    gives each value a barrier of its own. Returns the marks that stay.
    """
    forward = [mark.stage for _, mark in marks if mark.phase == "forward"]
    if len(set(forward)) == len(forward):
        return marks
    # A layer that is traced once and called several times has marks of one number in several stages. Their values
    # tell a rematerialised mark from the mark of another call.
    numbering = Numbering(_through_barrier, without={at.SLICE})  # JAX moves some operations of a slice before the loop
    firsts: dict[Hashable, ir.Operation] = {}
    barriers: dict[ir.Value, None] = {}
    again: set[int] = set()
    for number, (op, mark) in enumerate(marks):
        if mark.phase == "backward":
            continue
        marked = tuple([numbering.of(value) for value in op.operands])
        first = firsts.setdefault((mark.stage, mark.name, at.integer(op, at.SLICE), marked), op)
        if first is not op:
            again.add(number)
            barriers.update(dict.fromkeys(_barriers_before(op, loop_body(loop))))
            replace(op, first.results)
    for value in barriers:
        split_barrier(ir.OpResult(value).owner.operation)
    return [each for number, each in enumerate(marks) if number not in again]


def _through_barrier(op: ir.Operation, result: int) -> ir.Value | None:
    """Returns the operand that a barrier of `jax.checkpoint` hands on."""
    return op.operands[result] if boundary.is_barrier(op) else None


def _barriers_before(mark: ir.Operation, body: ir.Block) -> list[ir.Value]:
    """Returns one result of each barrier with several values between a mark and the marks before it."""
    barriers: list[ir.Value] = []

    def operands(value: ir.Value) -> Sequence[ir.Value]:
        op = defining_op(value)
        if op is None or op.block != body or boundary.is_mark(op):
            return ()
        if not boundary.is_barrier(op):
            return operands_with_captures(op)
        barriers.extend(op.results[:1] if len(op.operands) > 1 else ())
        return [op.operands[ir.OpResult(value).result_number]]

    closure(mark.operands, operands)
    return barriers
