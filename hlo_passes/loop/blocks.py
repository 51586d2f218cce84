"""Values cut into equal blocks along their first dimension, and what is computed of them block by block."""

from collections.abc import Iterable, Sequence, Set

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.ir.values import defining_op, is_zero
from jaxpp.hlo_passes.loop.forward_rows import concatenation, rows_of

_ELEMENTWISE = frozenset(
    "stablehlo." + name
    for name in (
        "abs add and atan2 cbrt ceil clamp compare complex convert cosine divide exponential exponential_minus_one "
        "floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or power real "
        "reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left "
        "shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor"
    ).split()
)
_CONSTRAINT = "sdy.sharding_constraint"
_IDEMPOTENT = frozenset("stablehlo." + name for name in ("and", "maximum", "minimum", "or"))


def shape_of(value: ir.Value) -> list[int]:
    """The shape of a ranked tensor."""
    return list(ir.RankedTensorType(value.type).shape)


def is_elementwise(op: ir.Operation) -> bool:
    """Whether the one result of `op` has, at each place, what its operands have there; scalars count everywhere."""
    if len(op.results) != 1 or len(op.regions):
        return False
    if op.name not in _ELEMENTWISE and op.name != _CONSTRAINT and not op.name.startswith("chlo."):
        return False
    shapes = [shape_of(value) for value in op.operands]
    allowed = [[], shape_of(op.results[0])] if op.name in ("stablehlo.select", "stablehlo.clamp") else []
    return all(shape == shape_of(op.results[0]) or shape in allowed for shape in shapes)


def keeps_rows(op: ir.Operation) -> bool:
    """Whether `op` only moves or repeats what is in each row."""
    if len(op.operands) != 1 or len(op.results) != 1 or len(op.regions):
        return False
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    if not before or not after:
        return False
    if op.name == "stablehlo.reshape":
        return True  # row-major: equal blocks stay together
    if op.name == "stablehlo.transpose":
        return ir.DenseI64ArrayAttr(op.attributes["permutation"])[0] == 0
    if op.name == "stablehlo.broadcast_in_dim":
        dimensions = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        return before[0] == after[0] and dimensions[0] == 0
    return False


Homes = tuple[int, ...]
"""The mesh of each block, in the order of the blocks."""


