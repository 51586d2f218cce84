"""Checks the line of one mesh, and makes the instructions that the mesh runs of it."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, kind_and_stage, name_of, operations, terminator
from jaxpp.ir.kinds import form_of, operations_of
from jaxpp.ir.mesh_lines import Border, Literal, MeshLine
from jaxpp.ir.numbering import attributes_of
from jaxpp.ir.program import Call, Constant, Function, Instruction, Receive, Send
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tensors import TensorSpec, read_constant, read_spec

Source = tuple[ir.Operation | None, MeshAxes]
"""The func.func of a function of the program (None for a reshard, which has none), and the mesh that it is for."""


End = tuple[tuple[int, int], TensorSpec]
"""The sending and the receiving mesh of a channel, and the spec of its value: a send and its receive must agree."""


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

    @cached_property
    def _operations(self) -> dict[str, bool]:
        return operations_of(self.module)

    def spec(self, type_: ir.Type, sharding: ir.Attribute | None, axes: MeshAxes) -> TensorSpec:
        """Returns the spec of a value of this type. Raises ProgramError if no array has the type."""
        key = (type_, sharding, axes.named)
        spec = self._specs.get(key)
        if spec is None:
            spec = read_spec(type_, sharding, axes.sizes)
            spec = self._specs[key] = self._specs.setdefault(spec, spec)
        return spec

    def constant(self, op: ir.Operation) -> "np.ndarray[Any, Any]":
        """Returns the elements of a constant."""
        key = attributes_of(op)
        if key not in self._constants:
            self._constants[key] = read_constant(op)
        return self._constants[key]

    def function(self, called: str, axes: MeshAxes, location: ir.Location) -> Function:
        """Returns the function of a call, for a mesh with these axes. Raises ProgramError where there is none."""
        name = called + axes.suffix
        if name not in self.functions:
            if called not in self.tasks:
                raise ProgramError(f"a call of @{called}, which is no task in the module", location=location)
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
        try:
            specs = [
                _in_memory(self.spec(type_, each.get(at.SHARDING), axes), each.get(at.MEMORY)) for type_, each in pairs
            ]
        except ProgramError as error:
            raise ProgramError(error.message, location=op.location) from None
        return tuple(specs), tuple(ir.IntegerAttr(entry[at.TASK]).value for entry in entries if at.TASK in entry)

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


class CheckedLine:
    """The instructions that one mesh runs: those of its line, after a check, with reshards and copies of constants.

    Attributes:
        axes: the axes of the mesh.
        sequence: its instructions.
        specs: the spec of each register.
        results: the register of each result.
    """

    def __init__(self, tables: Tables, line: MeshLine, axes: MeshAxes) -> None:
        self.axes = axes
        self.sequence: list[Instruction] = []
        self.specs: list[TensorSpec] = []
        self.results: list[int] = []
        self._tables, self._line, self._index = tables, line, -1
        self._returned = set(line.returned)
        self._copies: list[TensorSpec] = []
        """The specs of the registers of resharded values. All other registers come before these."""
        self._mortal: set[int] = set()
        """The registers that may be freed: donated arguments and values made here, unless they are returned."""
        self._dead: set[int] = set()
        self._forgotten: set[int] = set()
        self._functions: dict[str, Function] = {}
        self._received: dict[tuple[ir.Type, ir.Attribute | None], TensorSpec] = {}
        self._constants: dict[int, Constant] = {}
        self._resharded: dict[tuple[int, TensorSpec], int] = {}

    def check(self, arguments: Sequence[Border], results: Sequence[Border]) -> None:
        """Checks the instructions of the mesh, with these arguments and results. Raises ProgramError at a fault."""
        self.specs.extend(map(self._border_spec, arguments))
        self._make_mortal([register for register, border in enumerate(arguments) if border.donated])
        checks: dict[type, Callable[[Any], None]] = {
            Call: self._call,
            Send: self._send,
            Receive: self._receive,
            Literal: self._constant,
        }
        for index, each in enumerate(self._line.sequence):
            self._index = index
            checks[type(each)](each)
        self._index = -2
        self._return(results)
        self.specs.extend(self._copies)
        self._look_at_mortal()

    def _error(self, message: str) -> ProgramError:
        """Returns an error at the current instruction."""
        return ProgramError(message, location=self._line.locations[self._index])

    def _spec(self, type_: ir.Type, sharding: ir.Attribute | None) -> TensorSpec:
        try:
            return self._tables.spec(type_, sharding, self.axes)
        except ProgramError as error:
            raise self._error(error.message) from None

    def _border_spec(self, border: Border) -> TensorSpec:
        return _in_memory(self._spec(border.type, border.sharding), border.memory)

    def unfreed(self) -> tuple[TensorSpec, ir.Location] | None:
        """Returns a value that is used, and neither freed nor returned; None where each value is freed or returned."""
        register = min(self._forgotten, default=None)
        return None if register is None else (self.specs[register], self._line.location_of(register))

    def location_of(self, call: Call) -> ir.Location:
        """Returns the location of a call that is no reshard; reshards have none."""
        indices = [index for index, each in enumerate(self._line.sequence) if isinstance(each, Call)]
        calls = [each for each in self.sequence if isinstance(each, Call) and each.kind != "reshard"]
        return self._line.locations[next(index for index, each in zip(indices, calls, strict=True) if each is call)]

    def location_of_end(self, kind: type[Send | Receive], channel: int) -> ir.Location:
        """Returns the location of the send or the receive of this mesh on a channel."""
        pairs = zip(self._line.sequence, self._line.locations, strict=False)
        return next(where for each, where in pairs if isinstance(each, kind) and each.channel == channel)

    def _make_mortal(self, registers: Sequence[int]) -> None:
        if self._returned.isdisjoint(registers):
            self._mortal.update(registers)
        else:
            self._mortal.update(self._returned.symmetric_difference(registers).intersection(registers))

    def _use(self, what: Call | Send | str, own: Sequence[int], frees: Sequence[int]) -> None:
        """Uses the registers `own`, and marks as dead the ones that the instruction frees."""
        if not self._dead.isdisjoint(own):
            raise self._error(f"the {what} on mesh {self._line.mesh} uses a value after its last use")
        if not frees:
            return
        if not self._mortal.issuperset(frees):
            wrong = next(number for number, each in enumerate(own) if each in frees and each not in self._mortal)
            raise self._error(f"{at.LAST_USE} names operand {wrong}, which must not die here")
        self._mortal.difference_update(frees)
        self._dead.update(frees)

    def _constant(self, each: Literal) -> None:
        value = each.op.results[0]
        spec = self._spec(value.type, None)
        self.specs.append(spec)
        constant = self._constants[each.result] = Constant(each.result, self._tables.constant(each.op), spec)
        self.sequence.append(constant)

    def _send(self, each: Send) -> None:
        self._use(each, (each.operand,), each.frees)
        if each.channel in self._tables.sends:
            raise self._second("send", each)
        self._tables.sends[each.channel] = (self._line.mesh, each.destination), self.specs[each.operand]
        self.sequence.append(each)

    def _receive(self, each: Receive) -> None:
        key = self._line.received[each.result]
        spec = self._received.get(key)
        if spec is None:
            spec = self._received[key] = self._spec(*key)
        self.specs.append(spec)
        if each.result not in self._returned:
            self._mortal.add(each.result)
        if each.channel in self._tables.receives:
            raise self._second("recv", each)
        self._tables.receives[each.channel] = (each.source, self._line.mesh), spec
        self.sequence.append(each)

    def _second(self, name: str, each: Send | Receive) -> ProgramError:
        return self._error(f"channel {each.channel}: a second stablehlo.{name} on mesh {self._line.mesh}")

    def _call(self, each: Call) -> None:
        function = self._functions.get(each.function)
        if function is None:
            where = self._line.locations[self._index]
            function = self._functions[each.function] = self._tables.function(each.function, self.axes, where)
        operands = own = each.operands
        specs = self.specs
        if tuple(map(specs.__getitem__, own)) != function.arguments:
            operands = self._fitting(own, function)
        if function.donates:
            self._check_donated(each, function)
        self._use(each, own, each.frees)
        if len(each.results) != len(function.results):
            raise self._error(f"a call of @{each.function} with {len(each.results)} results")
        specs.extend(function.results)
        self._make_mortal(each.results)
        if operands is not own or function.name != each.function:
            copies = {new for old, new in zip(own, operands, strict=True) if old in each.frees}
            frees = tuple(sorted({*each.frees, *copies}))
            each = dataclasses.replace(each, function=function.name, operands=operands, frees=frees)
        self.sequence.append(each)

    def _check_donated(self, each: Call, function: Function) -> None:
        """Raises ProgramError unless each argument whose buffer the function takes over dies here and is given once."""
        own = each.operands
        distinct = len(set(own)) == len(own)
        for number in function.donates:
            if own[number] not in each.frees or not (distinct or own.count(own[number]) == 1):
                raise self._error(f"@{each.function} takes over the buffer of its argument {number}, which lives on")

    def _fitting(self, operands: Sequence[int], function: Function) -> tuple[int, ...]:
        """Returns the registers of the operands in the shardings that `function` expects."""
        if len(operands) != len(function.arguments):
            found = f"{len(operands)} operands, it has {len(function.arguments)} arguments"
            raise self._error(f"a call of @{function.name} with {found}")
        return tuple(
            self._as(register, expected, f"operand {number} of @{function.name}")
            for number, (register, expected) in enumerate(zip(operands, function.arguments, strict=True))
        )

    def _as(self, register: int, expected: TensorSpec, what: str) -> int:
        """Returns the register of a value in the expected sharding. Constants are made in it, others are resharded."""
        found = self.specs[register]
        if found == expected:
            return register
        constant = self._constants.get(register)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype) or not (constant or self._tables.resharded):
            raise self._error(f"{what} is {found}, expected {expected}")
        if (register, expected) not in self._resharded:
            copy = self._resharded[register, expected] = self._line.registers + len(self._copies)
            self._copies.append(expected)
            if constant is not None:
                self.sequence.append(Constant(copy, constant.value, expected))
            else:
                function = self._tables.reshard(found, expected, self.axes)
                self.sequence.append(Call(function.name, (register,), (copy,), function.kind, (), ()))
        return self._resharded[register, expected]

    def _return(self, results: Sequence[Border]) -> None:
        self._use("return", self._line.returned, ())
        for position, (border, own) in enumerate(zip(results, self._line.returned, strict=True)):
            self.results.append(self._as(own, self._border_spec(border), f"result {position}"))

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
