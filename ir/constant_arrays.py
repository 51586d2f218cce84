"""Small arrays of integers and booleans whose elements the IR tells: indices, masks."""

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.counted import direction_of, handed_on
from jaxpp.ir.functions import reducer
from jaxpp.ir.ops import shape_of
from jaxpp.ir.tensors import DTYPES, read_constant
from jaxpp.ir.values import defining_op, origin

_LARGEST = 1 << 16
_COPIES = ("stablehlo.broadcast_in_dim", "sdy.sharding_constraint")


def _within(low: np.ndarray, value: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(low, value), high)


_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "stablehlo.add": np.add,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.clamp": _within,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
    "stablehlo.select": np.where,
    "stablehlo.subtract": np.subtract,
}


class Constants:
    """Computes the elements of small arrays of integers or booleans that are made of constants.

    The index that JAX makes of `w[[2, 0, -1]]` is such an array. A loop that hands it on, a barrier of `jax.checkpoint`
    or a sharding constraint may stand in between.

    given: the number to assume for each value that is not constant, such as a count.
    """

    def __init__(self, given: Mapping[ir.Value, int] | None = None) -> None:
        self._known: dict[ir.Value, np.ndarray | None] = {
            value: np.asarray(number).astype(_dtype_of(value)) for value, number in (given or {}).items()
        }

    def scalar(self, value: ir.Value) -> int | None:
        """Returns the element of a scalar, 0 or 1 for a boolean; None where it is not known."""
        type_ = value.type
        array = self.array(value) if isinstance(type_, ir.RankedTensorType) and not type_.rank else None
        return None if array is None else int(array)

    def array(self, value: ir.Value) -> np.ndarray | None:
        """Returns the elements of `value`; None where they are not known."""
        if value not in self._known:
            self._known[value] = self._fold(value)
        return self._known[value]

    def _fold(self, value: ir.Value) -> np.ndarray | None:
        type_ = ir.RankedTensorType(value.type) if isinstance(value.type, ir.RankedTensorType) else None
        if type_ is None or not type_.has_static_shape or not isinstance(type_.element_type, ir.IntegerType):
            return None
        if prod(type_.shape) > _LARGEST:
            return None
        op = defining_op(value)
        if op is None:
            outside = handed_on(value)
            return None if outside is None else self.array(outside)
        if op.name in ("stablehlo.optimization_barrier", "sdy.sharding_constraint"):
            return self.array(op.operands[ir.OpResult(value).result_number])
        if op.name == "stablehlo.constant":
            return read_constant(op) if isinstance(op.attributes["value"], ir.DenseElementsAttr) else None
        if op.name not in _FOLDS and op.name not in _ARITHMETIC:
            return None
        operands: list[np.ndarray] = []
        for operand in op.operands:
            array = self.array(operand)
            if array is None:
                return None
            operands.append(array)
        if op.name in _ARITHMETIC:
            return np.asarray(_ARITHMETIC[op.name](*operands), operands[-1].dtype)
        return _FOLDS[op.name](op, operands)


def is_all_true(value: ir.Value) -> bool:
    """Whether `value` is known to be a mask that is true everywhere."""
    array = Constants().array(origin(value, lambda op: op.name in _COPIES))
    return array is not None and array.dtype == np.bool_ and bool(array.all())


def _broadcast(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    shape = shape_of(op.results[0])
    sizes = [1] * len(shape)
    for size, dimension in zip(operands[0].shape, at.integers(op, "broadcast_dimensions"), strict=True):
        sizes[dimension] = size
    return np.broadcast_to(operands[0].reshape(sizes), shape)


def _reshape(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    return operands[0].reshape(shape_of(op.results[0]))


def _slice(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    bounds = (at.integers(op, name) for name in ("start_indices", "limit_indices", "strides"))
    return operands[0][tuple(slice(*each) for each in zip(*bounds, strict=True))]


def _dynamic_slice(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    (whole, *starts), sizes = operands, at.integers(op, "slice_sizes")
    bounds = zip(starts, sizes, whole.shape, strict=True)
    places = [min(max(int(start), 0), most - size) for start, size, most in bounds]  # as the operation clamps them
    return whole[tuple(slice(place, place + size) for place, size in zip(places, sizes, strict=True))]


def _iota(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    dimension = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    return np.indices(shape_of(op.results[0]))[dimension].astype(_dtype_of(op.results[0]))


def _convert(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    return operands[0].astype(_dtype_of(op.results[0]))


def _dtype_of(value: ir.Value) -> np.dtype[Any]:
    return DTYPES[str(ir.RankedTensorType(value.type).element_type)]


def _compare(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    return _COMPARISONS[direction_of(op)](*operands)


def _reduce(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray | None:
    if len(operands) != 2 or reducer(op) != "stablehlo.and" or operands[0].dtype != np.bool_:
        return None
    return operands[0].all(axis=tuple(at.integers(op, "dimensions"))) & operands[1]


_COMPARISONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}
_FOLDS: dict[str, Callable[[ir.Operation, list[np.ndarray]], np.ndarray | None]] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.convert": _convert,
    "stablehlo.compare": _compare,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.iota": _iota,
    "stablehlo.reduce": _reduce,
    "stablehlo.slice": _slice,
}
