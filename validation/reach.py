"""Finds the arguments of a step on which its stages depend: weights and the batch, but no state of an optimizer."""

from collections.abc import Callable

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, callee, functions, nested, operands_with_captures, operations


def seen_by_stages(module: ir.Module, function: ir.Operation) -> set[int]:
    """Returns the numbers of the arguments of `function` on which a stage's computation depends.

    In a module as JAX lowers it, loops and marks belong to stages; later, calls with `jaxpp.stage` do.
    """
    is_stage = _stages(module)
    sources: dict[ir.Value, set[int]] = {value: {value.arg_number} for value in body_of(function).arguments}
    seen: set[int] = set()
    for op in operations(body_of(function)):
        numbers = {number for value in operands_with_captures(op) for number in sources.get(value, set())}
        if is_stage(op):
            seen |= numbers
        sources.update((result, numbers) for result in op.results)
    return seen


def _stages(module: ir.Module) -> Callable[[ir.Operation], bool]:
    """Returns a function that tells whether an operation belongs to a stage, or contains or calls one that does."""
    by_name = functions(module)
    known: dict[str, bool] = {}

    def holds(op: ir.Operation) -> bool:
        if op.name == "stablehlo.while" or at.BOUNDARY in op.attributes or at.STAGE in op.attributes:
            return True
        if op.name == "func.call" and callee(op) in by_name:
            name = callee(op)
            if name not in known:
                known[name] = False  # while its body is searched: a function that calls itself does not contain itself
                known[name] = any(holds(inner) for inner in nested(by_name[name]))
            return known[name]
        return any(holds(inner) for inner in nested(op))

    return holds
