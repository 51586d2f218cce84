"""Reads the straight line of one mesh: its constants, calls, sends and receives."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, kind_and_stage, name_of, operations, terminator
from jaxpp.ir.kinds import form_of, operations_of
from jaxpp.ir.mesh_functions import tasks_of_call
from jaxpp.ir.numbering import attributes_of
from jaxpp.ir.program import Call, Constant, Function, Instruction, Receive, Send, TaskName
from jaxpp.ir.program_form import Border
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.steps import Channel, MeshLine, Step
from jaxpp.ir.tensors import TensorSpec, read_constant, read_spec

Source = tuple[ir.Operation | None, MeshAxes]
"""The func.func of a function of the program (None for a reshard, which has none), and the mesh that it is for."""


End = tuple[Channel, TensorSpec]
"""A channel and the spec of its value, on which a send and its receive must agree."""


@dataclass
class Tables:
    """Tables that the lines of all meshes share. Each entry is read once, as MLIR attributes are slow to take apart.

    sends: the end of each send, by channel number.
    receives: the end of each receive, by channel number.
    resharded: whether values are resharded where they are needed in another sharding, as when meshes differ in size.
    """

    module: ir.Module
    tasks: dict[str, ir.Operation]
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    sources: dict[str, Source] = field(default_factory=dict[str, Source])
    sends: dict[int, End] = field(default_factory=dict[int, End])
    receives: dict[int, End] = field(default_factory=dict[int, End])
    resharded: bool = False
    _specs: dict[Any, TensorSpec] = field(default_factory=dict[Any, TensorSpec])
    _constants: dict[Any, "np.ndarray[Any, Any]"] = field(default_factory=dict[Any, Any])
    _numbers: dict[ir.Attribute, tuple[int, ...]] = field(default_factory=dict[ir.Attribute, tuple[int, ...]])

    @cached_property
    def _operations(self) -> dict[str, bool]:
        return operations_of(self.module)

    def spec(self, type_: ir.Type, sharding: ir.Attribute | None, axes: MeshAxes, op: ir.Operation) -> TensorSpec:
        """Returns the spec of a value of this type. Raises ProgramError, at `op`, where no array has the type."""
        key = (type_, sharding, axes.named)
        spec = self._specs.get(key)
        if spec is None:
            try:
                spec = read_spec(type_, sharding, axes.sizes)
            except ProgramError as error:
                raise ProgramError(error.message, location=op.location) from None
            spec = self._specs[key] = self._specs.setdefault(spec, spec)
        return spec

    def constant(self, op: ir.Operation) -> "np.ndarray[Any, Any]":
        """Returns the elements of a constant."""
        key = attributes_of(op)
        if key not in self._constants:
            self._constants[key] = read_constant(op)
        return self._constants[key]

    def numbers(self, attribute: ir.Attribute, name: str, op: ir.Operation) -> tuple[int, ...]:
        """Returns the numbers of an `array<i64: ...>` called `name`. Raises ProgramError for another attribute."""
        numbers = self._numbers.get(attribute)
        if numbers is None:
            if not isinstance(attribute, ir.DenseI64ArrayAttr):
                raise ProgramError(f"{name} is {attribute}, expected array<i64: ...>", location=op.location)
            numbers = self._numbers[attribute] = tuple(at.numbers(attribute))
        return numbers

    def channel(self, step: Step[int]) -> Channel:
        """Returns the channel of a send or receive. Raises ProgramError where its attributes have another form."""
        op, attributes = step.op, step.attributes
        pairs = attributes.get("source_target_pairs")
        if pairs is None:
            raise ProgramError(f"a {op.name} without source_target_pairs", location=op.location)
        pair = self._numbers.get(pairs)
        if pair is None:
            pair = self._numbers[pairs] = tuple(int(mesh) for mesh in ir.DenseIntElementsAttr(pairs))
        if len(pair) != 2:
            found = f"{len(pair) // 2} source-target pairs"
            raise ProgramError(f"a {op.name} with {found}, expected one", location=op.location)
        handle = attributes["channel_handle"]
        channel = self._numbers.get(handle)
        if channel is None:
            channel = self._numbers[handle] = (stablehlo.ChannelHandle(handle).handle,)
        return channel[0], pair[0], pair[1]

    def function(self, step: Step[int], axes: MeshAxes) -> Function:
        """Returns the function that a step calls, for a mesh with these axes. Raises ProgramError if there is none."""
        called = step.callee
        name = called + axes.suffix
        if name not in self.functions:
            if called not in self.tasks:
                raise ProgramError(f"a call of @{called}, which is no task in the module", location=step.op.location)
            self.functions[name] = self._read_function(name, self.tasks[called], axes)
            self.sources[name] = self.tasks[called], axes
        return self.functions[name]

    def _read_function(self, name: str, op: ir.Operation, axes: MeshAxes) -> Function:
        signature = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        entries, results = at.argument_attributes(op), at.result_attributes(op)
        kind, stage = kind_and_stage(op)
        arguments, taken = self._signature(signature.inputs, entries, axes, op)
        made, given = self._signature(signature.results, results, axes, op)
        if form_of(kind).is_copy or any(spec.memory for spec in (*arguments, *made)):
            _check_copy(op, kind, arguments, made)
        is_operation = kind in self._operations
        if is_operation:
            _check_operation(op)
        donates = tuple(number for number, entry in enumerate(entries) if at.ALIAS in entry or at.DONOR in entry)
        number, sums = stage if stage >= 0 else None, _sums(op, arguments, made)
        gathered = tuple(number for number, entry in enumerate(results) if at.PER_RUN in entry)
        return Function(name, kind, number, arguments, made, donates, b"", taken, given, is_operation, sums, gathered)

    def _signature(
        self, types: Sequence[ir.Type], entries: Sequence[dict[str, ir.Attribute]], axes: MeshAxes, op: ir.Operation
    ) -> tuple[tuple[TensorSpec, ...], tuple[int, ...]]:
        """Returns the specs of a function's arguments or results, and, in a fused function, the task index of each."""
        pairs = zip(types, entries, strict=True)
        specs = tuple(
            _in_memory(self.spec(type_, entry.get(at.SHARDING), axes, op), entry.get(at.MEMORY))
            for type_, entry in pairs
        )
        return specs, tuple(ir.IntegerAttr(entry[at.TASK]).value for entry in entries if at.TASK in entry)

    def reshard(self, found: TensorSpec, wanted: TensorSpec, axes: MeshAxes) -> Function:
        """Returns the function that reshards its argument from `found` to `wanted`."""
        name = "reshard_" + hashlib.blake2b(f"{found} {wanted} {axes}".encode(), digest_size=6).hexdigest()
        if name not in self.functions:
            self.functions[name] = Function(name, "reshard", None, (found,), (wanted,), (), b"")
            self.sources[name] = None, axes
        return self.functions[name]


