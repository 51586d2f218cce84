"""Transfer functions: for each operation, how the rows of its result follow from the rows of its operands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import combine
from jaxpp.ir.constant_arrays import Constants, is_all_true
from jaxpp.ir.counted import handed_on
from jaxpp.ir.functions import body_of, reducer, terminator
from jaxpp.ir.ops import COMMUTATIVE, is_elementwise, shape_of
from jaxpp.ir.rows import clamped_bounds, concatenation, reshaped, rows_of, slice_bounds, with_size
from jaxpp.ir.values import defining_op, is_zero

_CONSTRAINT = "sdy.sharding_constraint"
_EDGES = "edge_padding_low", "edge_padding_high", "interior_padding"


class Rows(NamedTuple):
    """`size` rows of `source` along `dimension`, from `first` on; a scalar source has one value for all rows."""

    source: ir.Value
    dimension: int
    first: int
    size: int


Along = tuple[ir.Value, int]
"""A value, and one of its dimensions."""


@dataclass(frozen=True)
class Moved:
    """A value that consists of rows of other values, one after the other.

    Attributes:
        parts: the number of rows of each part, and the rows of the source that it consists of.
        is_new: whether this is useful even if nothing is known about the sources.
    """

    parts: Sequence[tuple[int, Rows]]
    is_new: bool = True

    @property
    def operands(self) -> list[Along | None]:
        """The values to which the rows belong, each with a dimension; None for a scalar."""
        return [(rows.source, rows.dimension) if shape_of(rows.source) else None for _, rows in self.parts]


@dataclass(frozen=True)
class Mapped:
    """A value of which each row is computed from the same row of its operands.

    Attributes:
        operands: each operand with the dimension of its rows; None if each row needs all of the operand.
        keeps_shape: whether the operation is valid in any other shape too.
    """

    operands: Sequence[Along | None]
    keeps_shape: bool = False


def transfer_function(value: ir.Value, dimension: int) -> Moved | Mapped | None:
    """Returns how the operation that makes `value` treats its rows along `dimension`; None if nothing is known.

    For a gather or scatter, simpler operations with the same result are made right before it. They stay unused if
    nothing follows from them.
    """
    op = defining_op(value)
    if op is None:
        outside = handed_on(value)
        return None if outside is None else _same(outside, dimension)
    if op.name in _MOVES:
        found = _MOVES[op.name](op, value, dimension)
        if found is not None:
            parts = [(size, _unsliced(rows)) for size, rows in found.parts if size]
            return Moved(parts, found.is_new) if parts else None
    return mapped(op, dimension)


def mapped(op: ir.Operation, dimension: int = 0) -> Mapped | None:
    """Returns how `op` computes each row of its one result from the same row of its operands; None if it does not."""
    if len(op.results) != 1 or not isinstance(op.results[0].type, ir.RankedTensorType):
        return None
    if dimension >= len(shape_of(op.results[0])):
        return None
    if is_elementwise(op):
        shape = shape_of(op.results[0])
        operands = [(each, dimension) if shape_of(each) == shape else None for each in op.operands]
        return Mapped(operands, keeps_shape=op.name != _CONSTRAINT)
    along = _MAPS[op.name](op, dimension) if op.name in _MAPS else None
    if along is None:
        return None
    pairs = zip(op.operands, along, strict=True)
    return Mapped([None if number is None else (operand, number) for operand, number in pairs])


def is_by_rows(op: ir.Operation, number: int = 0) -> bool:
    """Returns whether `op` computes each of several equal blocks of rows from the same block of an operand."""
    if op.name == "stablehlo.reshape":
        return bool(shape_of(op.operands[0]) and shape_of(op.results[0]))
    along = mapped(op)
    return along is not None and bool(along.operands) and along.operands[number] == (op.operands[number], 0)


def _all(value: ir.Value, dimension: int) -> Rows:
    return Rows(value, dimension, 0, shape_of(value)[dimension])


def _same(value: ir.Value, dimension: int) -> Moved:
    return Moved([(shape_of(value)[dimension], _all(value, dimension))], is_new=False)


def _unsliced(rows: Rows) -> Rows:
    """Returns rows of a slice as rows of the operand of the slice."""
    while (op := defining_op(rows.source)) is not None and (bounds := slice_bounds(op)) is not None:
        if cut_dimension(bounds, shape_of(op.operands[0])) not in (rows.dimension, None):
            break
        rows = Rows(op.operands[0], rows.dimension, bounds[rows.dimension][0] + rows.first, rows.size)
    return rows


def _slice(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    bounds, whole = slice_bounds(op), op.operands[0]
    if bounds is None:
        return _every(op, value, dimension)
    if cut_dimension(bounds, shape_of(whole)) not in (dimension, None):
        return None
    first, size = bounds[dimension]
    return Moved([(size, Rows(whole, dimension, first, size))], is_new=False)


def _every(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    """Handles a slice with a stride, such as every second row."""
    starts, strides = at.integers(op, "start_indices"), at.integers(op, "strides")
    sizes, whole = shape_of(value), op.operands[0]
    if not strides or shape_of(whole) != [*with_size(value.type, dimension, shape_of(whole)[dimension]).shape]:
        return None
    first, step = starts[dimension], strides[dimension]
    return Moved([(1, Rows(whole, dimension, first + step * k, 1)) for k in range(sizes[dimension])])


def cut_dimension(bounds: Sequence[tuple[int, int]], shape: Sequence[int]) -> int | None:
    """Returns the one dimension of which the bounds leave elements out; None if they keep all, -1 for several."""
    cut = [d for d, ((_, size), whole) in enumerate(zip(bounds, shape, strict=True)) if size < whole]
    return -1 if len(cut) > 1 else next(iter(cut), None)


def _concatenate(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    if ir.IntegerAttr(op.attributes["dimension"]).value != dimension:
        return None
    return Moved([(shape_of(each)[dimension], _all(each, dimension)) for each in op.operands])


def _pad(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    """Handles a value that is padded along this dimension only: outside, or between its rows."""
    edges = list(zip(*(at.integers(op, name) for name in _EDGES), strict=True))
    low, high, interior = edges.pop(dimension)
    if any(map(any, edges)) or min(low, high) < 0:
        return None
    inside, fill = op.operands
    rows = [_all(inside, dimension)]
    if interior:
        size = shape_of(inside)[dimension]
        rows = [each for k in range(size) for each in (Rows(fill, 0, 0, interior), Rows(inside, dimension, k, 1))][1:]
    parts = [Rows(fill, 0, 0, low), *rows, Rows(fill, 0, 0, high)]
    return Moved([(rows.size, rows) for rows in parts if rows.size])


def _update(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    """Follows a chain of writes of rows, which have the size of the whole value along all other dimensions."""
    shape, parts = shape_of(value), dict[int, Rows]()
    free = [(0, shape[dimension])]  # the rows that no later write overwrites
    made: ir.Operation | None = op
    while made is not None and made.name == op.name:
        whole, update, *starts = made.operands
        sizes, bounds = shape_of(update), clamped_bounds(whole, starts, shape_of(update))
        if bounds is None or sizes[:dimension] + sizes[dimension + 1 :] != shape[:dimension] + shape[dimension + 1 :]:
            break
        first, size = bounds[dimension]
        written = [(max(low, first), min(high, first + size)) for low, high in free]
        parts.update((low, Rows(update, dimension, low - first, high - low)) for low, high in written if low < high)
        around = [(low, min(high, first)) for low, high in free] + [
            (max(low, first + size), high) for low, high in free
        ]
        free = [(low, high) for low, high in around if low < high]
        value, made = whole, defining_op(whole)
    if not parts:
        return None
    parts.update((low, Rows(value, dimension, low, high - low)) for low, high in free)
    return Moved([(parts[low].size, parts[low]) for low in sorted(parts)])


def _reshape(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    """Handles the first dimension: elements are in row-major order, so its rows stay together in the new shape."""
    before = shape_of(op.operands[0])
    if dimension or not before or not before[0]:
        return None
    return Moved([(shape_of(value)[0], _all(op.operands[0], 0))], is_new=False)


def _select(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    return _same(op.operands[1], dimension) if is_all_true(op.operands[0]) else None


def _barrier(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    """Looks through a barrier of `jax.checkpoint` around a value from outside of the loop: it is in memory anyway."""
    before = op.operands[ir.OpResult(value).result_number]
    return None if boundary.is_mark(op) or not _is_from_outside(before, op.block) else _same(before, dimension)


def _is_from_outside(value: ir.Value, block: ir.Block) -> bool:
    """Returns whether `value` comes from outside of `block`, possibly through unary operations and gathers."""
    op = defining_op(value)
    while op is not None and op.block == block:
        if len(op.operands) != 1 and op.name != "stablehlo.gather":
            return False
        value = op.operands[0]
        op = defining_op(value)
    return op is not None or ir.BlockArgument(value).owner != block or handed_on(value) is not None


def _reverse(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    if at.integers(op, "dimensions") != [dimension]:
        return None
    size = shape_of(value)[dimension]
    return Moved([(1, Rows(op.operands[0], dimension, size - 1 - k, 1)) for k in range(size)])


def _gather(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    rows = None if dimension else gathered_rows(op)
    if not rows:
        return None
    source, ip = op.operands[0], ir.InsertionPoint(op)
    if len(rows) == 1:  # if the index has rank 0, the first dimension of the result belongs to the row
        return Moved([(shape_of(value)[0], Rows(source, 0, rows[0], 1))])
    each = len(rows) // shape_of(value)[0]
    runs = _runs(dict(enumerate(rows)))
    if not any(place % each or size % each for place, _, size in runs):
        return Moved([(size // each, Rows(source, 0, first, size)) for _, first, size in runs])
    parts: list[tuple[int, Rows]] = []
    for number in range(0, len(rows), each):
        inner = _runs(dict(enumerate(rows[number : number + each])))
        together = concatenation([rows_of(source, 0, first, size, ip) for _, first, size in inner], 0, ip)
        parts.append((1, Rows(source, 0, inner[0][1], each) if len(inner) == 1 else _all(together, 0)))
    return Moved(parts)


def gathered_rows(op: ir.Operation) -> list[int] | None:
    """Returns the rows of its first operand that a gather takes, in order; None if it doesn't take whole rows."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    if numbers.operand_batching_dims or numbers.start_indices_batching_dims or numbers.start_index_map != [0]:
        return None
    whole, *row = shape_of(op.operands[0])
    count, *taken = at.integers(op, "slice_sizes")
    if taken != row or numbers.collapsed_slice_dims not in ([], [0]):
        return None
    firsts = _indices(op.operands[1], numbers.index_vector_dim, op.results[0], numbers.offset_dims)
    if firsts is None:
        return None
    clamped = [min(max(first, 0), whole - count) for first in firsts]  # as a gather does
    return [first + k for first in clamped for k in range(count)]


