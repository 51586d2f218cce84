"""Makes a module compute in float32 instead of bfloat16 or float16, to tell rounding from an error."""

from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.ir.functions import nested
from jaxpp.ir.tensors import read_constant
from jaxpp.validation.runnable import RunError

_NARROW = ("bf16", "f16")
_BITCAST = "stablehlo.bitcast_convert"


def widen(module: ir.Module) -> bool:
    """Changes all values of narrow types to float32, in place; returns whether there were any.

    A bitcast between such a number and an integer still has the bits of the narrow type.

    Raises:
        RunError: a custom call takes or makes narrow values, or the module does not verify in float32.
    """
    if not _has_narrow(module):
        return False
    with module.context, ir.Location.unknown():
        ops = list(nested(module.operation))
        narrow = [(op, op.operands[0].type) for op in ops if op.name == _BITCAST and _is_narrow(op.operands[0].type)]
        for op in ops:
            _widen(op)
        for op, type_ in narrow:
            with ir.InsertionPoint(op):
                made = ir.Operation.create("stablehlo.convert", results=[type_], operands=[op.operands[0]])
            op.operands[0] = made.results[0]
        if not module.operation.verify():
            raise RunError("the module does not verify in float32")
    return True


def at_float32(module: ir.Module) -> ir.Module | None:
    """Returns a copy that computes in float32; None if the module does so already, or can't be changed."""
    if not _has_narrow(module):  # a copy of a large module takes seconds
        return None
    copy = own_copy(module)
    try:
        widen(copy)
    except RunError:
        return None
    return copy


def _has_narrow(module: ir.Module) -> bool:
    return any(_is_narrow(value.type) for op in nested(module.operation) for value in _defined(op))


def _widen(op: ir.Operation) -> None:
    if op.name == "stablehlo.custom_call" and any(_is_narrow(each.type) for each in (*op.operands, *op.results)):
        raise RunError(f"@{op.attributes['call_target_name']} takes or makes bfloat16 or float16")
    if op.name == "func.func":
        type_ = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        inputs, results = ([_wide(each) for each in types] for types in (type_.inputs, type_.results))
        op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    if op.name == _BITCAST:
        _converted(op)
        return
    if op.name == "stablehlo.constant" and _is_narrow(op.results[0].type):
        numbers: Any = read_constant(op).astype(np.float32)
        op.attributes["value"] = ir.DenseElementsAttr.get(numbers)
    if "algorithm" in op.attributes:  # the algorithm of a product names narrow types
        del op.attributes["algorithm"]
    for value in _defined(op):
        if _is_narrow(value.type):
            value.set_type(_wide(value.type))


def _converted(op: ir.Operation) -> None:
    """Converts the narrow results of an operation, which keep their type, right after it."""
    for result in op.results:
        if _is_narrow(result.type):
            uses = [(use.owner, use.operand_number) for use in result.uses]
            with ir.InsertionPoint.after(op):
                made = ir.Operation.create("stablehlo.convert", results=[_wide(result.type)], operands=[result])
            for owner, number in uses:
                owner.operands[number] = made.results[0]


def _defined(op: ir.Operation) -> list[ir.Value]:
    """Returns the results of an operation, and the arguments of its blocks."""
    return [*op.results, *(argument for region in op.regions for block in region for argument in block.arguments)]


def _is_narrow(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and str(type_.element_type) in _NARROW


def _wide(type_: ir.Type) -> ir.Type:
    if not _is_narrow(type_):
        return type_
    tensor = ir.RankedTensorType(type_)
    return ir.RankedTensorType.get(tensor.shape, ir.F32Type.get(), tensor.encoding)
