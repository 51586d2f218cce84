"""The program module (docs/ir.md, section 6): its mesh functions and what they call."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, functions, operations


def mesh_functions(module: ir.Module) -> list[ir.Operation]:
    """The functions `@mesh_k` in the order of their meshes. Raises PassError when there are none, or one is missing."""
    found: dict[int, ir.Operation] = {}
    for function in functions(module).values():
        if at.MESH not in function.attributes:
            continue
        mesh = at.integer(function, at.MESH)
        if mesh is None or mesh < 0:
            said = function.attributes[at.MESH]
            raise PassError(f"{at.MESH} is {said}, expected the number of a mesh", location=function.location)
        if mesh in found:
            raise PassError(f"a second function for mesh {mesh}", location=function.location)
        found[mesh] = function
    if not found:
        raise PassError("the module has no mesh functions", hint="run insert-transfers first")
    meshes = sorted(found)
    if meshes != list(range(len(found))):
        last = found[meshes[-1]]
        missing = next(mesh for mesh, there in enumerate([*meshes, -1]) if mesh != there)
        raise PassError(f"a function for mesh {meshes[-1]}, none for mesh {missing}", location=last.location)
    return [found[mesh] for mesh in meshes]


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
        if len(function.regions[0].blocks) != 1:
            blocks = len(function.regions[0].blocks)
            raise PassError(f"a mesh function has {blocks} blocks, expected one", location=function.location)
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
            return Instruction(op, name, [_one_value(op, op.operands)], [], self._last_use(op), (), *self.hop(op))
        if name == "stablehlo.recv":
            return Instruction(op, name, [], [_one_value(op, op.results)], [], (), *self.hop(op))
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
            if not isinstance(attribute, ir.DenseI64ArrayAttr):
                raise PassError(f"{at.LAST_USE} is {attribute}, expected array<i64: ...>", location=op.location)
            numbers = self._lists[attribute] = list(attribute)
        return numbers


def _one_value(op: ir.Operation, values: Sequence[ir.Value]) -> ir.Value:
    """The value beside the token."""
    if len(values) != 2:
        raise PassError(f"a {op.name} of {len(values) - 1} values, expected one", location=op.location)
    return values[0]


def _tasks(call_op: ir.Operation) -> list[tuple[int, int]]:
    stage, microbatch = at.integer(call_op, at.STAGE), at.integer(call_op, at.MICROBATCH)
    if stage is not None and microbatch is not None:
        return [(stage, microbatch)]
    stages, microbatches = at.integers(call_op, at.STAGES), at.integers(call_op, at.MICROBATCHES)
    if len(stages) != len(microbatches):
        raise PassError(
            f"{at.STAGES} has {len(stages)} numbers, {at.MICROBATCHES} has {len(microbatches)}; expected one of each "
            "for every task of the call",
            location=call_op.location,
        )
    return list(zip(stages, microbatches, strict=True))


def meshes_of(call_op: ir.Operation) -> list[int]:
    """The meshes that run a call of a placed `@main`."""
    mesh = at.integer(call_op, at.MESH)
    return [mesh] if mesh is not None else at.integers(call_op, at.MESHES)