def _scatter(op: ir.Operation, value: ir.Value, dimension: int) -> Moved | None:
    """Handles rows that are set, or combined with others, at constant indices."""
    rows = None if dimension else scattered_rows(op)
    if not rows:
        return None
    whole, _, update = op.operands
    ip = ir.InsertionPoint(op)
    flat = reshaped(update, with_size(value.type, 0, len(rows)), ip)
    rounds = list[dict[int, int]]()  # each round writes a row at most once
    for number, row in enumerate(rows):
        free = next((each for each in rounds if row not in each), None)
        if free is None:
            rounds.append(free := {})
        free[row] = number
    parts, operator = [_all(whole, 0)], reducer(op)
    for numbers in rounds:
        whole = _put_together(parts, ip)
        parts = _replaced(whole, flat, numbers)
        if operator is not None and not (operator == "stablehlo.add" and is_zero(whole)):
            both = combine(operator, [whole, _put_together(parts, ip)], ip, op.location)
            parts = _replaced(whole, both, {row: row for row in numbers})
    return Moved([(each.size, each) for each in parts])


def _put_together(parts: Sequence[Rows], ip: ir.InsertionPoint) -> ir.Value:
    return concatenation([rows_of(each.source, 0, each.first, each.size, ip) for each in parts], 0, ip)


