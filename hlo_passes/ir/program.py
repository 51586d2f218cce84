"""The program module (docs/ir.md, section 6): its mesh functions and what they call."""

from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, functions, operations


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


class Instruction(NamedTuple):
    """One operation of a mesh function, read once: MLIR attributes are slow to look up.

    `operands` and `results` leave out tokens. `task` is (stage, microbatch) of a task call. `channel`, `source` and
    `target` are those of a send or recv, else -1.
    """

    op: ir.Operation
    name: str
    operands: list[ir.Value]
    results: list[ir.Value]
    last_use: list[int]
    task: tuple[int, int] | None = None
    channel: int = -1
    source: int = -1
    target: int = -1


def read_program(module: ir.Module) -> list[list[Instruction]]:
    """The instructions of each mesh. Raises PassError on an operation that no program has."""
    pairs: dict[ir.Attribute, list[int]] = {}
    return [
        [_read(op, pairs) for op in operations(body_of(function))[:-1] if op.name != "stablehlo.create_token"]
        for function in mesh_functions(module)
    ]


def _read(op: ir.Operation, pairs: dict[ir.Attribute, list[int]]) -> Instruction:
    name = op.name
    if name == "func.call":
        stage, microbatch = at.integer(op, at.STAGE), at.integer(op, at.MICROBATCH)
        task = None if stage is None or microbatch is None else (stage, microbatch)
        return Instruction(op, name, list(op.operands), list(op.results), at.integers(op, at.LAST_USE), task)
    if name == "stablehlo.constant":
        return Instruction(op, name, [], list(op.results), [])
    if name not in ("stablehlo.send", "stablehlo.recv"):
        raise PassError(
            f"a mesh function has a {name}: only constants, calls, sends and receives are allowed", location=op.location
        )
    hop = channel_of(op, pairs)
    if name == "stablehlo.send":
        return Instruction(op, name, [op.operands[0]], [], at.integers(op, at.LAST_USE), None, *hop)
    return Instruction(op, name, [], [op.results[0]], [], None, *hop)


def channel_of(op: ir.Operation, pairs: dict[ir.Attribute, list[int]]) -> tuple[int, int, int]:
    """(channel handle, sending mesh, receiving mesh) of a send or recv.

    `pairs` remembers the few pairs of meshes that occur, which are slow to parse. Raises PassError on another form.
    """
    attribute = op.attributes["source_target_pairs"]
    pair = pairs.get(attribute)
    if pair is None:
        pair = pairs[attribute] = [int(mesh) for mesh in ir.DenseIntElementsAttr(attribute)]
    if len(pair) != 2:
        raise PassError(f"a {op.name} with {len(pair) // 2} source-target pairs, expected one", location=op.location)
    return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle, pair[0], pair[1]
