"""A warning for an axis of the mesh over which nothing in a step is sharded."""

import re
import warnings

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import functions, nested
from jaxpp.lowering.mesh import MpmdMesh

_NAMING = {"sdy.sharding_constraint": ("sharding",), at.SHARD_MAP: ("in_shardings", "out_shardings", "manual_axes")}
"""The operations that name axes, with the attributes that name them."""


def warn_of_unused_axes(module: ir.Module, mesh: MpmdMesh, advice: str) -> None:
    """Warns of an axis that no argument, result, constraint or shard_map of a lowered step names.

    All devices along such an axis compute the same.

    Args:
        module: the lowered step.
        mesh: its mesh.
        advice: how the examples would be sharded over an axis `{axis}`; "" where that is not known.
    """
    sizes = {name: mesh.jax_mesh.shape[name] for name in mesh.spmd_axis_names}
    unused = {name for name, size in sizes.items() if size > 1}
    if not unused:
        return
    for function in functions(module).values():
        for table in (at.argument_attributes(function), at.result_attributes(function)):
            unused -= _named([entries[at.SHARDING] for entries in table if at.SHARDING in entries])
        for op in nested(function) if unused else ():
            if op.name in _NAMING or at.SHARDING in op.attributes:
                unused -= _named(
                    [op.attributes[name] for name in (at.SHARDING, *_NAMING.get(op.name, ())) if name in op.attributes]
                )
        if not unused:
            return
    name = min(unused)
    how = advice.replace("{axis}", name)
    warnings.warn(
        f"the mesh has {sizes[name]} devices along its axis {name!r}, over which nothing in the step is sharded: "
        f"all of them compute the same; shard the examples of the batch{how}, or leave the axis out",
        stacklevel=100,  # beyond the stack, because no line of the user is known here
    )


def _named(attributes: list[ir.Attribute]) -> set[str]:
    """Returns the names of axes in the text of attributes."""
    return {name for each in attributes for name in re.findall(r'"([^"]+)"', str(each))}
