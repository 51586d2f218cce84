"""A reference interpreter of program modules (docs/ir.md, section 6): slow, strict, and with nothing clever in it.

Every mesh's sequence runs until it waits for a value that was not sent yet; then the next mesh's turn comes. Task
functions are run by XLA. What the runtime takes for granted is an error here: a value used after its last use, a
channel used twice, a send that nobody receives, a deadlock, a buffer reused while it is needed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, callee, functions, operations
from jaxpp.hlo_passes.ir.locations import source_of
from jaxpp.hlo_passes.ir.program import mesh_functions
from jaxpp.hlo_passes.validate.cpu import Array, RunError, Runner

Task = Callable[[Sequence[Array]], list[Array]]


@dataclass
class _Mesh:
    """One mesh in the middle of its sequence."""

    index: int
    operations: list[ir.Operation]
    results: list[dict[str, ir.Attribute]]
    kept: set[ir.Value]
    position: int = 0
    values: dict[ir.Value, Array] = field(default_factory=dict[ir.Value, Any])
    freed: dict[ir.Value, ir.Operation] = field(default_factory=dict[ir.Value, ir.Operation])

    @property
    def current(self) -> ir.Operation:
        return self.operations[self.position]


@dataclass
class _Message:
    send: ir.Operation
    value: Array
    type: ir.Type
    received: bool = False


class Program:
    """A program module, compiled: `run` it as often as needed.

    Raises:
        PassError: it is not a program, or does something that no program may.
        RunError: XLA refuses one of its functions.
    """

    def __init__(self, module: ir.Module, runner: Runner) -> None:
        self._functions = mesh_functions(module)
        self._runner = runner
        self._by_name = functions(module)
        self._tasks: dict[str, Task] = {}
        constants: dict[ir.Attribute, ir.Operation] = {}
        for mesh in self._functions:
            for op in operations(body_of(mesh)):
                if op.name == "func.call" and callee(op) not in self._tasks:
                    self._tasks[callee(op)] = self._compile(module, op)
                elif op.name == "stablehlo.constant":
                    constants.setdefault(op.attributes["value"], op)
        self._constants = _evaluate(module, constants, runner)

    def _compile(self, module: ir.Module, call: ir.Operation) -> Task:
        name = callee(call)
        if name not in self._by_name:
            raise PassError(f"a call of @{name}, which is not in the module", location=call.location)
        try:
            return self._runner.compile(module, name)
        except RunError as error:
            raise RunError(f"in @{name}: {error}") from None

    def run(self, arguments: Mapping[int, Array]) -> dict[int, list[tuple[int, Array]]]:
        """For every result of the step, by its number: (mesh, value) on each mesh that has it; (0, whole) for a stack.

        Args:
            arguments: the arguments of the step by their number; those that no mesh uses may be missing.
        """
        meshes = [self._enter(index, function, arguments) for index, function in enumerate(self._functions)]
        mailbox: dict[int, _Message] = {}
        results: dict[int, list[tuple[int, Array]]] = {}
        blocks: dict[int, dict[int, Array]] = {}
        running = list(meshes)
        while running:
            before = [mesh.position for mesh in running]
            for mesh in running:
                self._advance(mesh, mailbox)
            if before == [mesh.position for mesh in running]:
                raise _deadlock(running)
            for mesh in running:
                if mesh.current.name == "func.return":
                    _leave(mesh, results, blocks)
            running = [mesh for mesh in running if mesh.current.name != "func.return"]
        for channel, message in mailbox.items():
            if not message.received:
                raise PassError(f"channel {channel}: nobody receives what is sent", location=message.send.location)
        for number, parts in blocks.items():
            results[number] = [(0, np.concatenate([np.asarray(parts[block]) for block in sorted(parts)]))]
        return results

    def _enter(self, index: int, function: ir.Operation, arguments: Mapping[int, Array]) -> _Mesh:
        block = body_of(function)
        ops = operations(block)
        kept = {op.results[0] for op in ops if op.name == "stablehlo.constant"}
        mesh = _Mesh(index, ops, at.result_attributes(function), kept)
        for value, entry in zip(block.arguments, at.argument_attributes(function), strict=True):
            number = entry.get(at.ARGUMENT)
            if not isinstance(number, ir.IntegerAttr) or number.value not in arguments:
                what = f"argument {value.arg_number} of mesh {index} is none of the step's arguments"
                raise PassError(f"{what}: {at.ARGUMENT} = {number}", location=function.location)
            whole, block = arguments[number.value], at.block(entry)
            mesh.values[value] = (
                whole if block is None else self._runner.put(np.split(np.asarray(whole), block[1])[block[0]])
            )
            if at.DONOR not in entry:
                mesh.kept.add(value)
        return mesh

    def _advance(self, mesh: _Mesh, mailbox: dict[int, _Message]) -> None:
        """Run until the mesh returns or waits."""
        while (op := mesh.current).name != "func.return":
            if op.name == "func.call":
                self._call(mesh, op)
            elif op.name == "stablehlo.send":
                _send(mesh, op, mailbox)
            elif op.name == "stablehlo.recv":
                if not _receive(mesh, op, mailbox):
                    return
            elif op.name == "stablehlo.constant":
                mesh.values[op.results[0]] = self._constants[op.attributes["value"]]
            elif op.name != "stablehlo.create_token":
                raise PassError(f"mesh {mesh.index} has a {op.name}, which no mesh can run", location=op.location)
            mesh.position += 1

    def _call(self, mesh: _Mesh, op: ir.Operation) -> None:
        arguments = [_read(mesh, op, number) for number in range(len(op.operands))]
        function = self._by_name[callee(op)]
        dying = set(at.integers(op, at.LAST_USE))
        operands = list(op.operands)
        for number, entry in enumerate(at.argument_attributes(function)):
            if at.ALIAS in entry and (number not in dying or operands.count(operands[number]) > 1):
                what = f"@{callee(op)} reuses the buffer of operand {number}, which is needed afterwards"
                raise PassError(f"mesh {mesh.index}: {what}", location=op.location)
        values = self._tasks[callee(op)](arguments)
        mesh.values.update(zip(op.results, values, strict=True))
        _free(mesh, op)


def _read(mesh: _Mesh, op: ir.Operation, number: int) -> Array:
    value = op.operands[number]
    if value in mesh.values:
        return mesh.values[value]
    what = f"mesh {mesh.index}: operand {number} of {_title(op)}"
    if value in mesh.freed:
        freed = mesh.freed[value]
        at_line = f" at {place}" if (place := source_of(freed.location)) else ""
        raise PassError(f"{what} is used after its last use in {_title(freed)}{at_line}", location=op.location)
    raise PassError(f"{what} has no value", location=op.location)


def _free(mesh: _Mesh, op: ir.Operation) -> None:
    """Forget the operands in `jaxpp.last_use`; a value that is an operand twice may be listed twice."""
    for number in dict.fromkeys(at.integers(op, at.LAST_USE)):
        if number not in range(len(op.operands)):
            raise PassError(f"{at.LAST_USE} lists operand {number} of {len(op.operands)}", location=op.location)
        value = op.operands[number]
        if value in mesh.kept:
            what = "a constant or an argument that was not donated"
            raise PassError(f"{at.LAST_USE} frees operand {number}, {what}", location=op.location)
        mesh.values.pop(value, None)
        mesh.freed[value] = op


def _channel(op: ir.Operation) -> tuple[int, int, int]:
    """(channel, sending mesh, receiving mesh)."""
    pairs = op.attributes.get("source_target_pairs")
    meshes = [int(mesh) for mesh in ir.DenseIntElementsAttr(pairs)] if pairs is not None else []
    if len(meshes) != 2:
        raise PassError(f"{_title(op)} needs one pair of meshes, found {pairs}", location=op.location)
    return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle, meshes[0], meshes[1]


def _send(mesh: _Mesh, op: ir.Operation, mailbox: dict[int, _Message]) -> None:
    channel, source, target = _channel(op)
    if source != mesh.index or target == source:
        raise PassError(
            f"channel {channel} goes from mesh {source} to {target}: mesh {mesh.index} can't send on it",
            location=op.location,
        )
    if channel in mailbox:
        raise PassError(f"channel {channel} is sent on twice", location=op.location)
    mailbox[channel] = _Message(op, _read(mesh, op, 0), op.operands[0].type)
    _free(mesh, op)


def _receive(mesh: _Mesh, op: ir.Operation, mailbox: dict[int, _Message]) -> bool:
    """False when the value was not sent yet."""
    channel, source, target = _channel(op)
    message = mailbox.get(channel)
    if message is None:
        return False
    sent = _channel(message.send)[1:]
    if (source, target) != sent or target != mesh.index:
        what = f"mesh {mesh.index} receives from mesh {source} what mesh {sent[0]} sends to mesh {sent[1]}"
        raise PassError(f"channel {channel}: {what}", location=op.location)
    if message.received:
        raise PassError(f"channel {channel} is received twice", location=op.location)
    if message.type != op.results[0].type:
        what = f"{message.type} is sent, {op.results[0].type} is received"
        raise PassError(f"channel {channel}: {what}", location=op.location)
    message.received = True
    mesh.values[op.results[0]] = message.value
    return True


def _leave(mesh: _Mesh, results: dict[int, list[tuple[int, Array]]], blocks: dict[int, dict[int, Array]]) -> None:
    op = mesh.current
    for number, entry in enumerate(mesh.results):
        result = entry.get(at.RESULT)
        if not isinstance(result, ir.IntegerAttr):
            raise PassError(f"result {number} of mesh {mesh.index} has no {at.RESULT}", location=op.location)
        block = at.block(entry)
        if block is None:
            results.setdefault(result.value, []).append((mesh.index, _read(mesh, op, number)))
        else:
            blocks.setdefault(result.value, {})[block[0]] = _read(mesh, op, number)


def _deadlock(waiting: Sequence[_Mesh]) -> PassError:
    lines: list[str] = []
    for mesh in waiting:
        channel, source, _ = _channel(mesh.current)
        lines.append(f"mesh {mesh.index} waits for channel {channel} from mesh {source}")
    return PassError("deadlock: " + "; ".join(lines), location=waiting[0].current.location)


def _title(op: ir.Operation) -> str:
    if op.name == "func.call":
        return f"the call of @{callee(op)}"
    return f"the {op.name.rpartition('.')[2]}"


def _evaluate(
    module: ir.Module, constants: Mapping[ir.Attribute, ir.Operation], runner: Runner
) -> dict[ir.Attribute, Array]:
    """The values of the constants: one function that returns them all."""
    if not constants:
        return {}
    holder = ir.Module.create(ir.Location.unknown())
    for name in module.operation.attributes:
        holder.operation.attributes[name] = module.operation.attributes[name]
    types = [op.results[0].type for op in constants.values()]
    function = ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get("constants"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get([], types)),
        },
        regions=1,
        ip=ir.InsertionPoint(holder.body),
    )
    at_end = ir.InsertionPoint(ir.Block.create_at_start(function.regions[0], []))
    clones = [op.clone(at_end).operation for op in constants.values()]
    for clone in clones:
        if at.SHARDING in clone.attributes:
            del clone.attributes[at.SHARDING]
    ir.Operation.create("func.return", operands=[clone.results[0] for clone in clones], ip=at_end)
    return dict(zip(constants, runner.compile(holder, "constants")([]), strict=True))
