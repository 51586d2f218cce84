"""Reads the straight line of one mesh: its constants, calls, sends and receives."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, callee, kind_and_stage, name_of, operations, terminator
from jaxpp.ir.kinds import form_of, operations_of
from jaxpp.ir.program import Call, Constant, Function, Instruction, Receive, Send, TaskName
from jaxpp.ir.program_form import Border, check_call
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.steps import Step
from jaxpp.ir.tensors import TensorSpec, read_constant, read_spec

Source = tuple[ir.Operation | None, MeshAxes]
"""The func.func of a function of the program, and the mesh for which it is; None for one that the module lacks."""


class Transfer(NamedTuple):
    """A send or a receive: its operation, the mesh where it stands, its sending and receiving mesh, its register."""

    op: ir.Operation
    mesh: int
    source: int
    target: int
    register: int


@dataclass
class Tables:
    """What the lines of all meshes share; each thing is read once, as attributes of MLIR are slow to take apart.

    resharded: whether values are brought into the sharding in which they are needed, as where meshes differ in size.
    """

    module: ir.Module
    tasks: dict[str, ir.Operation]
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    sources: dict[str, Source] = field(default_factory=dict[str, Source])
    sends: dict[int, Transfer] = field(default_factory=dict[int, Transfer])
    receives: dict[int, Transfer] = field(default_factory=dict[int, Transfer])
    resharded: bool = False
    _specs: dict[Any, TensorSpec] = field(default_factory=dict[Any, TensorSpec])
    _constants: dict[Any, "np.ndarray[Any, Any]"] = field(default_factory=dict[Any, Any])
    _numbers: dict[ir.Attribute, tuple[int, ...]] = field(default_factory=dict[ir.Attribute, tuple[int, ...]])

    @cached_property
    def _operations(self) -> dict[str, bool]:
        return operations_of(self.module)

    def spec(self, type_: ir.Type, sharding: ir.Attribute | None, axes: MeshAxes, op: ir.Operation) -> TensorSpec:
        """The spec of a value of this type. Raises ProgramError, at `op`, where no array is such a value."""
        key = (type_, sharding, axes.named)
        spec = self._specs.get(key)
        if spec is None:
            try:
                spec = read_spec(type_, sharding, axes.sizes)
            except ProgramError as error:
                raise ProgramError(error.message, location=op.location) from None
            spec = self._specs[key] = self._specs.setdefault(spec, spec)
        return spec

    def constant(self, op: ir.Operation, spec: TensorSpec) -> "np.ndarray[Any, Any]":
        """The value of a constant."""
        if spec.dtype.kind == "c":
            return read_constant(op, spec)  # jaxlib can't look at its attribute
        attribute = op.attributes["value"]
        if attribute not in self._constants:
            self._constants[attribute] = read_constant(op, spec)
        return self._constants[attribute]

    def numbers(self, attribute: ir.Attribute, name: str, op: ir.Operation) -> tuple[int, ...]:
        """The numbers of an `array<i64: ...>` called `name`. Raises ProgramError for another attribute."""
        numbers = self._numbers.get(attribute)
        if numbers is None:
            if not isinstance(attribute, ir.DenseI64ArrayAttr):
                raise ProgramError(f"{name} is {attribute}, expected array<i64: ...>", location=op.location)
            numbers = self._numbers[attribute] = tuple(at.numbers(attribute))
        return numbers

    def channel(self, step: Step) -> tuple[int, int, int]:
        """(channel, sending mesh, receiving mesh) of a send or receive. Raises ProgramError on another form."""
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

    def function(self, op: ir.Operation, axes: MeshAxes) -> Function:
        """The function that `op` calls, for a mesh of these sizes."""
        called = callee(op)
        name = called + axes.suffix
        if name not in self.functions:
            if called not in self.tasks:
                raise ProgramError(f"a call of @{called}, which is no task in the module", location=op.location)
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
        return Function(name, kind, number, arguments, made, donates, b"", taken, given, is_operation, sums)

    def _signature(
        self, types: Sequence[ir.Type], entries: Sequence[dict[str, ir.Attribute]], axes: MeshAxes, op: ir.Operation
    ) -> tuple[tuple[TensorSpec, ...], tuple[int, ...]]:
        """The specs of the arguments or results of a function, and the tasks that they belong to."""
        pairs = zip(types, entries, strict=True)
        specs = tuple(
            _in_memory(self.spec(type_, entry.get(at.SHARDING), axes, op), entry.get(at.MEMORY))
            for type_, entry in pairs
        )
        return specs, tuple(ir.IntegerAttr(entry[at.PART]).value for entry in entries if at.PART in entry)

    def reshard(self, found: TensorSpec, wanted: TensorSpec, axes: MeshAxes) -> Function:
        """The function that returns its argument in another sharding."""
        name = "reshard_" + hashlib.blake2b(f"{found} {wanted} {axes}".encode(), digest_size=6).hexdigest()
        if name not in self.functions:
            self.functions[name] = Function(name, "reshard", None, (found,), (wanted,), (), b"")
            self.sources[name] = None, axes
        return self.functions[name]


def _in_memory(spec: TensorSpec, memory: ir.Attribute | None) -> TensorSpec:
    return dataclasses.replace(spec, memory=ir.StringAttr(memory).value) if memory is not None else spec


def _check_copy(op: ir.Operation, kind: str, arguments: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> None:
    """Raise ProgramError unless the function is of a kind that copies, and returns its arguments as they are."""
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
    """Raise ProgramError unless the function, in whose place one of the user's is called, does nothing."""
    if len(operations(body_of(op))) > 1 or len(terminator(body_of(op)).operands):
        raise ProgramError(
            f"@{name_of(op)} stands for a function of the user's, and does more than return", location=op.location
        )


