"""The program module (docs/ir.md, section 6): its mesh functions and what they call."""

from collections.abc import Sequence
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


def stacked_arguments(module: ir.Module) -> set[int]:
    """The numbers of the arguments of which each mesh has one block."""
    entries = [entry for function in mesh_functions(module) for entry in at.argument_attributes(function)]
    return {ir.IntegerAttr(entry[at.ARGUMENT]).value for entry in entries if at.BLOCK in entry}


def task_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The functions that the mesh functions call, by name."""
    return {name: function for name, function in functions(module).items() if at.KIND in function.attributes}


class Instruction(NamedTuple):
    """One operation of a mesh function, read once: MLIR attributes are slow to look up.

    `operands` and `results` leave out tokens. `tasks` are the (stage, microbatch) of a task call: one, or several that
    are fused. `channel`, `source` and `target` are those of a send or recv, else -1.
    """

    op: ir.Operation
    name: str
    operands: list[ir.Value]
    results: list[ir.Value]
    last_use: list[int]
    tasks: Sequence[tuple[int, int]] = ()
    channel: int = -1
    source: int = -1
    target: int = -1


def read_program(module: ir.Module) -> list[list[Instruction]]:
    """The instructions of each mesh. Raises PassError on an operation that no program has."""
    reader = Reader()
    lines: list[list[Instruction]] = []
    for function in mesh_functions(module):
        ops = operations(body_of(function))[:-1]
        chains = sum(op.name == "stablehlo.create_token" for op in ops)
        if chains > 1:
            raise PassError(f"a mesh function has {chains} token chains, expected one", location=function.location)
        lines.append([reader.read(op) for op in ops if op.name != "stablehlo.create_token"])
    return lines


class Reader:
    """Reads instructions; attributes that are slow to take apart, and few, are taken apart once."""

    def __init__(self) -> None:
        self._lists: dict[ir.Attribute, list[int]] = {}

    def read(self, op: ir.Operation) -> Instruction:
        """One operation of a mesh function. Raises PassError on an operation that no program has."""
        name = op.name
        if name == "func.call":
            return Instruction(op, name, list(op.operands), list(op.results), self._last_use(op), _tasks(op))
        if name == "stablehlo.constant":
            return Instruction(op, name, [], list(op.results), [])
        if name == "stablehlo.send":
            return Instruction(op, name, [op.operands[0]], [], self._last_use(op), (), *self.hop(op))
        if name == "stablehlo.recv":
            return Instruction(op, name, [], [op.results[0]], [], (), *self.hop(op))
        raise PassError(
            f"a mesh function has a {name}: only constants, calls, sends and receives are allowed", location=op.location
        )

    def hop(self, op: ir.Operation) -> tuple[int, int, int]:
        """(channel handle, sending mesh, receiving mesh) of a send or recv. Raises PassError on another form."""
        attribute = op.attributes.get("source_target_pairs")
        if attribute is None:
            raise PassError(f"a {op.name} without source_target_pairs", location=op.location)
        pair = self._lists.get(attribute)
        if pair is None:
            pair = self._lists[attribute] = [int(mesh) for mesh in ir.DenseIntElementsAttr(attribute)]
        if len(pair) != 2:
            found = f"{len(pair) // 2} source-target pairs"
            raise PassError(f"a {op.name} with {found}, expected one", location=op.location)
        return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle, pair[0], pair[1]

    def _last_use(self, op: ir.Operation) -> list[int]:
        attribute = op.attributes.get(at.LAST_USE)
        if attribute is None:
            return []
        numbers = self._lists.get(attribute)
        if numbers is None:
            numbers = self._lists[attribute] = at.integers(op, at.LAST_USE)
        return numbers


def _tasks(call_op: ir.Operation) -> list[tuple[int, int]]:
    stage, microbatch = at.integer(call_op, at.STAGE), at.integer(call_op, at.MICROBATCH)
    if stage is not None and microbatch is not None:
        return [(stage, microbatch)]
    stages, microbatches = at.integers(call_op, at.STAGES), at.integers(call_op, at.MICROBATCHES)
    return list(zip(stages, microbatches, strict=True))


def meshes_of(call_op: ir.Operation) -> list[int]:
    """The meshes that run a call of a placed `@main`."""
    mesh = at.integer(call_op, at.MESH)
    return [mesh] if mesh is not None else at.integers(call_op, at.MESHES)
