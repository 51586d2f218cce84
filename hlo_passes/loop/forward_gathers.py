"""`forward-gathers`: rows that are read through a gather with constant indices are read where they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.constant_arrays import is_all_true
from jaxpp.hlo_passes.ir.functions import body_of, has_side_effect, main_of, operations
from jaxpp.hlo_passes.ir.loop import MicrobatchLoop
from jaxpp.hlo_passes.ir.values import defining_op, is_used
from jaxpp.hlo_passes.loop.blocks import is_elementwise, keeps_rows, shape_of, with_rows
from jaxpp.hlo_passes.loop.forward_rows import concatenation, rows_of
from jaxpp.hlo_passes.loop.indexed_rows import gathered_rows
from jaxpp.hlo_passes.loop.rows import broadcast, reshaped, splat

_BARRIER = "stablehlo.optimization_barrier"


@dataclass(frozen=True)
class ForwardGathers(Pass):
    """Reads rows that a gather with constant indices takes, `w[[0, 2, 1, 3]]`, directly out of `w`.

    Where a mesh has several separate runs of stages (interleaved schedules, V-shaped ones), stacked layers are stored
    in the order of the meshes, so that each has one block of them, and read in the order of the model. `split-stacks`
    then finds the rows as if nothing stood in between.

    - A slice of what a gather took becomes a slice of what it was taken from, also where it is reshaped or cast in
      between, or changed in another way that treats all rows alike, or stands behind a barrier of `jax.checkpoint`.
    - A gather of a concatenation (the sums of the rows' gradients, put into another order after the loop) becomes a
      concatenation of its pieces.
    - A mask of indices that are known to be in range (`jnp.take`) is dropped.

    A gather that something else uses stays. Its gradient, which adds rows to zeros at constant indices, is one sum for
    each row already: `unroll-layers` makes it.

    Preconditions: `find-microbatch-loop` ran.

    ```mlir
    %p = gather %w, [0, 2, 1, 3]                        ==>   %r = stablehlo.while(...) {
    %r = stablehlo.while(...) {                                 %w_1 = stablehlo.slice %w [2:3, 0:8, 0:8] ... }
      %w_1 = stablehlo.slice %p [1:2, 0:8, 0:8] ... }
    ```
    """

    name: ClassVar[str] = "forward-gathers"

    def run(self, module: ir.Module) -> None:
        """Rewrite the gathers of `module`. Raises PassError when there is no loop in canonical form."""
        loop = MicrobatchLoop.of(module).op
        block, body = body_of(main_of(module)), loop.regions[1].blocks[0]
        forward = _Forward()
        for op in operations(block):
            for each in operations(body) if op == loop else (op,):
                forward.visit(each)
        if forward.found:
            for each in (body, block):
                _erase_dead(each)


def _erase_dead(block: ir.Block) -> None:
    for op in reversed(operations(block)[:-1]):
        if not any(map(is_used, op.results)) and not boundary.is_mark(op) and not has_side_effect(op):
            op.erase()


@dataclass(frozen=True)
class _Order:
    """What a value is made of: rows of `source`, one after the other. `gather`, if any, is what takes them from it."""

    source: ir.Value
    rows: tuple[int, ...]
    gather: ir.Operation | None = None


class _Forward:
    """Rewrites one operation after the other. `orders` is what is known of the values before it.

    `found` says whether there was any gather of known rows.
    """

    def __init__(self) -> None:
        self.orders: dict[ir.Value, _Order] = {}
        self.found = False

    def visit(self, op: ir.Operation) -> None:
        if op.name == "stablehlo.gather":
            self._gather(op)
        elif op.name == _BARRIER and not boundary.is_mark(op):
            self._barrier(op)
        elif len(op.results) != 1 or not any(value in self.orders for value in op.operands):
            return
        elif op.name == "stablehlo.slice":
            self._slice(op, self.orders[op.operands[0]])
        elif op.name == "stablehlo.reshape":
            self.orders[op.results[0]] = self.orders[op.operands[0]]
        elif op.name == "stablehlo.select" and op.operands[1] in self.orders and is_all_true(op.operands[0]):
            op.results[0].replace_all_uses_with(op.operands[1])
        elif is_elementwise(op) or keeps_rows(op):
            self._alike(op)

    def _gather(self, op: ir.Operation) -> None:
        rows, source = gathered_rows(op), op.operands[0]
        if not rows:
            return
        self.found = True
        made = defining_op(source)
        if made is not None and made.name == "stablehlo.concatenate" and made.block == op.block:
            _take_pieces(op, made, rows)
            return
        before = self.orders.get(source)
        if before is not None and len(before.rows) == shape_of(source)[0]:
            self.orders[op.results[0]] = _Order(before.source, tuple(before.rows[row] for row in rows))
        else:
            self.orders[op.results[0]] = _Order(source, tuple(rows), op)

    def _slice(self, op: ir.Operation, order: _Order) -> None:
        shape = shape_of(op.operands[0])
        starts, limits, strides = (
            list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("start_indices", "limit_indices", "strides")
        )
        first, count = starts[0] * len(order.rows), (limits[0] - starts[0]) * len(order.rows)
        plain = set(strides) == {1} and not any(starts[1:]) and limits[1:] == shape[1:]
        if not plain or first % shape[0] or count % shape[0]:
            return
        first, count, ip = first // shape[0], count // shape[0], ir.InsertionPoint(op)
        rows = order.rows[first : first + count]
        pieces = [rows_of(order.source, low, size, ip, op.location) for low, size in _runs(rows)]
        made = pieces[0]
        if len(pieces) > 1:
            made = concatenation(pieces, 0, with_rows(order.source.type, len(rows)), ip)
        op.results[0].replace_all_uses_with(reshaped(made, op.results[0].type, ip))

    def _alike(self, op: ir.Operation) -> None:
        """Do to the sources what `op` does to their rows."""
        orders = [self.orders[value] for value in op.operands if value in self.orders]
        shapes = [shape_of(order.source) for order in orders]
        order, shape, before = orders[0], shapes[0], shape_of(op.operands[0])
        if any(each.rows != order.rows for each in orders) or any(each != shape for each in shapes):
            return
        element = ir.RankedTensorType(op.results[0].type).element_type
        after = shape
        if op.name == "sdy.sharding_constraint" or not is_elementwise(op):
            if before != [len(order.rows), *shape[1:]]:
                return  # these count dimensions
            after = [shape[0], *shape_of(op.results[0])[1:]]
        operands: list[ir.Value] = []
        for value in op.operands:
            known, scalar = self.orders.get(value), splat(value)
            if known is not None:
                operands.append(known.source)
            elif not shape_of(value):
                operands.append(value)
            elif scalar is not None:
                type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
                operands.append(broadcast(scalar, type_, ir.InsertionPoint(op)))
            else:
                return
        made = ir.Operation.create(
            op.name,
            results=[ir.RankedTensorType.get(after, element)],
            operands=operands,
            attributes={name: op.attributes[name] for name in op.attributes},
            ip=ir.InsertionPoint(op),
            loc=op.location,
        )
        self.orders[op.results[0]] = _Order(made.results[0], order.rows)

    def _barrier(self, op: ir.Operation) -> None:
        """Let what the gathers take from pass the barrier, and gather after it."""
        orders = [self.orders.get(value) for value in op.operands]
        gathers = [None if order is None else order.gather for order in orders]
        if not any(gather is not None for gather in gathers):
            return
        operands = [
            value if gather is None else gather.operands[0] for value, gather in zip(op.operands, gathers, strict=True)
        ]
        made = ir.Operation.create(
            op.name,
            results=[value.type for value in operands],
            operands=operands,
            ip=ir.InsertionPoint(op),
            loc=op.location,
        )
        ip = ir.InsertionPoint(op)
        for old, new, gather, order in zip(op.results, made.results, gathers, orders, strict=True):
            value: ir.Value = new
            if gather is not None and order is not None:
                again = gather.clone(ip).operation
                again.operands[0] = new
                value = reshaped(again.results[0], old.type, ip)
                self.orders[value] = _Order(new, order.rows, again)
            old.replace_all_uses_with(value)


def _take_pieces(op: ir.Operation, whole: ir.Operation, rows: Sequence[int]) -> None:
    """Put together what `op` gathers of a concatenation along its first dimension from the pieces of that."""
    sizes = [shape_of(piece)[0] for piece in whole.operands]
    if ir.IntegerAttr(whole.attributes["dimension"]).value != 0 or len(set(sizes)) > 1:
        return
    size = gcd(sizes[0], *(first for first, _ in _runs(rows)), *(count for _, count in _runs(rows)))
    ip, pieces = ir.InsertionPoint(op), list[ir.Value]()
    for first in rows[::size]:
        piece = whole.operands[first // sizes[0]]
        pieces.append(piece if size == sizes[0] else rows_of(piece, first % sizes[0], size, ip, op.location))
    made = concatenation(pieces, 0, with_rows(op.operands[0].type, len(rows)), ip) if len(pieces) > 1 else pieces[0]
    op.results[0].replace_all_uses_with(reshaped(made, op.results[0].type, ip))


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """(first, number) of the rows that follow one another."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and sum(runs[-1]) == row:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs
