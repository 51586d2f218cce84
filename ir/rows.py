"""Tensors and rows of them: their shapes and types, and the operations that take rows out and join them."""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir import tensors
from jaxpp.ir.counted import constant_integer
from jaxpp.ir.ops import shape_of
from jaxpp.ir.values import defining_op


def with_size(type_: ir.Type, dimension: int, size: int) -> ir.RankedTensorType:
    """Returns `type_` with another size along one dimension."""
    whole = ir.RankedTensorType(type_)
    shape = list(whole.shape)
    shape[dimension] = size
    return ir.RankedTensorType.get(shape, whole.element_type)


def stack_type(type_: ir.Type, rows: int) -> ir.RankedTensorType:
    """Returns the type of a stack of so many values of `type_`, along an additional first dimension."""
    one = ir.RankedTensorType(type_)
    return ir.RankedTensorType.get([rows, *one.shape], one.element_type, loc=ir.Location.unknown(one.context))


def concatenation(values: Sequence[ir.Value], dimension: int, ip: ir.InsertionPoint) -> ir.Value:
    """Returns the concatenation of `values` along `dimension`; a single value as it is."""
    if len(values) == 1:
        return values[0]
    return stablehlo.concatenate(values, dimension, ip=ip, loc=values[0].location)


def slice_of(
    source: ir.Value, starts: Sequence[int], sizes: Sequence[int], ip: ir.InsertionPoint, location: ir.Location
) -> ir.Value:
    """Returns a slice with constant bounds."""
    limits = [start + size for start, size in zip(starts, sizes, strict=True)]
    return stablehlo.slice(source, starts, limits, [1] * len(starts), ip=ip, loc=location)


def rows_of(source: ir.Value, dimension: int, first: int, size: int, ip: ir.InsertionPoint) -> ir.Value:
    """Returns `size` rows of `source` along `dimension`, from `first` on; `source` itself if these are all."""
    sizes = shape_of(source)
    if sizes[dimension] == size:
        return source
    starts = [0] * len(sizes)
    starts[dimension], sizes[dimension] = first, size
    return slice_of(source, starts, sizes, ip, source.location)


def slice_bounds(op: ir.Operation) -> list[tuple[int, int]] | None:
    """Returns (start, size) along each dimension of a slice, or of a dynamic slice at constant starts.

    Returns None for other operations, other starts, and strides other than 1.
    """
    if op.name == "stablehlo.dynamic_slice":
        return clamped_bounds(op.operands[0], list(op.operands)[1:], at.integers(op, "slice_sizes"))
    if op.name != "stablehlo.slice" or not set(at.integers(op, "strides")) <= {1}:
        return None
    starts, limits = (at.integers(op, name) for name in ("start_indices", "limit_indices"))
    return [(start, limit - start) for start, limit in zip(starts, limits, strict=True)]


def clamped_bounds(whole: ir.Value, starts: Sequence[ir.Value], sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """Returns (start, size) along each dimension, clamped to the shape as in StableHLO; None for an unknown start."""
    found: list[tuple[int, int]] = []
    for start, size, most in zip(starts, sizes, shape_of(whole), strict=True):
        known = constant_integer(start) if size < most else 0
        if known is None:
            return None
        found.append((min(max(known, 0), most - size), size))
    return found


def reshaped(value: ir.Value, type_: ir.Type, ip: ir.InsertionPoint) -> ir.Value:
    """Returns `value` in the shape of `type_`; `value` itself if it has that type."""
    if value.type == type_:
        return value
    return stablehlo.reshape(type_, value, ip=ip, loc=value.location)


def clone_as(op: ir.Operation, operands: Sequence[ir.Value], type_: ir.Type, ip: ir.InsertionPoint) -> ir.Value:
    """Copies `op` with other operands and a result of type `type_`; returns the result."""
    made = op.clone(ip).operation
    if at.SHARDING in made.attributes and len(ir.RankedTensorType(type_).shape) != len(shape_of(op.results[0])):
        del made.attributes[at.SHARDING]
    for number, operand in enumerate(operands):
        made.operands[number] = operand
    if made.results[0].type != type_:
        made.results[0].set_type(type_)
    return made.results[0]


def is_uniform(value: ir.Value, dimension: int) -> bool:
    """Whether all rows of `value` along `dimension` are known to be equal; a scalar is always uniform."""
    op = defining_op(value)
    if not shape_of(value):
        return True
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        return dimension not in at.integers(op, "broadcast_dimensions")
    return op is not None and tensors.is_splat_constant(op)


def is_splat(value: ir.Value) -> bool:
    """Whether all elements of `value` are known to be one number."""
    return all(is_uniform(value, dimension) for dimension in range(len(shape_of(value))))


def resized(value: ir.Value, type_: ir.RankedTensorType, ip: ir.InsertionPoint) -> ir.Value:
    """Returns `value` in the type `type_`; it must be uniform along the dimensions in which the types differ."""
    if value.type == type_:
        return value
    op = defining_op(value)
    if op is not None and shape_of(value) and tensors.is_splat_constant(op):
        made = tensors.resized_splat(op, type_.shape)
        ip.insert(made)
        return made.results[0]
    dimensions: list[int] = []
    if shape_of(value):
        assert op is not None
        value, dimensions = op.operands[0], at.integers(op, "broadcast_dimensions")
    return stablehlo.broadcast_in_dim(type_, value, dimensions, ip=ip, loc=value.location)