def _replaced(whole: ir.Value, rows: ir.Value, numbers: dict[int, int]) -> list[Rows]:
    """Returns the parts of `whole` after some of its rows are replaced; `numbers` maps each to its index in `rows`."""
    parts, end = list[Rows](), 0
    for place, first, size in [*_runs(dict(sorted(numbers.items()))), (shape_of(whole)[0], 0, 0)]:
        parts += [Rows(whole, 0, end, place - end)] if place > end else []
        parts += [Rows(rows, 0, first, size)] if size else []
        end = place + size
    return parts


def scattered_rows(op: ir.Operation) -> list[int] | None:
    """Returns the index of each row that a scatter combines with others, or sets; None if it does anything else."""
    if len(op.operands) != 3 or not (reducer(op) in COMMUTATIVE or _sets(op)):
        return None
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    if numbers.input_batching_dims or numbers.scattered_dims_to_operand_dims != [0]:
        return None
    shape, update = shape_of(op.results[0]), op.operands[2]
    firsts = _indices(op.operands[1], numbers.index_vector_dim, update, numbers.update_window_dims)
    window = [shape_of(update)[dimension] for dimension in numbers.update_window_dims]
    if firsts is None or numbers.inserted_window_dims not in ([], [0]):
        return None
    count, *taken = window if not numbers.inserted_window_dims else [1, *window]
    rows, whole = [first + k for first in firsts for k in range(count)], taken == shape[1:]
    # A scatter drops rows outside of the stack. It does not define which of two rows at one index it sets last.
    if not rows or not whole or min(rows) < 0 or max(rows) >= shape[0] or (_sets(op) and len({*rows}) < len(rows)):
        return None
    return rows


