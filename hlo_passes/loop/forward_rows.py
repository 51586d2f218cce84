"""`forward-rows`: merges equal constants, forwards rows from writes to reads, and splits sums of stacks by rows."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.pieces import Evaluator
from jaxpp.hlo_passes.loop.transfer_functions import cut_dimension, gathered_rows
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.accumulators import ADD, CONSTRAINT, SUBTRACT, carried_updates
from jaxpp.ir.build import constant, erase_dead, recarried, remake
from jaxpp.ir.constant_arrays import Constants
from jaxpp.ir.counted import counters, handed_on
from jaxpp.ir.functions import body_of, loop_body, main_of, operations, terminator
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import shape_of
from jaxpp.ir.rows import concatenation, is_splat, resized, rows_of, slice_bounds, slice_of, with_size
from jaxpp.ir.values import defining_op, is_zero, origin

_UPDATE = "stablehlo.dynamic_update_slice"


class ForwardRows(Pass):
    """Forwards rows from where they are written, padded or gathered to where they are read, without a stack between.

    Before that, it merges equal constants, and equal broadcasts of them. JAX lowers each helper and each layer with
    constants of its own. In the step of a GPT with an optimizer, they are two fifths of all operations, and every later
    pass would read them. The merge makes no live range longer: every task makes its own constants (`assign-stages`,
    `infer-placement`). Other equal operations stay. The user may want to compute a value twice (`jax.checkpoint`), and
    a scalar is cheaper to send to another stage than its broadcast.

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
        """Merges constants and forwards rows in `@main` of `module`, and in the bodies of loops with stage marks."""
        block = body_of(main_of(module))
        _merge_constants(block)
        for loop in [op.operation for op in block.operations if op.name == "stablehlo.while"]:
            ops = operations(loop_body(loop))
            if any(map(boundary.is_mark, ops)):
                _forward(ops)
                erase_dead(_split_sums(loop).regions[1].blocks[0])
        _forward(operations(block))
        erase_dead(block)


def _merge_constants(block: ir.Block) -> None:
    """Merges equal constants of a block, and equal broadcasts of them; also inside of its loops."""
    first: dict[Hashable, ir.Value] = {}
    constants: set[ir.Value] = set()
    for op in operations(block):
        name = op.name
        if name == "stablehlo.while":
            for region in op.regions:
                _merge_constants(region.blocks[0])
        elif name == "stablehlo.constant" or (name == "stablehlo.broadcast_in_dim" and op.operands[0] in constants):
            kind, uses = kind_of(op)
            result = op.results[0]
            found = first.setdefault((kind, *uses), result)
            if found is not result:
                result.replace_all_uses_with(found)
                op.erase()
            elif not uses:
                constants.add(result)


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


def _split_sums(loop: ir.Operation) -> ir.Operation:
    """Rebuilds `loop` with a sum for each piece of the stacks that it sums, and concatenates these sums after it.

    A row to which only zeros are added stays outside of the loop, if its sum starts from zeros: no layer reads it.
    Returns the new loop, or `loop` if it sums no stack. The additions of whole stacks stay in the loop, without uses.
    """
    evaluator, count = Evaluator(), len(loop.operands)
    sums = {n: found for n in range(count) if (found := _sum(loop, n, evaluator)) is not None}
    if not sums:
        return loop
    parts = {n: found.initial(loop.operands[n], ir.InsertionPoint(loop)) for n, found in sums.items()}
    added = [
        (n, k, row)
        for n, found in sums.items()
        for k, row in enumerate(found.rows)
        if not (is_zero(parts[n][k]) and is_zero(row))
    ]
    both = recarried(loop, [parts[n][k] for n, k, _ in added])
    body, after = loop_body(both), ir.InsertionPoint.after(both)
    end = terminator(body)
    for position, (n, k, row) in enumerate(added, count):
        operands = [body.arguments[position], row]
        end.operands[position] = remake(sums[n].add, operands, [row.type], ip=ir.InsertionPoint(end)).results[0]
        parts[n][k] = both.results[position]
    for n, found in sums.items():
        both.results[n].replace_all_uses_with(concatenation(parts[n], found.dimension, after))
    return recarried(both, without=sums)


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