def _sums(op: ir.Operation, arguments: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> tuple[int, ...]:
    """The arguments that the results of a function stand for where it is left out. Raises ProgramError for others."""
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
        arguments: (argument of the step, register) of each argument.
        results: likewise.
    """

    def __init__(self, tables: Tables, mesh: int, op: ir.Operation, axes: MeshAxes) -> None:
        self.mesh, self.axes = mesh, axes
        self.sequence: list[Instruction] = []
        self.specs: list[TensorSpec] = []
        self.arguments: list[tuple[Border, int]] = []
        self.results: list[tuple[Border, int]] = []
        self._tables, self._op = tables, op
        self._attribute = at.i64(mesh)
        self._returned = set(terminator(body_of(op)).operands)
        self._registers: dict[ir.Value, int] = {}
        self._mortal: set[int] = set()
        """The registers that may die: what the program made or was given, as long as it is alive and not returned."""
        self._used: set[int] = set()
        self._functions: dict[ir.Attribute, Function] = {}
        self._constants: dict[int, Constant] = {}
        self._resharded: dict[tuple[int, TensorSpec], int] = {}
        self._token: ir.Value | None = None

    def read(self, steps: Sequence[Step], arguments: Sequence[Border], results: Sequence[Border]) -> None:
        """Read what the mesh does, with these arguments and results. Raises ProgramError at what is wrong."""
        block = body_of(self._op)
        for border, value in zip(arguments, block.arguments, strict=True):
            spec = self._border_spec(border, value)
            (register,) = self._define([value], [spec], mortal=border.donated)
            self.arguments.append((border, register))
        readers = {
            "func.call": self._call,
            "func.return": partial(self._return, results),
            "stablehlo.constant": self._constant,
            "stablehlo.create_token": self._create_token,
            "stablehlo.recv": self._receive,
            "stablehlo.send": self._send,
        }
        for step in steps:
            readers[step.name](step)
        self._free_unused()

    def _border_spec(self, border: Border, value: ir.Value) -> TensorSpec:
        return _in_memory(self._tables.spec(value.type, border.sharding, self.axes, self._op), border.memory)

    def unfreed(self) -> ir.Value | None:
        """A value that is used, and neither freed nor returned; None where each value dies or is returned."""
        forgotten = self._mortal & self._used
        values = (value for value, register in self._registers.items() if register in forgotten)
        return next(values, None)

    def _define(self, values: Sequence[ir.Value], specs: Sequence[TensorSpec], *, mortal: bool = True) -> range:
        """Give values registers; returns these."""
        registers = range(len(self.specs), len(self.specs) + len(values))
        self._registers.update(zip(values, registers, strict=True))
        self.specs.extend(specs)
        if mortal and self._returned.isdisjoint(values):
            self._mortal.update(registers)
        elif mortal:
            self._mortal.update(self._registers[value] for value in values if value not in self._returned)
        return registers

    def _read(self, step: Step, values: Sequence[ir.Value]) -> tuple[int, ...]:
        """The registers of operands."""
        try:
            return tuple([self._registers[value] for value in values])
        except KeyError:
            raise ProgramError(f"a {step.name} uses a value after its last use", location=step.op.location) from None

    def _free(
        self, op: ir.Operation, values: Sequence[ir.Value], registers: Sequence[int], numbers: Sequence[int]
    ) -> set[int]:
        """Let the operands of these numbers die; their registers."""
        dying: set[int] = set()
        for number in numbers:
            register = registers[number] if 0 <= number < len(values) else -1
            if register not in self._mortal:
                message = f"{at.LAST_USE} names operand {number}, which must not die here"
                raise ProgramError(message, location=op.location)
            dying.add(register)
            self._registers.pop(values[number], None)
        self._mortal -= dying
        return dying

    def _constant(self, step: Step) -> None:
        spec = self._tables.spec(step.results[0].type, None, self.axes, step.op)
        (register,) = self._define(step.results, [spec], mortal=False)
        constant = Constant(register, self._tables.constant(step.op, spec), spec)
        self._constants[constant.result] = constant
        self.sequence.append(constant)

    def _create_token(self, step: Step) -> None:
        if self._token is not None:
            chains = sum(each.operation.name == step.name for each in body_of(self._op).operations)
            raise ProgramError(f"a mesh function has {chains} token chains, expected one", location=self._op.location)
        self._token = step.results[0]

    def _take_token(self, step: Step, values: Sequence[ir.Value]) -> None:
        """Check a send or a receive of `values`, the last of which is a token."""
        if len(values) != 2:
            found = f"a {step.name} of {len(values) - 1} values"
            raise ProgramError(f"{found}, expected one", location=step.op.location)
        if step.operands[-1] != self._token:
            message = f"a {step.name} does not take the token of what is before it"
            raise ProgramError(message, location=step.op.location)
        self._token = step.results[-1]

    def _send(self, step: Step) -> None:
        op, values = step.op, step.operands[:1]
        self._take_token(step, step.operands)
        (register,) = own = self._read(step, values)
        self._used.add(register)
        channel, source, target = self._tables.channel(step)
        self._note(self._tables.sends, channel, Transfer(op, self.mesh, source, target, register))
        numbers = self._last_use(step)
        frees = tuple(self._free(op, values, own, numbers)) if numbers else ()
        self.sequence.append(Send(channel, register, target, frees))

    def _receive(self, step: Step) -> None:
        op, values = step.op, step.results
        self._take_token(step, values)
        sharding = step.attributes.get(at.SHARDING)
        if sharding is not None:
            sharding = at.value_sharding(values[0])
        (register,) = self._define(values[:1], [self._tables.spec(values[0].type, sharding, self.axes, op)])
        channel, source, target = self._tables.channel(step)
        self._note(self._tables.receives, channel, Transfer(op, self.mesh, source, target, register))
        self.sequence.append(Receive(channel, register, source))

    def _note(self, known: dict[int, Transfer], channel: int, transfer: Transfer) -> None:
        """Enter a transfer under its channel."""
        op, mesh, source, target, _ = transfer
        if source == target or mesh != (source if known is self._tables.sends else target):
            raise ProgramError(f"channel {channel}: a {op.name} on mesh {mesh}", location=op.location)
        if channel in known:
            raise ProgramError(f"channel {channel}: a second {op.name} on mesh {mesh}", location=op.location)
        known[channel] = transfer

    def _last_use(self, step: Step) -> Sequence[int]:
        attribute = step.attributes.get(at.LAST_USE)
        return () if attribute is None else self._tables.numbers(attribute, at.LAST_USE, step.op)

    def _call(self, step: Step) -> None:
        op, values, made = step.op, step.operands, step.results
        target = step.attributes["callee"]
        function = self._functions.get(target)
        if function is None:
            function = self._functions[target] = self._tables.function(op, self.axes)
        operands = own = self._read(step, values)
        if tuple([self.specs[register] for register in own]) != function.arguments:
            operands = self._fitting(op, own, function)
        self._used.update(operands)
        numbers = self._last_use(step)
        distinct = len(set(own)) == len(own)
        for number in function.donates:
            if number not in numbers or not (distinct or own.count(own[number]) == 1):
                raise ProgramError(
                    f"{target} takes over the buffer of its argument {number}, which lives on", location=op.location
                )
        frees = self._free(op, values, own, numbers) if numbers else ()
        if operands is not own:
            frees = {*frees, *(operands[number] for number in numbers)}
        if len(made) != len(function.results):
            raise ProgramError(f"a call of {target} with {len(made)} results", location=op.location)
        results = tuple(self._define(made, function.results))
        stage, microbatch, fused = self._tasks(step, function)
        self.sequence.append(
            Call(function.name, operands, results, function.kind, stage, microbatch, tuple(sorted(frees)), fused)
        )

    def _fitting(self, op: ir.Operation, operands: Sequence[int], function: Function) -> tuple[int, ...]:
        """The registers of the operands as `function` takes them."""
        if len(operands) != len(function.arguments):
            found = f"{len(operands)} operands, it has {len(function.arguments)} arguments"
            raise ProgramError(f"a call of @{function.name} with {found}", location=op.location)
        return tuple(
            self._as(op, register, expected, f"operand {number} of @{function.name}")
            for number, (register, expected) in enumerate(zip(operands, function.arguments, strict=True))
        )

    def _as(self, op: ir.Operation, register: int, expected: TensorSpec, what: str) -> int:
        """The register of a value in the wanted sharding: a constant is made in it, another value is resharded."""
        found = self.specs[register]
        if found == expected:
            return register
        constant = self._constants.get(register)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype) or not (constant or self._tables.resharded):
            raise ProgramError(f"{what} is {found}, expected {expected}", location=op.location)
        if (register, expected) not in self._resharded:
            copy = self._resharded[register, expected] = len(self.specs)
            self.specs.append(expected)
            if constant is not None:
                self.sequence.append(Constant(copy, constant.value, expected))
            else:
                function = self._tables.reshard(found, expected, self.axes)
                self._used.add(register)
                self.sequence.append(Call(function.name, (register,), (copy,), function.kind, None, None, ()))
        return self._resharded[register, expected]

    def _tasks(self, step: Step, function: Function) -> tuple[int | None, int | None, tuple[TaskName, ...]]:
        """The stage and the microbatch of a call that is one task; the tasks of one that is several; else nothing."""
        op, attributes = step.op, step.attributes
        stage, microbatch = attributes.get(at.STAGE), attributes.get(at.MICROBATCH)
        mesh = attributes.get(at.MESH)
        several = at.STAGES in attributes or at.MICROBATCHES in attributes
        if not several and (mesh is None or mesh == self._attribute):
            if stage is None and microbatch is None:
                return None, None, ()
            if isinstance(stage, ir.IntegerAttr) and isinstance(microbatch, ir.IntegerAttr):
                one = stage.value, microbatch.value, ()
                if one[0] >= 0 and one[1] >= 0:
                    return one
        check_call(op, self.mesh)
        stages, microbatches = at.integers(op, at.STAGES), at.integers(op, at.MICROBATCHES)
        kinds = function.kind.split("+") if stages else []
        if len(stages) != len(microbatches):
            raise ProgramError(
                f"{at.STAGES} has {len(stages)} numbers, {at.MICROBATCHES} has {len(microbatches)}; expected one of "
                "each for every task of the call",
                location=op.location,
            )
        if len(kinds) != len(stages):
            message = f"the call of @{callee(op)}, which is a {function.kind or 'function'}, has {len(stages)} tasks"
            raise ProgramError(message, location=op.location)
        fused = tuple(TaskName(*each) for each in zip(kinds, stages, microbatches, strict=True))
        return at.integer(op, at.STAGE), at.integer(op, at.MICROBATCH), fused

    def _return(self, results: Sequence[Border], step: Step) -> None:
        registers = self._read(step, step.operands)
        for position, (border, value, own) in enumerate(zip(results, step.operands, registers, strict=True)):
            spec = self._border_spec(border, value)
            self.results.append((border, self._as(step.op, own, spec, f"result {position}")))

    def _free_unused(self) -> None:
        """Let a result that nothing uses die with its call."""
        unused = self._mortal - self._used
        if not unused:
            return
        for index, each in enumerate(self.sequence):
            if isinstance(each, Call) and not unused.isdisjoint(each.results):
                frees = (*each.frees, *unused.intersection(each.results))
                self.sequence[index] = dataclasses.replace(each, frees=tuple(sorted(frees)))
