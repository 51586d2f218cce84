"""Rows that are taken out of a stack, or added up in one, at constant indices: `w[[2, 0, 1]]`, and its gradient."""

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.ir.constant_arrays import constant_array
from jaxpp.hlo_passes.ir.values import is_zero


def gathered_rows(op: ir.Operation) -> list[int] | None:
    """The rows of the first operand of a gather that it takes whole, in order; None for another gather."""
    if op.name != "stablehlo.gather":
        return None
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    shape = list(ir.RankedTensorType(op.operands[0].type).shape)
    whole = [1, *shape[1:]] == list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    if not whole or numbers.operand_batching_dims or numbers.start_indices_batching_dims:
        return None
    if numbers.start_index_map != [0] or numbers.collapsed_slice_dims != [0]:
        return None
    rows = _rows(op.operands[1], numbers.index_vector_dim, op.results[0], numbers.offset_dims)
    return None if rows is None else [min(max(row, 0), shape[0] - 1) for row in rows]  # as a gather clamps


def scattered_rows(op: ir.Operation) -> list[int] | None:
    """For each row that a scatter adds to zeros, the row that it becomes a part of; None for another scatter."""
    if op.name != "stablehlo.scatter" or len(op.operands) != 3 or not is_zero(op.operands[0]):
        return None
    inner = [each.operation.name for each in op.regions[0].blocks[0].operations]
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    if inner != ["stablehlo.add", "stablehlo.return"] or numbers.input_batching_dims:
        return None
    if numbers.scattered_dims_to_operand_dims != [0] or numbers.inserted_window_dims != [0]:
        return None
    shape, update = list(ir.RankedTensorType(op.results[0].type).shape), op.operands[2]
    rows = _rows(op.operands[1], numbers.index_vector_dim, update, numbers.update_window_dims)
    whole = list(ir.RankedTensorType(update.type).shape)[-len(shape) + 1 :] == shape[1:] or len(shape) == 1
    # What a scatter adds outside of the stack is dropped.
    return rows if rows and whole and min(rows) >= 0 and max(rows) < shape[0] else None


def _rows(indices: ir.Value, vector: int, value: ir.Value, window: list[int]) -> list[int] | None:
    """The indices, in the order in which their rows stand in `value`."""
    rank = ir.RankedTensorType(value.type).rank
    shape = list(ir.RankedTensorType(indices.type).shape)
    if vector == len(shape) - 1 and shape[vector] == 1:
        shape.pop()
    elif vector != len(shape):
        return None
    if list(window) != list(range(len(shape), rank)):
        return None
    found = constant_array(indices)
    return None if found is None else [int(row) for row in found.reshape(-1)]
