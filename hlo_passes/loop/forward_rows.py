"""Rewrites reads of rows: a read of a value that is known in pieces reads the source of the rows instead."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.loop.pieces import Evaluator
from jaxpp.hlo_passes.loop.transfer import cut_dimension, gathered_rows, slice_bounds
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant
from jaxpp.ir.constant_arrays import Constants
from jaxpp.ir.functions import operations
from jaxpp.ir.rows import shape_of, slice_of
from jaxpp.ir.values import defining_op

_UPDATE = "stablehlo.dynamic_update_slice"


def forward_rows(block: ir.Block) -> None:
    """Rewrite the operations of `block`.

    - Integers that are known are constants, and slices at them have constant bounds.
    - A slice of a value that is known in pieces (rows that were written, gathered, padded) is made of these.
    - A stack of which every row was written is a concatenation, where anything reads it whole; so is one whose pieces
      are gathered in another order.
    """
    forward = _Forward()
    for op in operations(block):
        forward.visit(op)
    forward.put_together()


class _Forward:
    """Rewrites one operation after the other."""

    def __init__(self) -> None:
        self._evaluator = Evaluator()
        self._constants = Constants()
        self._written: list[ir.Value] = []

    def visit(self, op: ir.Operation) -> None:
        if len(op.results) != 1 or op.name == "stablehlo.constant":
            return
        if op.name in ("stablehlo.slice", "stablehlo.dynamic_slice"):
            self._read(op)
        elif op.name == "stablehlo.gather":
            self._gather(op)
        elif op.name == "stablehlo.reshape":
            _undo_broadcast(op)
        elif op.name == _UPDATE:
            self._written.append(op.results[0])
        known = self._constants.scalar(op.results[0])
        if known is not None:
            made = constant(op.results[0].type, int(known), ip=ir.InsertionPoint(op), loc=op.location)
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
        """Replace a gather from a value in pieces by a concatenation of the pieces."""
        known = self._evaluator.pieces(op.operands[0])
        if known is not None and len(known.pieces) > 1 and gathered_rows(op):
            result = op.results[0]
            result.replace_all_uses_with(self._evaluator.make(result, 0, shape_of(result)[0], op))

    def put_together(self) -> None:
        """Replace each stack whose rows were all written by a concatenation, if anything but a write uses it."""
        for value in self._written:
            op = defining_op(value)
            assert op is not None
            if all(use.owner.operation.name == _UPDATE for use in value.uses):
                continue
            base, sizes = _base(value), zip(shape_of(value), shape_of(op.operands[1]), strict=True)
            along = [dimension for dimension, (whole, size) in enumerate(sizes) if size < whole]
            if len(along) != 1:
                continue
            known = self._evaluator.pieces(value, along[0])
            if known is not None and all(piece.rows.source != base for piece in known.pieces):
                made = self._evaluator.make(value, 0, shape_of(value)[along[0]], op, along[0])
                value.replace_all_uses_with(made)


def _base(value: ir.Value) -> ir.Value:
    """The value over which rows were written to make `value`."""
    op = defining_op(value)
    while op is not None and op.name in (_UPDATE, "sdy.sharding_constraint"):
        value = op.operands[0]
        op = defining_op(value)
    return value


def _undo_broadcast(op: ir.Operation) -> None:
    """Replace a value that gained a dimension of size 1 (to be a row) and lost it again by the value itself."""
    made = defining_op(op.operands[0])
    if made is None or made.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        return
    value, dimensions = made.operands[0], at.integers(made, "broadcast_dimensions")
    enlarged = [size for size in shape_of(op.operands[0]) if size > 1] != [size for size in shape_of(value) if size > 1]
    if value.type == op.results[0].type and dimensions == sorted(dimensions) and not enlarged:
        op.results[0].replace_all_uses_with(value)