def _sets(scatter: ir.Operation) -> bool:
    """Returns whether a scatter overwrites elements: its body returns the new element."""
    body = body_of(scatter)
    return [*terminator(body).operands] == [*body.arguments][1:]


def _indices(indices: ir.Value, vector: int, value: ir.Value, window: list[int]) -> list[int] | None:
    """Returns the indices, in the order in which their rows stand in `value`; None if they are not constant."""
    shape = shape_of(indices)
    if vector == len(shape) - 1 and shape[vector] == 1:
        shape.pop()
    elif vector != len(shape):
        return None
    if list(window) != list(range(len(shape), len(shape_of(value)))):
        return None
    found = Constants().array(indices)
    return None if found is None else [int(row) for row in found.reshape(-1)]


def _runs(rows: dict[int, int]) -> list[tuple[int, int, int]]:
    """Groups rows into runs (place, first, size): consecutive rows in consecutive places."""
    runs: list[tuple[int, int, int]] = []
    for place, row in rows.items():
        start, first, size = runs[-1] if runs else (0, 0, 0)
        if runs and (start + size, first + size) == (place, row):
            runs[-1] = (start, first, size + 1)
        else:
            runs.append((place, row, 1))
    return runs


def _broadcast(op: ir.Operation, dimension: int) -> list[int | None] | None:
    dimensions = at.integers(op, "broadcast_dimensions")
    if dimension not in dimensions:
        return None
    number = dimensions.index(dimension)
    return [number] if shape_of(op.operands[0])[number] == shape_of(op.results[0])[dimension] else None


def _transpose(op: ir.Operation, dimension: int) -> list[int | None] | None:
    return [at.integers(op, "permutation")[dimension]]


def _reduce(op: ir.Operation, dimension: int) -> list[int | None] | None:
    """Handles a reduction within each row."""
    if len(op.operands) != 2:
        return None
    reduced = set(at.integers(op, "dimensions"))
    return [[d for d in range(len(shape_of(op.operands[0]))) if d not in reduced][dimension], None]


def _product(op: ir.Operation, dimension: int) -> list[int | None] | None:
    """Handles a product of matrices for each row: the dimension is a batch dimension of both operands."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    return [left[dimension], right[dimension]] if dimension < len(left) else None


def _pads(op: ir.Operation, dimension: int) -> list[int | None] | None:
    """Handles padding, or cutting, within each row."""
    return None if any(at.integers(op, name)[dimension] for name in _EDGES) else [dimension, None]


_MOVES: dict[str, Callable[[ir.Operation, ir.Value, int], Moved | None]] = {
    "stablehlo.concatenate": _concatenate,
    "stablehlo.dynamic_slice": _slice,
    "stablehlo.dynamic_update_slice": _update,
    "stablehlo.gather": _gather,
    "stablehlo.optimization_barrier": _barrier,
    "stablehlo.pad": _pad,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.scatter": _scatter,
    "stablehlo.select": _select,
    "stablehlo.slice": _slice,
}
_MAPS: dict[str, Callable[[ir.Operation, int], list[int | None] | None]] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.dot_general": _product,
    "stablehlo.pad": _pads,
    "stablehlo.reduce": _reduce,
    "stablehlo.transpose": _transpose,
}
