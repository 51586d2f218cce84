"""Sums over a sharded dimension, kept as one summand per group of devices.

`sum over n rows` is `sum over D groups of (sum over n/D rows)`. Suppose that the rows are sharded over D devices. A
tensor with one more dimension of size D, sharded over the same axes, holds the summand of each device, and no device
needs the summand of another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD
from jaxpp.ir.build import constant, remake, sharded
from jaxpp.ir.functions import reducer
from jaxpp.ir.linear_terms import is_sum
from jaxpp.ir.ops import linear_in, shape_of
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes, without
from jaxpp.ir.values import defining_op, is_zero, only_use

REDUCE, SCATTER, DOT = "stablehlo.reduce", "stablehlo.scatter", "stablehlo.dot_general"

# For some operands, by index, the dimension along which the operation sums in groups.
GroupedDimensions = Mapping[int, int]


@dataclass(frozen=True, eq=False)
class PartialSum:
    """A value that is a sum over `axes`, or a linear function of such sums; each value on the way has a single use.

    `steps` holds the operations from the value back to the sums. A sum comes with its grouped dimensions, a linear
    operation with the indices of the operands that are partial sums.
    """

    axes: tuple[str, ...]
    steps: list[tuple[ir.Operation, GroupedDimensions | Sequence[int]]]


def find(mesh: MeshAxes, value: ir.Value, body: ir.Block) -> PartialSum | None:
    """Returns `value` as a sum over a sharded dimension, computed in `body`; None if it is no such sum."""
    axes: tuple[str, ...] = ()
    steps: list[tuple[ir.Operation, GroupedDimensions | Sequence[int]]] = []
    work = [value]
    while work:
        current = work.pop()
        op = defining_op(current)
        if op is None or op.block != body or len(op.results) != 1 or only_use(current) is None:
            return None
        found, cuts = _sum(mesh, op)
        if found:
            if axes and axes != found:
                return None
            axes = found
            steps.append((op, cuts))
            continue
        numbers = _linear_in(op, body)
        if not numbers:
            return None
        steps.append((op, numbers))
        work.extend(op.operands[number] for number in numbers)
    return PartialSum(axes, steps)


def _sum(mesh: MeshAxes, op: ir.Operation) -> tuple[tuple[str, ...], GroupedDimensions]:
    """Returns the axes over which `op` sums and the dimensions of its operands that they shard; no axes if there are
    none.
    """
    if op.name == DOT:
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        pairs = zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)
        choices: list[dict[int, int]] = [{0: left, 1: right} for left, right in pairs]
    elif op.name == REDUCE and is_sum(op):
        choices = [{0: dimension} for dimension in at.integers(op, "dimensions")]
    elif op.name == SCATTER and reducer(op) == ADD and len(op.operands) == 3 and is_zero(op.operands[0]):
        choices = _rows_of_scatter(op)
    else:
        return (), {}
    for cuts in choices:
        found = _axes_of_cut(mesh, op, cuts)
        if found:
            return found, cuts
    return (), {}


def _axes_of_cut(mesh: MeshAxes, op: ir.Operation, cuts: GroupedDimensions) -> tuple[str, ...]:
    """Returns the axes that shard the operands of `op` along `cuts`.

    Returns no axes if the operands differ in them, if the shards are unequal, or if an axis also shards another
    dimension.
    """
    shardings = [(mesh.read(op.operands[number]), dimension) for number, dimension in cuts.items()]
    choices = {axes[dimension] for axes, dimension in shardings} - {()}
    if len(choices) != 1:
        return ()
    (found,) = choices
    number, dimension = next(iter(cuts.items()))
    whole = shape_of(op.operands[number])[dimension] % mesh.count(found) == 0
    alone = all(
        set(found).isdisjoint(others)
        for axes, dimension in shardings
        for others in (*axes[:dimension], *axes[dimension + 1 :])
    )
    return found if whole and alone else ()


def _rows_of_scatter(op: ir.Operation) -> list[dict[int, int]]:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    if numbers.input_batching_dims:
        return []
    indices, updates = (ir.RankedTensorType(op.operands[number].type).rank for number in (1, 2))
    rows = [dimension for dimension in range(indices) if dimension != numbers.index_vector_dim]
    kept = [dimension for dimension in range(updates) if dimension not in numbers.update_window_dims]
    return [{1: row, 2: dimension} for row, dimension in zip(rows, kept, strict=True)]


def _linear_in(op: ir.Operation, body: ir.Block) -> Sequence[int]:
    """Returns the indices of the operands in which `op` is linear, if its other operands may be factors of each
    summand.
    """
    if op.name == "stablehlo.pad":
        return (0,) if is_zero(op.operands[1]) else ()
    if op.name == REDUCE:
        return (0,) if is_sum(op) else ()
    groups = linear_in(op)
    if len(groups) > 1:
        factors = {number for number, value in enumerate(op.operands) if _is_factor(value, body)}
        groups = [group for group in groups if factors.issuperset(set(range(len(op.operands))).difference(group))]
    return groups[0] if len(groups) == 1 else ()


def _is_factor(value: ir.Value, body: ir.Block) -> bool:
    op = defining_op(value)
    made_small = op is not None and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.constant")
    return op is None or op.block != body or made_small or len(list(value.uses)) > 1


@dataclass
class Stacker:
    """Computes partial sums with a new first dimension, sharded over their axes: one summand per device."""

    mesh: MeshAxes
    axes: tuple[str, ...]
    _values: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])

    def rewrite(self, partial: PartialSum) -> ir.Value:
        """Computes the partial sums next to the operations of the sum; the caller erases these operations."""
        value = partial.steps[0][0].results[0]
        for op, how in reversed(partial.steps):
            ip = ir.InsertionPoint(op)
            made = self._in_groups(op, how, ip) if isinstance(how, Mapping) else self._linear(op, ip)
            self._values[op.results[0]] = made
        return self._values[value]

    def type_of(self, type_: ir.Type) -> ir.Type:
        """Returns a tensor type with the new dimension in front."""
        return stack_type(type_, self.mesh.count(self.axes))

    def sharding_of(self, value: ir.Value) -> ir.Attribute:
        """Returns the sharding of the stacked form of `value`."""
        return self.mesh.attribute([self.axes, *without(self.mesh.read(value), self.axes)])

    def zeros(self, like: ir.Value, ip: ir.InsertionPoint) -> ir.Value:
        """Returns the zeros from which the summands of all devices start."""
        made = constant(self.type_of(like.type), 0, ip=ip, loc=like.location)
        return sharded(made, self.sharding_of(like))

    def like(
        self, op: ir.Operation, operands: Sequence[ir.Value], ip: ir.InsertionPoint, **changed: ir.Attribute
    ) -> ir.Value:
        """Makes `op` on other operands, its result with the new dimension; `changed` attributes replace its own."""
        result = op.results[0]
        made = remake(op, operands, [self.type_of(result.type)], changed, ip=ip)
        return sharded(made.results[0], self.sharding_of(result))

    def _linear(self, op: ir.Operation, ip: ir.InsertionPoint) -> ir.Value:
        operands = [self._values.get(value, value) for value in op.operands]
        if op.name in ("stablehlo.multiply", "stablehlo.divide"):
            number = next(n for n, value in enumerate(op.operands) if value not in self._values)
            operands[number] = self._repeated(operands[number], ip)
        return self.like(op, operands, ip, **self._behind(op))

    def _behind(self, op: ir.Operation) -> dict[str, ir.Attribute]:
        """Returns the attributes of `op` that speak of dimensions, with the new first dimension."""
        lists = {"permutation": [0], "broadcast_dimensions": [0], "dimensions": list[int]()}
        entries = {"start_indices": 0, "limit_indices": self.mesh.count(self.axes), "strides": 1}
        entries |= {"edge_padding_low": 0, "edge_padding_high": 0, "interior_padding": 0}
        found = {name: [*first, *_plus_one(at.integers(op, name))] for name, first in lists.items()}
        found |= {name: [first, *at.integers(op, name)] for name, first in entries.items()}
        return {name: at.i64s(numbers) for name, numbers in found.items() if name in op.attributes}

    def _in_groups(self, op: ir.Operation, cuts: GroupedDimensions, ip: ir.InsertionPoint) -> ir.Value:
        operands = [self._cut(v, cuts[n], ip) if n in cuts else v for n, v in enumerate(op.operands)]
        if op.name == REDUCE:
            return self.like(op, operands, ip, **self._behind(op))
        if op.name == DOT:
            old = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
            numbers = stablehlo.DotDimensionNumbers.get(
                [0, *_plus_one(old.lhs_batching_dimensions)],
                [0, *_plus_one(old.rhs_batching_dimensions)],
                _plus_one(old.lhs_contracting_dimensions),
                _plus_one(old.rhs_contracting_dimensions),
            )
            return self.like(op, operands, ip, dot_dimension_numbers=numbers)
        operands[0] = self.zeros(op.results[0], ip)
        scatter = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        numbers = stablehlo.ScatterDimensionNumbers.get(
            _plus_one(scatter.update_window_dims),
            _plus_one(scatter.inserted_window_dims),
            [0],
            [0],
            _plus_one(scatter.scattered_dims_to_operand_dims),
            scatter.index_vector_dim + 1,
        )
        return self.like(op, operands, ip, scatter_dimension_numbers=numbers)

    def _cut(self, value: ir.Value, dimension: int, ip: ir.InsertionPoint) -> ir.Value:
        """Returns `value` with `dimension` cut into groups; the first dimension of the result is the index of the
        group.
        """
        type_ = ir.RankedTensorType(value.type)
        groups = self.mesh.count(self.axes)
        others = without(self.mesh.read(value), self.axes)
        shape = [*type_.shape[:dimension], groups, type_.shape[dimension] // groups, *type_.shape[dimension + 1 :]]
        axes = [*others[:dimension], self.axes, *others[dimension:]]
        made = stablehlo.reshape(ir.RankedTensorType.get(shape, type_.element_type), value, ip=ip, loc=value.location)
        value = sharded(made, self.mesh.attribute(axes), value)
        if dimension == 0:
            return value
        order = [dimension, *(n for n in range(len(shape)) if n != dimension)]
        made = stablehlo.transpose(value, order, ip=ip, loc=value.location)
        return sharded(made, self.mesh.attribute([axes[n] for n in order]), value)

    def _repeated(self, value: ir.Value, ip: ir.InsertionPoint) -> ir.Value:
        dimensions = range(1, ir.RankedTensorType(value.type).rank + 1)
        type_ = self.type_of(value.type)
        made = stablehlo.broadcast_in_dim(type_, value, list(dimensions), ip=ip, loc=value.location)
        return sharded(made, self.sharding_of(value), value)


def _plus_one(dimensions: Sequence[int]) -> list[int]:
    return [dimension + 1 for dimension in dimensions]