class Blocks:
    """What is known in equal blocks: `parts` maps a value to them, `homes` to their meshes.

    New operations stand before the old ones, or all before the operation `anchor`.

    The old ones stay, so that whatever is not computed in blocks still has its operands; `whole` puts one together.
    `made` are the new operations, `replaced` the old ones whose result is in `parts`.

    Args:
        may_cut: the arguments of `@main` that may be cut too, where an operation has them beside blocks.
    """

    def __init__(self, may_cut: Set[ir.Value]) -> None:
        self.anchor: ir.Operation | None = None
        self.parts: dict[ir.Value, list[ir.Value]] = {}
        self.homes: dict[ir.Value, Homes] = {}
        self.made: set[ir.Operation] = set()
        self.replaced: set[ir.Operation] = set()
        self._may_cut = may_cut

    def visit(self, op: ir.Operation) -> None:
        """Compute `op` block by block, if operands are in blocks of the same homes, and rows don't depend on others."""
        homes = {self.homes[value] for value in op.operands if value in self.parts}
        if len(op.results) == 1 and op not in self.replaced and len(homes) == 1:
            self._split(op, homes.pop())

    def _split(self, op: ir.Operation, homes: Homes) -> None:
        made: list[ir.Value] | None = None
        if is_elementwise(op) or keeps_rows(op):
            made = self._each(op, op.operands, homes)
        elif op.name == "stablehlo.reduce":
            made = self._reduce(op, homes)
        elif op.name == "stablehlo.dot_general":
            made = self._product(op, homes)
        if made is not None:
            self.put(op.results[0], made, homes)
            self.replaced.add(op)

    def put(self, value: ir.Value, parts: list[ir.Value], homes: Homes) -> None:
        """Let these be the blocks of `value`."""
        self.parts[value], self.homes[value] = parts, homes

    def join(self, op: ir.Operation, homes: Homes) -> bool:
        """Take a concatenation of rows in blocks, where the pieces end where blocks do."""
        result = op.results[0]
        if ir.IntegerAttr(op.attributes["dimension"]).value != 0 or not _divides(result, homes):
            return False
        rows, groups, filled = shape_of(result)[0] // len(homes), list[list[ir.Value]]([[]]), 0
        for operand in op.operands:
            if filled == rows:
                groups.append([])
                filled = 0
            groups[-1].append(operand)
            filled += shape_of(operand)[0]
            if filled > rows:
                return False
        self.put(result, [self._joined(group, op) for group in groups], homes)
        self.replaced.add(op)
        return True

    def cut(self, value: ir.Value, homes: Homes) -> list[ir.Value]:
        """The blocks of `value`, sliced out of it right where it is made, if they aren't known."""
        if value not in self.parts:
            self.put(value, self._slices(value, len(homes)), homes)
        return self.parts[value]

    def _slices(self, value: ir.Value, count: int) -> list[ir.Value]:
        owner = value.owner
        begin = isinstance(owner, ir.Block)
        ip = ir.InsertionPoint.at_block_begin(owner) if begin else ir.InsertionPoint.after(owner.operation)
        rows = shape_of(value)[0] // count
        return [self.own(rows_of(value, n * rows, rows, ip, value.location)) for n in range(count)]

    def whole(self, value: ir.Value, ip: ir.InsertionPoint) -> ir.Value:
        """`value` put together from its blocks at `ip`."""
        return self.own(concatenation(self.parts[value], 0, value.type, ip))

    def own(self, value: ir.Value) -> ir.Value:
        """Count the operation that makes `value` as made here."""
        op = defining_op(value)
        assert op is not None
        self.made.add(op)
        return value

    def _at(self, op: ir.Operation) -> ir.InsertionPoint:
        return ir.InsertionPoint(self.anchor or op)

    def _joined(self, rows: Sequence[ir.Value], before: ir.Operation) -> ir.Value:
        if len(rows) == 1:
            return rows[0]
        total = sum(shape_of(row)[0] for row in rows)
        return self.own(concatenation(rows, 0, with_rows(rows[0].type, total), self._at(before)))

    def _operand(self, value: ir.Value, op: ir.Operation, homes: Homes) -> list[ir.Value]:
        """The blocks of an operand of `op` that has as many rows as its result: of a splat, a smaller splat."""
        if value in self.parts:
            return self.parts[value]
        splat = self._splat(value, op, len(homes))
        if splat is not None:
            return [splat] * len(homes)
        made = defining_op(value)
        if made is None and value not in self._may_cut:
            return self._slices(value, len(homes))
        others = made is not None and any(self.homes.get(each, homes) != homes for each in made.operands)
        if made is not None and is_elementwise(made) and made.block == op.block and not others:
            self._split(made, homes)  # a decayed moment meets blocks only where the gradient is added
        return self.cut(value, homes)

    def _splat(self, value: ir.Value, op: ir.Operation, count: int) -> ir.Value | None:
        made = defining_op(value)
        if made is None or made.name not in ("stablehlo.broadcast_in_dim", "stablehlo.constant"):
            return None
        type_ = with_rows(value.type, shape_of(value)[0] // count)
        if made.name == "stablehlo.broadcast_in_dim":
            if 0 in ir.DenseI64ArrayAttr(made.attributes["broadcast_dimensions"]):
                return None
            return self._clone(made, made.operands, type_, op)
        attribute = made.attributes["value"]
        if isinstance(type_.element_type, ir.ComplexType):
            return None  # jaxlib can't read its attribute
        if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
            return None
        smaller = ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value())
        made = ir.Operation.create(
            "stablehlo.constant",
            results=[type_],
            attributes={"value": smaller},
            ip=self._at(op),
            loc=made.location,
        )
        return self.own(made.results[0])

    def _each(self, op: ir.Operation, operands: Iterable[ir.Value], homes: Homes) -> list[ir.Value] | None:
        """`op` once for each block; None if an operand can't be cut."""
        result = op.results[0]
        if not _divides(result, homes):
            return None
        cut: list[Sequence[ir.Value]] = []
        for value in operands:
            if not shape_of(value):
                cut.append([value] * len(homes))
            elif _divides(value, homes):
                cut.append(self._operand(value, op, homes))
            else:
                return None
        type_ = with_rows(result.type, shape_of(result)[0] // len(homes))
        return [self._clone(op, each, type_, op) for each in zip(*cut, strict=True)]

    def _clone(self, op: ir.Operation, operands: Iterable[ir.Value], type_: ir.Type, before: ir.Operation) -> ir.Value:
        made = ir.Operation.create(
            op.name,
            results=[type_],
            operands=list(operands),
            attributes={name: op.attributes[name] for name in op.attributes},
            ip=self._at(before),
            loc=op.location,
        )
        return self.own(made.results[0])

    def _reduce(self, op: ir.Operation, homes: Homes) -> list[ir.Value] | None:
        """Reduce within each row, block by block; across rows the blocks' results are reduced too, to a whole value."""
        if len(op.operands) != 2:
            return None
        value, first = op.operands
        if 0 not in ir.DenseI64ArrayAttr(op.attributes["dimensions"]):
            if not _divides(op.results[0], homes):
                return None
            type_ = with_rows(op.results[0].type, shape_of(op.results[0])[0] // len(homes))
            return [self._reduce_block(op, block, first, type_) for block in self.parts[value]]
        inner = [each.operation.name for each in op.regions[0].blocks[0].operations]
        # Each block starts from `first`, which must not count twice.
        once = inner[0] in _IDEMPOTENT or (inner[0] == "stablehlo.add" and is_zero(first))
        if len(inner) != 2 or not once or value not in self.parts:
            return None
        partial = [self._reduce_block(op, block, first, op.results[0].type) for block in self.parts[value]]
        total = partial[0]
        for each in partial[1:]:
            made = ir.Operation.create(
                inner[0],
                results=[total.type],
                operands=[total, each],
                ip=self._at(op),
                loc=op.location,
            )
            total = self.own(made.results[0])
        op.results[0].replace_all_uses_with(total)
        return None

    def _reduce_block(self, op: ir.Operation, block: ir.Value, first: ir.Value, type_: ir.Type) -> ir.Value:
        made = op.clone(self._at(op)).operation
        made.operands[0], made.operands[1] = block, first
        if made.results[0].type != type_:
            made.results[0].set_type(type_)
        return self.own(made.results[0])

    def _product(self, op: ir.Operation, homes: Homes) -> list[ir.Value] | None:
        """A product of matrices for each row: the first dimension is one of the batch on both sides."""
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        left, right = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
        if not left or left[0] != 0 or right[0] != 0:
            return None
        return self._each(op, op.operands, homes)


def _divides(value: ir.Value, homes: Homes) -> bool:
    """Whether the first dimension of `value` can be cut into blocks."""
    shape = shape_of(value) if isinstance(value.type, ir.RankedTensorType) else []
    return bool(shape) and shape[0] > 0 and shape[0] % len(homes) == 0


def with_rows(type_: ir.Type, rows: int) -> ir.RankedTensorType:
    """The type of so many rows of what has `type_`."""
    whole = ir.RankedTensorType(type_)
    return ir.RankedTensorType.get([rows, *list(whole.shape)[1:]], whole.element_type)
