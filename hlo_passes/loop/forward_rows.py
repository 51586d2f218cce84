"""`forward-rows`: replaces reads of stacked rows by the rows that were written, and splits sums of stacks by rows."""

from collections.abc import Iterable

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.pieces import Evaluator
from jaxpp.hlo_passes.loop.row_accumulators import split_row_accumulators
from jaxpp.hlo_passes.loop.transfer_functions import cut_dimension, gathered_rows
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import constant, erase_dead
from jaxpp.ir.constant_arrays import Constants
from jaxpp.ir.functions import body_of, loop_body, main_of, operations
from jaxpp.ir.ops import shape_of
from jaxpp.ir.rows import slice_bounds, slice_of
from jaxpp.ir.values import defining_op, origin

_UPDATE = "stablehlo.dynamic_update_slice"


class ForwardRows(Pass):
    """Forwards rows from where they are written, padded or gathered to where they are read, without a stack between.

    An unrolled loop over layers stacks rows for its gradient, and reads rows from stacks. The pass finds of which rows
    each stack consists, its pieces (`pieces.py`). Each stage then takes only the rows that it needs:

    - Integers that count become constants, as do the bounds of slices that start at them.
    - A slice of a stack with known pieces is made of these pieces. A row that was written to the stack becomes the
      written value. A row that a gather with constant indices takes becomes a slice of the gather's operand:
      `w[[0, 2, 1, 3]]` reads layers that are stored in the order of the meshes.
    - Operations between write and read are applied to the rows, if they treat all rows alike. Examples are a cast, a
      reshape, arithmetic, and a barrier of `jax.checkpoint` around parameters.
    - A stack that is still used becomes a concatenation, if all its rows were written. So does a gather of pieces in
      another order.
    - A sum of stacks over the microbatches (the gradient of stacked parameters) becomes one sum for each piece. The
      sums are concatenated after the loop.

    This also serves layers without a loop. The gradients of rows `w[0]`, `w[1]`... are padded with zeros, or written
    over zeros (in a loop that reads `w[i]`). The gradient of `w[rows]` is added to zeros at these rows. Rows that are
    set, added to or scaled at constant indices (`w.at[1].set(w[0])`) are known too.

    Preconditions: `unroll-loops` ran.

    ```mlir
    %w_1 = stablehlo.dynamic_slice %w, %c1, ...          ==>   %w_1 = stablehlo.slice %w [1:2, 0:8, 0:8]
    %s = stablehlo.dynamic_update_slice %s0, %y, %c1           // what was read of %s uses %y
    %y_1 = stablehlo.dynamic_slice %s, %c1, ...
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Forwards the rows in `@main` of `module`, and in the bodies of its loops with stage marks."""
        block = body_of(main_of(module))
        for loop in [op.operation for op in block.operations if op.name == "stablehlo.while"]:
            ops = operations(loop_body(loop))
            if any(map(boundary.is_mark, ops)):
                _forward(ops)
                erase_dead(split_row_accumulators(loop).regions[1].blocks[0])
        _forward(operations(block))
        erase_dead(block)


def _forward(ops: Iterable[ir.Operation]) -> None:
    forward = _Forward()
    for op in ops:
        forward.visit(op)
    forward.put_together()


class _Forward:
    """The rewrite of one block, which visits its operations in order."""

    def __init__(self) -> None:
        self._evaluator = Evaluator()
        self._constants = Constants()
        self._written: list[ir.Value] = []

    def visit(self, op: ir.Operation) -> None:
        name = op.name
        if name == "stablehlo.constant" or len(op.results) != 1:
            return
        if name in ("stablehlo.slice", "stablehlo.dynamic_slice"):
            self._read(op)
        elif name == "stablehlo.gather":
            self._gather(op)
        elif name == "stablehlo.reshape":
            _undo_broadcast(op)
        elif name == _UPDATE:
            self._written.append(op.results[0])
        known = self._constants.scalar(op.results[0])
        if known is not None:
            made = constant(op.results[0].type, known, ip=ir.InsertionPoint(op), loc=op.location)
            op.results[0].replace_all_uses_with(made)

    def _read(self, op: ir.Operation) -> None:
        bounds, source = slice_bounds(op), op.operands[0]
        if bounds is None:
            return
        dimension = cut_dimension(bounds, shape_of(source)) or 0
        if dimension >= 0 and self._evaluator.pieces(source, dimension) is not None:
            made = self._evaluator.make(source, *bounds[dimension], op, dimension)
        elif op.name == "stablehlo.dynamic_slice":
            starts, sizes = zip(*bounds, strict=True)
            made = slice_of(source, starts, sizes, ir.InsertionPoint(op), op.location)
        else:
            return
        op.results[0].replace_all_uses_with(made)

    def _gather(self, op: ir.Operation) -> None:
        """Replaces a gather from a value with several known pieces by a concatenation of pieces."""
        known = self._evaluator.pieces(op.operands[0])
        if known is not None and len(known.pieces) > 1 and gathered_rows(op):
            result = op.results[0]
            result.replace_all_uses_with(self._evaluator.make(result, 0, shape_of(result)[0], op))

    def put_together(self) -> None:
        """Replaces stacks by concatenations, if all rows were written and an operation other than a write uses them."""
        for value in self._written:
            op = defining_op(value)
            assert op is not None
            if all(use.owner.operation.name == _UPDATE for use in value.uses):
                continue
            base, sizes = origin(value, _writes), zip(shape_of(value), shape_of(op.operands[1]), strict=True)
            along = [dimension for dimension, (whole, size) in enumerate(sizes) if size < whole]
            if len(along) != 1:
                continue
            known = self._evaluator.pieces(value, along[0])
            if known is not None and all(piece.rows.source != base for piece in known.pieces):
                made = self._evaluator.make(value, 0, shape_of(value)[along[0]], op, along[0])
                value.replace_all_uses_with(made)


def _writes(op: ir.Operation) -> bool:
    return op.name in (_UPDATE, "sdy.sharding_constraint")


def _undo_broadcast(op: ir.Operation) -> None:
    """Replaces a value that gained a dimension of size 1 (as a row does) and lost it again by the value itself."""
    made = defining_op(op.operands[0])
    if made is None or made.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        return
    value, dimensions = made.operands[0], at.integers(made, "broadcast_dimensions")
    enlarged = [size for size in shape_of(op.operands[0]) if size > 1] != [size for size in shape_of(value) if size > 1]
    if value.type == op.results[0].type and dimensions == sorted(dimensions) and not enlarged:
        op.results[0].replace_all_uses_with(value)