def _in_memory(spec: TensorSpec, memory: ir.Attribute | None) -> TensorSpec:
    return dataclasses.replace(spec, memory=ir.StringAttr(memory).value) if memory is not None else spec


def _check_copy(op: ir.Operation, kind: str, arguments: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> None:
    """Raises ProgramError unless the function is of a kind that copies, and returns its arguments as they are."""
    if not form_of(kind).is_copy:
        raise ProgramError(
            f"@{name_of(op)} has values in another memory, and is neither an offload nor a reload", location=op.location
        )
    body = body_of(op)
    here = [dataclasses.replace(spec, memory="") for spec in arguments]
    there = [dataclasses.replace(spec, memory="") for spec in results]
    if here != there or list(terminator(body).operands) != list(body.arguments):
        raise ProgramError(
            f"@{name_of(op)} is of the kind {kind!r}, and does more than return its arguments", location=op.location
        )


def _check_operation(op: ir.Operation) -> None:
    """Raises ProgramError unless the function is empty, as the runtime calls the user's function instead."""
    if len(operations(body_of(op))) > 1 or len(terminator(body_of(op)).operands):
        raise ProgramError(
            f"@{name_of(op)} stands for a function of the user's, and does more than return", location=op.location
        )


def _sums(op: ir.Operation, arguments: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Returns the arguments that are the results of a call that is left out. Raises ProgramError where types differ."""
    if at.SUMS not in op.attributes:
        return ()
    found = tuple(at.numbers(op.attributes[at.SUMS]))
    fit = all(0 <= number < len(arguments) for number in found)
    if not fit or [arguments[number] for number in found] != list(results):
        raise ProgramError(
            f"{at.SUMS} of @{name_of(op)} are {list(found)}: no arguments of the types of its results",
            location=op.location,
        )
    return found


class Line:
    """The straight line of one mesh.

    Attributes:
        sequence: its instructions.
        specs: the spec of each register.
        results: the register of each result.
    """

    def __init__(self, tables: Tables, mesh: int, op: ir.Operation, axes: MeshAxes) -> None:
        self.mesh, self.axes = mesh, axes
        self.sequence: list[Instruction] = []
        self.specs: list[TensorSpec] = []
        self.results: list[int] = []
        self._tables, self._op = tables, op
        self._values: list[ir.Value] = []
        self._steps: Sequence[Step[int]] = []
        self._returned: set[int] = set()
        self._copies: list[TensorSpec] = []
        """The specs of the registers of resharded values. These registers follow those of all other values."""
        self._mortal: set[int] = set()
        """The registers that may be freed: donated arguments and values made here, unless they are returned."""
        self._dead: set[int] = set()
        self._forgotten: set[int] = set()
        self._functions: dict[str, Function] = {}
        self._received: dict[tuple[ir.Type, ir.Attribute | None], TensorSpec] = {}
        self._constants: dict[int, Constant] = {}
        self._resharded: dict[tuple[int, TensorSpec], int] = {}

    def read(self, line: MeshLine, arguments: Sequence[Border], results: Sequence[Border]) -> None:
        """Reads the instructions of the mesh, with these arguments and results. Raises ProgramError at a fault.

        The number of a value is its register.
        """
        self._values, self._steps, self._returned = line.values, line.steps, set(line.steps[-1].operands)
        self.specs.extend(map(self._border_spec, arguments))
        self._make_mortal([register for register, border in enumerate(arguments) if border.donated])
        readers = {
            "func.call": self._call,
            "func.return": partial(self._return, results),
            "stablehlo.constant": self._constant,
            "stablehlo.recv": self._receive,
            "stablehlo.send": self._send,
        }
        for step in line.steps:
            if step.name != "stablehlo.create_token":
                readers[step.name](step)
        self.specs.extend(self._copies)
        self._look_at_mortal()

    def _border_spec(self, border: Border) -> TensorSpec:
        return _in_memory(self._tables.spec(border.type, border.sharding, self.axes, self._op), border.memory)

    def unfreed(self) -> ir.Value | None:
        """Returns a value that is used, and neither freed nor returned; None where each value is freed or returned."""
        return self._values[min(self._forgotten)] if self._forgotten else None

    def op_of(self, call: Call) -> ir.Operation:
        """Returns the operation of a call that is no reshard; reshards have no operation."""
        ops = [step.op for step in self._steps if step.name == "func.call"]
        calls = [each for each in self.sequence if isinstance(each, Call) and each.kind != "reshard"]
        return next(op for op, each in zip(ops, calls, strict=True) if each is call)

    def end_of(self, name: str, channel: int) -> ir.Operation:
        """Returns the send or receive of this mesh on a channel."""
        return next(step.op for step in self._steps if step.name == name and self._channel(step)[0] == channel)

    def _make_mortal(self, registers: Sequence[int]) -> None:
        if self._returned.isdisjoint(registers):
            self._mortal.update(registers)
        else:
            self._mortal.update(self._returned.symmetric_difference(registers).intersection(registers))

    def _last_use(self, step: Step[int]) -> Sequence[int]:
        if step.last_use is None:
            attribute = step.attributes.get(at.LAST_USE)
            step.last_use = () if attribute is None else self._tables.numbers(attribute, at.LAST_USE, step.op)
        return step.last_use

    def _use(self, step: Step[int]) -> list[int]:
        """Uses the operands of a step and marks those dead that it uses last; returns the registers of the latter."""
        own, last = step.operands, self._last_use(step)
        if not self._dead.isdisjoint(own):
            raise ProgramError(f"a {step.name} uses a value after its last use", location=step.op.location)
        if not last:
            return []
        are_operands = 0 <= min(last) <= max(last) < len(own)
        dying = [own[number] for number in last] if are_operands else []
        if not are_operands or not self._mortal.issuperset(dying):
            wrong = next(number for number in last if not 0 <= number < len(own) or own[number] not in self._mortal)
            message = f"{at.LAST_USE} names operand {wrong}, which must not die here"
            raise ProgramError(message, location=step.op.location)
        self._mortal.difference_update(dying)
        self._dead.update(dying)
        return dying

    def _constant(self, step: Step[int]) -> None:
        (register,) = step.results
        spec = self._tables.spec(self._values[register].type, None, self.axes, step.op)
        self.specs.append(spec)
        constant = self._constants[register] = Constant(register, self._tables.constant(step.op), spec)
        self.sequence.append(constant)

    def _send(self, step: Step[int]) -> None:
        frees, operand = tuple(self._use(step)), step.operands[0]
        number, source, target = channel = self._channel(step)
        if not target != source == self.mesh or number in self._tables.sends:
            raise self._wrong_end(step, target != source == self.mesh)
        self._tables.sends[number] = channel, self.specs[operand]
        self.sequence.append(Send(number, operand, target, frees))

    def _receive(self, step: Step[int]) -> None:
        (register,) = step.results
        value = self._values[register]
        key = value.type, step.op.attributes.get(at.SHARDING)
        spec = self._received.get(key)
        if spec is None:
            sharding = at.value_sharding(value) if key[1] is not None else None
            spec = self._received[key] = self._tables.spec(key[0], sharding, self.axes, step.op)
        self.specs.append(spec)
        if register not in self._returned:
            self._mortal.add(register)
        number, source, target = channel = self._channel(step)
        if not source != target == self.mesh or number in self._tables.receives:
            raise self._wrong_end(step, source != target == self.mesh)
        self._tables.receives[number] = channel, spec
        self.sequence.append(Receive(number, register, source))

    def _channel(self, step: Step[int]) -> Channel:
        if step.channel is None:
            step.channel = self._tables.channel(step)
        return step.channel

    def _wrong_end(self, step: Step[int], on_mesh: bool) -> ProgramError:
        """Returns the error for a second send or receive on a channel, or for one that is not `on_mesh`."""
        second = "second " if on_mesh else ""
        message = f"channel {self._channel(step)[0]}: a {second}{step.name} on mesh {self.mesh}"
        return ProgramError(message, location=step.op.location)

    def _call(self, step: Step[int]) -> None:
        function = self._functions.get(step.callee)
        if function is None:
            function = self._functions[step.callee] = self._tables.function(step, self.axes)
        operands = own = tuple(step.operands)
        specs = self.specs
        if tuple(map(specs.__getitem__, own)) != function.arguments:
            operands = self._fitting(step.op, own, function)
        if function.donates:
            self._check_donated(step, function)
        frees = self._use(step)
        if operands is not own:
            frees += [operands[number] for number in self._last_use(step)]
        results = tuple(step.results)
        if len(results) != len(function.results):
            raise ProgramError(f"a call of @{step.callee} with {len(results)} results", location=step.op.location)
        specs.extend(function.results)
        self._make_mortal(results)
        tasks = self._tasks(step, function)
        dying = tuple(sorted({*frees})) if len(frees) > 1 else tuple(frees)
        self.sequence.append(Call(function.name, operands, results, function.kind, tasks, dying))

    def _check_donated(self, step: Step[int], function: Function) -> None:
        """Raises ProgramError unless each argument whose buffer the function takes over dies here and is given once."""
        own, numbers = step.operands, self._last_use(step)
        distinct = len(set(own)) == len(own)
        for number in function.donates:
            if number not in numbers or not (distinct or own.count(own[number]) == 1):
                what = f"@{step.callee} takes over the buffer of its argument {number}"
                raise ProgramError(f"{what}, which lives on", location=step.op.location)

    def _fitting(self, op: ir.Operation, operands: Sequence[int], function: Function) -> tuple[int, ...]:
        """Returns the registers of the operands in the shardings that `function` expects."""
        if len(operands) != len(function.arguments):
            found = f"{len(operands)} operands, it has {len(function.arguments)} arguments"
            raise ProgramError(f"a call of @{function.name} with {found}", location=op.location)
        return tuple(
            self._as(op, register, expected, f"operand {number} of @{function.name}")
            for number, (register, expected) in enumerate(zip(operands, function.arguments, strict=True))
        )

    def _as(self, op: ir.Operation, register: int, expected: TensorSpec, what: str) -> int:
        """Returns the register of a value in the expected sharding. Constants are made in it, others are resharded."""
        found = self.specs[register]
        if found == expected:
            return register
        constant = self._constants.get(register)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype) or not (constant or self._tables.resharded):
            raise ProgramError(f"{what} is {found}, expected {expected}", location=op.location)
        if (register, expected) not in self._resharded:
            copy = self._resharded[register, expected] = len(self._values) + len(self._copies)
            self._copies.append(expected)
            if constant is not None:
                self.sequence.append(Constant(copy, constant.value, expected))
            else:
                function = self._tables.reshard(found, expected, self.axes)
                self.sequence.append(Call(function.name, (register,), (copy,), function.kind, (), ()))
        return self._resharded[register, expected]

    def _tasks(self, step: Step[int], function: Function) -> tuple[TaskName, ...]:
        """Returns the tasks of a call. Raises ProgramError for a call of another mesh."""
        if step.task is not None and step.task[3] == self.mesh:
            return (TaskName(function.kind, *step.task[:3]),)
        mesh = step.attributes.get(at.MESH)
        if mesh is not None and not at.is_number(mesh, self.mesh, self.mesh + 1):
            expected = f"expected {self.mesh}, the mesh of its function"
            message = f"the call of @{step.callee}: {at.MESH} is {mesh}, {expected}"
            raise ProgramError(message, location=step.op.location)
        return tasks_of_call(step.op, function.kind)

    def _return(self, results: Sequence[Border], step: Step[int]) -> None:
        self._use(step)
        for position, (border, own) in enumerate(zip(results, step.operands, strict=True)):
            spec = self._border_spec(border)
            self.results.append(self._as(step.op, own, spec, f"result {position}"))

    def _look_at_mortal(self) -> None:
        """Records the registers that are used and never freed; frees a result that nothing uses with its call."""
        mortal = self._mortal
        if not mortal:
            return
        for each in self.sequence:
            if isinstance(each, Call | Send):
                self._forgotten.update(each.operands if isinstance(each, Call) else (each.operand,))
        self._forgotten &= mortal
        unused = mortal - self._forgotten
        for index, each in enumerate(self.sequence):
            if isinstance(each, Call) and not unused.isdisjoint(each.results):
                frees = (*each.frees, *unused.intersection(each.results))
                self.sequence[index] = dataclasses.replace(each, frees=tuple(sorted(frees)))
