"""Every private name of JAX and jaxlib that jaxpp uses, with the versions it was seen in.

Nothing here imports `jax` at module level: `jaxpp-opt` starts without it.
"""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # pyright: ignore[reportAttributeAccessIssue]  # no stub; 0.8.2 to 0.11.2
from jaxlib.mlir.dialects import chlo, sdy, stablehlo


def make_context() -> ir.Context:
    """A fresh MLIR context with func, stablehlo, chlo and sdy, made without importing jax (0.10.2)."""
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    sdy.register_dialect(context)
    return context


def inline_call(callee: ir.Operation, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Clone the body of `callee` (a func.func) at the current insertion point; returns its results (0.10.2)."""
    return list(_jax_mlir_ext.inlined_func_call(callee, list(operands)))
