"""What unrolled loops leave behind: integers that are known, and rows that are written to stacks and read again."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.constant_arrays import constant_array
from jaxpp.hlo_passes.ir.functions import has_side_effect, operations
from jaxpp.hlo_passes.ir.values import defining_op, is_used


def _chosen(which: int, one: int, other: int) -> int:
    return one if which else other


def _within(low: int, value: int, high: int) -> int:
    return min(max(low, value), high)


_ARITHMETIC: dict[str, Callable[..., int]] = {
    "stablehlo.add": operator.add,
    "stablehlo.subtract": operator.sub,
    "stablehlo.multiply": operator.mul,
    "stablehlo.minimum": min,
    "stablehlo.maximum": max,
    "stablehlo.negate": int.__neg__,
    "stablehlo.convert": int.__pos__,
    "stablehlo.select": _chosen,
    "stablehlo.clamp": _within,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


def forward_rows(block: ir.Block) -> None:
    """Make integers of `block` that are known constants, read written rows directly, and drop what is dead then."""
    forward = _Forward({}, {})
    for op in operations(block):
        forward.visit(op)
    forward.put_together()
    for op in reversed(operations(block)[:-1]):
        if not any(map(is_used, op.results)) and not boundary.is_mark(op) and not has_side_effect(op):
            op.erase()


@dataclass(frozen=True)
class _Stack:
    """A value of which single rows along `dimension` were written, over `base`; each row is of size 1 there."""

    base: ir.Value
    dimension: int
    rows: Mapping[int, ir.Value]


@dataclass(frozen=True)
class _Forward:
    """What is known of the values before an operation."""

    integers: dict[ir.Value, int]
    stacks: dict[ir.Value, _Stack]

    def visit(self, op: ir.Operation) -> None:
        if len(op.results) != 1:
            return
        integer = self._integer(op)
        if integer is not None:
            self._make_constant(op, integer)
        elif op.name == "stablehlo.dynamic_slice":
            self._read(op, self._bounds(op))
        elif op.name == "stablehlo.slice":
            bounds = [list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("start_indices", "limit_indices")]
            if set(ir.DenseI64ArrayAttr(op.attributes["strides"])) <= {1}:
                self._read(op, (bounds[0], bounds[1]))
        elif op.name == "stablehlo.dynamic_update_slice":
            self._write(op)
        elif op.name == "sdy.sharding_constraint" and op.operands[0] in self.stacks:
            self.stacks[op.results[0]] = self.stacks[op.operands[0]]
        elif op.name == "stablehlo.reshape":
            _undo_broadcast(op)

    def put_together(self) -> None:
        """Make stacks of which every row was written concatenations, where anything but a write uses them."""
        for value, stack in self.stacks.items():
            if len(stack.rows) != _shape(value)[stack.dimension] or not any(
                use.owner.operation.name != "stablehlo.dynamic_update_slice" for use in value.uses
            ):
                continue
            op = defining_op(value)
            if op is None or op.name != "stablehlo.dynamic_update_slice":
                continue
            rows = [stack.rows[k] for k in sorted(stack.rows)]
            value.replace_all_uses_with(concatenation(rows, stack.dimension, value.type, ir.InsertionPoint(op)))

    def _integer(self, op: ir.Operation) -> int | None:
        type_ = op.results[0].type
        if not isinstance(type_, ir.RankedTensorType) or type_.rank:
            return None
        element = type_.element_type
        if not isinstance(element, ir.IntegerType):
            return None
        if op.name == "stablehlo.constant":
            return int(ir.DenseIntElementsAttr(op.attributes["value"])[0])
        if op.name == "stablehlo.reshape":  # of one element of an array: the row of a layer, say
            array = constant_array(op.operands[0])
            return None if array is None else int(array.item())
        values = [self.integers[value] for value in op.operands if value in self.integers]
        if len(values) != len(op.operands):
            return None
        if op.name == "stablehlo.compare":
            direction = str(op.attributes["comparison_direction"])
            return next(int(holds(*values)) for name, holds in _COMPARISONS.items() if f" {name}>" in direction)
        if op.name not in _ARITHMETIC or (element.width == 1 and op.name != "stablehlo.select"):
            return None
        value = _ARITHMETIC[op.name](*values)
        bits = element.width - (not element.is_unsigned)
        return value if -(not element.is_unsigned) * 2**bits <= value < 2**bits else None

    def _make_constant(self, op: ir.Operation, integer: int) -> None:
        if op.name == "stablehlo.constant":
            self.integers[op.results[0]] = integer
            return
        type_ = ir.RankedTensorType(op.results[0].type)
        width = ir.IntegerType(type_.element_type).width
        literal = ("true" if integer else "false") if width == 1 else str(integer)
        value = ir.Attribute.parse(f"dense<{literal}> : {type_}")
        made = ir.Operation.create(
            "stablehlo.constant",
            results=[type_],
            attributes={"value": value},
            ip=ir.InsertionPoint(op),
            loc=op.location,
        )
        op.results[0].replace_all_uses_with(made.results[0])
        self.integers[made.results[0]] = integer

    def _bounds(self, op: ir.Operation) -> tuple[list[int], list[int]] | None:
        """Where a dynamic slice begins and ends, if that is known."""
        starts = [self.integers.get(value) for value in list(op.operands)[1:]]
        sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
        return _clamped(starts, sizes, _shape(op.operands[0]))

    def _read(self, op: ir.Operation, bounds: tuple[list[int], list[int]] | None) -> None:
        """Replace a slice by the row that was written there, or by one of what was there before any was."""
        if bounds is None:
            return
        source = op.operands[0]
        stack = self.stacks.get(source)
        if stack is not None:
            row = _row(bounds, _shape(source), stack.dimension)
            if row is not None and row in stack.rows:
                op.results[0].replace_all_uses_with(stack.rows[row])
                return
            if row is not None:
                source = stack.base
        if source == op.operands[0] and op.name == "stablehlo.slice":
            return
        made = slice_of(source, bounds, op.results[0].type, ir.InsertionPoint(op), op.location)
        op.results[0].replace_all_uses_with(made)

    def _write(self, op: ir.Operation) -> None:
        whole, update, *starts = list(op.operands)
        bounds = _clamped([self.integers.get(value) for value in starts], _shape(update), _shape(whole))
        if bounds is None:
            return
        before = self.stacks.get(whole)
        shape = _shape(whole)
        for dimension in range(len(shape)) if before is None else (before.dimension,):
            row = _row(bounds, shape, dimension)
            if row is not None:
                base, rows = (whole, {}) if before is None else (before.base, before.rows)
                self.stacks[op.results[0]] = _Stack(base, dimension, {**rows, row: update})
                return


def concatenation(rows: Sequence[ir.Value], dimension: int, type_: ir.Type, ip: ir.InsertionPoint) -> ir.Value:
    """The rows along `dimension`, in one."""
    made = ir.Operation.create(
        "stablehlo.concatenate",
        results=[type_],
        operands=list(rows),
        attributes={"dimension": at.i64(dimension)},
        ip=ip,
        loc=rows[0].location,
    )
    return made.results[0]


def slice_of(
    source: ir.Value, bounds: tuple[list[int], list[int]], type_: ir.Type, ip: ir.InsertionPoint, location: ir.Location
) -> ir.Value:
    """A slice with constant bounds."""
    starts, limits = bounds
    made = ir.Operation.create(
        "stablehlo.slice",
        results=[type_],
        operands=[source],
        attributes={
            "start_indices": at.i64s(starts),
            "limit_indices": at.i64s(limits),
            "strides": at.i64s([1] * len(starts)),
        },
        ip=ip,
        loc=location,
    )
    return made.results[0]


def rows_of(
    source: ir.Value, first: int, count: int, ip: ir.InsertionPoint, location: ir.Location, *, dimension: int = 0
) -> ir.Value:
    """The `count` rows of `source` along `dimension` from number `first` on."""
    whole = ir.RankedTensorType(source.type)
    starts, limits = [0] * whole.rank, list(whole.shape)
    starts[dimension], limits[dimension] = first, first + count
    shape = [high - low for low, high in zip(starts, limits, strict=True)]
    return slice_of(source, (starts, limits), ir.RankedTensorType.get(shape, whole.element_type), ip, location)


def _undo_broadcast(op: ir.Operation) -> None:
    """A value that got a dimension of size 1, to be a row, and lost it again, is itself."""
    made = defining_op(op.operands[0])
    if made is not None and made.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        value = made.operands[0]
        dimensions = made.attributes.get("broadcast_dimensions")
        ascending = dimensions is None or list(ir.DenseI64ArrayAttr(dimensions)) == sorted(
            ir.DenseI64ArrayAttr(dimensions)
        )
        if value.type == op.results[0].type and ascending and _size(value) == _size(op.operands[0]):
            op.results[0].replace_all_uses_with(value)


def _clamped(
    starts: Sequence[int | None], sizes: Sequence[int], shape: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Starts as StableHLO takes them, inside of the shape, and ends; None for a start that is unknown."""
    known = [start for start in starts if start is not None]
    if len(known) != len(starts):
        return None
    begins = [min(max(start, 0), whole - size) for start, size, whole in zip(known, sizes, shape, strict=True)]
    return begins, [begin + size for begin, size in zip(begins, sizes, strict=True)]


def _row(bounds: tuple[list[int], list[int]], shape: Sequence[int], dimension: int) -> int | None:
    """The number of the row along `dimension` that the bounds enclose, and nothing else."""
    starts, limits = bounds
    others = [k for k in range(len(shape)) if k != dimension]
    if limits[dimension] - starts[dimension] != 1 or any((starts[k], limits[k]) != (0, shape[k]) for k in others):
        return None
    return starts[dimension]


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _size(value: ir.Value) -> int:
    size = 1
    for each in _shape(value):
        size *= each
    return size
