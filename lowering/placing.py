"""Notes on values of a step of explicit tasks: the mesh of an argument, of a task, and of a transfer's result."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp._rules import register_key_use
from jaxpp.ir import attributes as at

Axes = tuple[tuple[str, ...], ...]
"""The axes of a mesh over which each dimension of an array is sharded."""


def place(leaves: Sequence[Any], kind: str, meshes: Sequence[int], axes: Sequence[Axes] = ()) -> list[Any]:
    """Returns the leaves unchanged. The lowered module notes the mesh of each, and its sharding.

    kind: ARGUMENT, TASK for the results of a task, or TRANSFER (`ir.kinds`).
    meshes: the index of the mesh of each leaf; -1 for the mesh of the operands of the task.
    axes: the sharding of each leaf; empty for arguments, which have theirs.
    """
    return place_p.bind(*leaves, kind=kind, meshes=tuple(meshes), axes=tuple(axes))


def _types(*avals: Any, **_: Any) -> list[Any]:
    return list(avals)


def _lower_place(
    _: mlir.LoweringRuleContext, *values: ir.Value, kind: str, meshes: Sequence[int], axes: Sequence[Axes]
) -> list[ir.Value]:
    barrier = stablehlo.OptimizationBarrierOp(list(values))
    placed = {"kind": kind, "meshes": list(meshes), "axes": axes}
    barrier.operation.attributes[at.PLACED] = at.attribute_of(placed)
    return list(barrier.results)


place_p = Primitive("jaxpp_place")
place_p.multiple_results = True
place_p.def_abstract_eval(_types)
register_key_use(place_p)
mlir.register_lowering(place_p, _lower_place)
