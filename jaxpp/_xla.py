"""Rewrites of correct modules that XLA would compile wrongly."""

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

_SEVERAL = ("stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier", "stablehlo.while")


def module_for_xla(bytecode: bytes) -> ir.Module:
    """A module for XLA. The shardings of an operation of several results become constraints on these.

    XLA (0.10.2, 0.12.0.1) does not keep such a list right. Where it puts a loop's result in place of an operation that
    does nothing (a slice of all, a sum with zero), it gives that operation's one sharding to the loop. Where it merges
    two equal operands of a loop, it leaves the list as long as it was. Both end in an error. A constraint is an
    operation of its own, and none is left in the compiled program.
    """
    module = ir.Module.parse(bytecode)
    found: list[ir.Operation] = []
    module.operation.walk(lambda op: found.append(op) or ir.WalkResult.ADVANCE)
    for op in found:
        if op.name in _SEVERAL and len(op.results) > 1 and "sdy.sharding" in op.attributes:
            shardings = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
            del op.attributes["sdy.sharding"]
            for value, sharding in zip(list(op.results), list(shardings), strict=True):
                if isinstance(value.type, ir.RankedTensorType) and value.type.rank:
                    _constrain(value, sharding, op)
    return module


def _constrain(value: ir.Value, sharding: ir.Attribute, op: ir.Operation) -> None:
    """Put a constraint between `value`, a result of `op`, and its users."""
    constrained = sdy.sharding_constraint(value, sharding, ip=ir.InsertionPoint.after(op), loc=op.location)
    value.replace_all_uses_except(constrained, constrained.owner.operation)
