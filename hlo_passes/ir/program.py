"""The program module (docs/ir.md, section 6): its mesh functions and what they call."""

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import functions


def mesh_functions(module: ir.Module) -> list[ir.Operation]:
    """The functions `@mesh_k` in the order of their meshes. Raises PassError when there are none."""
    found = {
        mesh: function for function in functions(module).values() if (mesh := at.integer(function, at.MESH)) is not None
    }
    if not found or sorted(found) != list(range(len(found))):
        raise PassError("the module has no mesh functions", hint="run insert-transfers first")
    return [found[mesh] for mesh in sorted(found)]


def task_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions that the mesh functions call, by name."""
    return {name: function for name, function in functions(module).items() if at.KIND in function.attributes}


def channel_of(op: ir.Operation) -> tuple[int, int, int]:
    """(channel handle, sending mesh, receiving mesh) of a send or recv. Raises PassError on another form."""
    pairs = [int(i) for i in ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])]
    if len(pairs) != 2:
        raise PassError(f"a {op.name} with {len(pairs) // 2} source-target pairs, expected one", location=op.location)
    return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle, pairs[0], pairs[1]
