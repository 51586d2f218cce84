"""`load`: reads a program module. No MLIR object survives it."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.runtime.check import check_channels, check_lifetimes
from jaxpp.runtime.program import (
    Argument,
    Call,
    Constant,
    Function,
    Instruction,
    Program,
    Receive,
    Result,
    Send,
    TaskName,
)
from jaxpp.runtime.sizes import Sizes
from jaxpp.runtime.stage_function import read_function, reshard_function
from jaxpp.runtime.values import ProgramError, TensorSpec, integer, integers, read_constant, read_spec
from jaxpp.schedules.collector import collector_paused


def load(module: ir.Module) -> Program:
    """Read a program module.

    Where meshes differ in size (`jaxpp.mesh_sizes`), what the sizes of one don't divide is cut less on it.

    Raises ProgramError, with the op's location, for what is no program module, or can't run on meshes of these sizes.
    """
    with module.context, ir.Location.unknown(), collector_paused():
        attributes = module.operation.attributes
        tops = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in _functions(module)}
        bodies = {name: op for name, op in tops.items() if "jaxpp.mesh" in op.attributes}
        if "jaxpp.meshes" not in attributes or not bodies:
            raise ProgramError("this is no program module: it has no jaxpp.meshes or no function with jaxpp.mesh")
        meshes = integer(attributes["jaxpp.meshes"])
        by_mesh = {integer(op.attributes["jaxpp.mesh"]): op for op in bodies.values()}
        if len(bodies) != meshes or sorted(by_mesh) != list(range(meshes)):
            raise ProgramError(f"jaxpp.meshes is {meshes}; the functions are for the meshes {sorted(by_mesh)}")
        sizes = Sizes.of_meshes(module, meshes)
        functions: dict[str, Function] = {}
        whole = {key: _across(key, by_mesh, sizes) for key in ("jaxpp.argument", "jaxpp.result")}
        readers = [
            _MeshReader(mesh, by_mesh[mesh], sizes[mesh], tops, functions, module, whole) for mesh in range(meshes)
        ]
        for reader in readers:
            reader.read()
            reader.free_unused()
        program = Program(
            meshes=meshes,
            partitions=tuple(each.partitions for each in sizes),
            axis_sizes=tuple(each.axes for each in sizes),
            functions=functions,
            sequences=tuple(tuple(reader.sequence) for reader in readers),
            registers=tuple(tuple(reader.specs) for reader in readers),
            arguments=_arguments(readers),
            results=_results(readers),
        )
    check_channels(program)
    check_lifetimes(program)
    return program


Block = tuple[int, int] | None
"""(number, how many there are) of a block of a stack; None for a value that each of its meshes has whole."""


def _block(attributes: Any) -> Block:
    if "jaxpp.block" not in attributes:
        return None
    numbers = integers(attributes["jaxpp.block"])
    if len(numbers) != 2:
        raise ProgramError(f"expected jaxpp.block = array<i64: number, count>, found {attributes['jaxpp.block']}")
    return numbers[0], numbers[1]


def _functions(module: ir.Module) -> Iterator[ir.Operation]:
    for op in module.body.operations:
        if op.operation.name == "func.func":
            yield op.operation


def _across(key: str, by_mesh: Mapping[int, ir.Operation], sizes: Sequence[Sizes]) -> set[int]:
    """The arguments or results that meshes of different sizes have: `jax.Array`s can have them replicated only."""
    found: dict[int, set[Sizes]] = {}
    for mesh, op in by_mesh.items():
        for entry in _table(op, "arg_attrs" if key == "jaxpp.argument" else "res_attrs"):
            if key in entry:
                found.setdefault(integer(entry[key]), set()).add(sizes[mesh])
    return {number for number, different in found.items() if len(different) > 1}


def _table(op: ir.Operation, name: str) -> list[Any]:
    return [ir.DictAttr(entry) for entry in ir.ArrayAttr(op.attributes[name])] if name in op.attributes else []


class _MeshReader:
    """Reads the straight line of one mesh."""

    def __init__(
        self,
        mesh: int,
        op: ir.Operation,
        sizes: Sizes,
        tops: Mapping[str, ir.Operation],
        functions: dict[str, Function],
        module: ir.Module,
        whole: Mapping[str, Collection[int]],
    ) -> None:
        self.mesh, self.op, self.sizes, self.tops, self.functions = mesh, op, sizes, tops, functions
        self.module, self.whole = module, whole
        self.sequence: list[Instruction] = []
        self.specs: list[TensorSpec] = []
        self.registers: dict[ir.Value, int] = {}
        self.constants: dict[int, Constant] = {}
        self.resharded: dict[tuple[int, TensorSpec], int] = {}
        self.arguments: list[tuple[int, int, bool, Block]] = []
        """(argument number, register, donated, block)"""
        self.results: list[tuple[int, int, Block]] = []
        """(result number, register, block)"""

    def fail(self, op: ir.Operation, message: str) -> ProgramError:
        return ProgramError(f"{op.location}: {op.name} on mesh {self.mesh}: {message}".removeprefix("loc(unknown): "))

    def read(self) -> None:
        block = self.op.regions[0].blocks[0]
        arg_attrs = ir.ArrayAttr(self.op.attributes["arg_attrs"]) if "arg_attrs" in self.op.attributes else []
        for value, attribute in zip(block.arguments, arg_attrs or [None] * len(block.arguments), strict=True):
            attrs = ir.DictAttr(attribute) if attribute is not None else {}
            if "jaxpp.argument" not in attrs:
                raise self.fail(self.op, f"argument {value.arg_number} has no jaxpp.argument")
            sharding = attrs["sdy.sharding"] if "sdy.sharding" in attrs else None
            register = self.define(value, self.border(value, sharding, "jaxpp.argument", attrs))
            donated = "jax.buffer_donor" in attrs or "tf.aliasing_output" in attrs
            self.arguments.append((integer(attrs["jaxpp.argument"]), register, donated, _block(attrs)))
        readers = {
            "stablehlo.constant": self.constant,
            "func.call": self.call,
            "stablehlo.send": self.send,
            "stablehlo.recv": self.receive,
            "func.return": self.finish,
            "stablehlo.create_token": self.skip,
            "stablehlo.after_all": self.skip,
        }
        for op in block.operations:
            op = op.operation
            if op.name not in readers:
                raise self.fail(op, "only constants, calls, send and recv stand in the function of a mesh")
            readers[op.name](op)

    def free_unused(self) -> None:
        """A result that nobody reads dies with its call."""
        used = {register for _, register, _ in self.results}
        for each in self.sequence:
            used.update(each.operands if isinstance(each, Call) else [each.operand] if isinstance(each, Send) else [])
        for index, each in enumerate(self.sequence):
            if isinstance(each, Call) and (unused := [result for result in each.results if result not in used]):
                self.sequence[index] = dataclasses.replace(each, frees=(*each.frees, *unused))

    def skip(self, op: ir.Operation) -> None:
        """Tokens only keep the order, which a sequence has anyway."""

    def border(self, value: ir.Value, sharding: ir.Attribute | None, key: str, attrs: Any) -> TensorSpec:
        """How an argument or a result of the program lies on this mesh."""
        across = integer(attrs[key]) in self.whole[key]
        return read_spec(value.type, None if across else sharding, self.sizes.axes)

    def define(self, value: ir.Value, spec: TensorSpec) -> int:
        self.registers[value] = len(self.specs)
        self.specs.append(spec)
        return len(self.specs) - 1

    def frees(self, op: ir.Operation, operands: Sequence[int]) -> tuple[int, ...]:
        if "jaxpp.last_use" not in op.attributes:
            return ()
        numbers = integers(op.attributes["jaxpp.last_use"])
        if any(not 0 <= number < len(operands) for number in numbers):
            raise self.fail(op, f"jaxpp.last_use {numbers} with {len(operands)} operands")
        return tuple(sorted({operands[number] for number in numbers}))

    def use(self, op: ir.Operation, value: ir.Value, expected: TensorSpec, what: str) -> int:
        """The register of `value`, as it is wanted: a constant is made so, what lies across meshes is resharded."""
        register = self.registers[value]
        found = self.specs[register]
        if found == expected:
            return register
        constant = self.constants.get(register)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype) or not (constant or any(self.whole.values())):
            raise self.fail(op, f"{what} is {found}, expected {expected}")
        if (register, expected) not in self.resharded:
            copy = self.resharded[register, expected] = len(self.specs)
            self.specs.append(expected)
            if constant is not None:
                self.sequence.append(Constant(copy, constant.value, expected))
            else:
                function = reshard_function(found, expected, self.sizes)
                self.functions[function.name] = function
                self.sequence.append(Call(function.name, (register,), (copy,), function.kind, None, None, ()))
        return self.resharded[register, expected]

    def constant(self, op: ir.Operation) -> None:
        spec = read_spec(op.results[0].type, None, self.sizes.axes)
        constant = Constant(self.define(op.results[0], spec), read_constant(op, spec), spec)
        self.constants[constant.result] = constant
        self.sequence.append(constant)

    def call(self, op: ir.Operation) -> None:
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        name = callee + self.sizes.suffix
        if name not in self.functions:
            if callee not in self.tops:
                raise self.fail(op, f"there is no function @{callee}")
            self.functions[name] = read_function(self.module, self.tops[callee], self.sizes)
        function = self.functions[name]
        operands = [
            self.use(op, value, expected, f"operand {number} of @{name}")
            for number, (value, expected) in enumerate(zip(op.operands, function.arguments, strict=True))
        ]
        frees = {*self.frees(op, operands), *self.frees(op, [self.registers[value] for value in op.operands])}
        results = [self.define(value, spec) for value, spec in zip(op.results, function.results, strict=True)]
        stage, microbatch = (
            integer(op.attributes[key]) if key in op.attributes else None for key in ("jaxpp.stage", "jaxpp.microbatch")
        )
        self.sequence.append(
            Call(
                name,
                tuple(operands),
                tuple(results),
                function.kind,
                stage,
                microbatch,
                frees=tuple(sorted(frees)),
                fused=self.fused(op, function),
            )
        )

    def fused(self, op: ir.Operation, function: Function) -> tuple[TaskName, ...]:
        """The tasks of a call that is several; else none.

        The kind of its function joins the kinds of the tasks; its parts say to which task each argument and result
        belongs.
        """
        stages, microbatches = (
            integers(op.attributes[key]) if key in op.attributes else []
            for key in ("jaxpp.stages", "jaxpp.microbatches")
        )
        kinds = function.kind.split("+") if stages or microbatches else []
        if not len(kinds) == len(stages) == len(microbatches):
            found = f"{len(stages)} stages and {len(microbatches)} microbatches"
            raise self.fail(op, f"a task of the kind {function.kind!r} with {found}")
        parts = (*function.argument_parts, *function.result_parts)
        if kinds and (
            len(parts) != len(function.arguments) + len(function.results) or max(parts, default=0) >= len(kinds)
        ):
            raise self.fail(op, f"@{function.name} is several tasks: each argument and result needs its jaxpp.part")
        return tuple(TaskName(*each) for each in zip(kinds, stages, microbatches, strict=True))

    def channel(self, op: ir.Operation) -> tuple[int, int, int]:
        """(channel, sending mesh, receiving mesh)."""
        pairs = np.array(op.attributes["source_target_pairs"]) if "source_target_pairs" in op.attributes else None
        if pairs is None or pairs.shape != (1, 2):
            raise self.fail(op, "source_target_pairs must hold one pair: (sending mesh, receiving mesh)")
        source, target = pairs[0].tolist()
        return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle, source, target

    def send(self, op: ir.Operation) -> None:
        channel, source, target = self.channel(op)
        if source != self.mesh or len(op.operands) != 2:
            raise self.fail(op, f"expected one value and a token, sent from here, found {source} -> {target}")
        operand = self.registers[op.operands[0]]
        self.sequence.append(Send(channel, operand, target, self.frees(op, [operand])))

    def receive(self, op: ir.Operation) -> None:
        channel, source, target = self.channel(op)
        if target != self.mesh or len(op.results) != 2:
            raise self.fail(op, f"expected one value and a token, received here, found {source} -> {target}")
        sharding = None
        if "sdy.sharding" in op.attributes:
            sharding = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings[0]
        spec = read_spec(op.results[0].type, sharding, self.sizes.axes)
        self.sequence.append(Receive(channel, self.define(op.results[0], spec), source))

    def finish(self, op: ir.Operation) -> None:
        res_attrs = ir.ArrayAttr(self.op.attributes["res_attrs"]) if "res_attrs" in self.op.attributes else []
        for value, attribute in zip(op.operands, res_attrs or [None] * len(op.operands), strict=True):
            attrs = ir.DictAttr(attribute) if attribute is not None else {}
            if "jaxpp.result" not in attrs:
                raise self.fail(self.op, "a result has no jaxpp.result")
            number = integer(attrs["jaxpp.result"])
            sharding = attrs["sdy.sharding"] if "sdy.sharding" in attrs else None
            expected = self.border(value, sharding, "jaxpp.result", attrs)
            self.results.append((number, self.use(op, value, expected, f"result {number}"), _block(attrs)))


def _arguments(readers: Sequence[_MeshReader]) -> dict[int, Argument]:
    found: dict[int, list[tuple[_MeshReader, int, Block]]] = {}
    donated: dict[int, set[bool]] = {}
    for reader in readers:
        for number, register, gives, block in reader.arguments:
            found.setdefault(number, []).append((reader, register, block))
            donated.setdefault(number, set()).add(gives)
    arguments: dict[int, Argument] = {}
    for number, places in sorted(found.items()):
        spec, registers, stacked = _places(f"argument {number}", places)
        if len(donated[number]) > 1:
            raise places[-1][0].fail(places[-1][0].op, f"argument {number} is donated on one mesh, kept on another")
        arguments[number] = Argument(spec, True in donated[number], registers, stacked)
    return arguments


def _results(readers: Sequence[_MeshReader]) -> tuple[Result, ...]:
    found: dict[int, list[tuple[_MeshReader, int, Block]]] = {}
    for reader in readers:
        for number, register, block in reader.results:
            found.setdefault(number, []).append((reader, register, block))
    missing = next((number for number in range(len(found)) if number not in found), None)
    if missing is not None:
        raise ProgramError(f"no mesh returns result {missing}")
    return tuple(Result(*_places(f"result {number}", places)) for number, places in sorted(found.items()))


def _places(
    what: str, places: Sequence[tuple[_MeshReader, int, Block]]
) -> tuple[TensorSpec, tuple[tuple[int, int], ...], bool]:
    """(spec, (mesh, register) of each place, whether these are the blocks of a stack, in their order)."""
    reader, register, block = places[0]
    spec = reader.specs[register]
    for other, number, _ in places:
        if other.specs[number] != spec or spec.unreduced:
            raise other.fail(other.op, f"{what} is {other.specs[number]} here, {spec} on another mesh")
    if block is not None or any(each is not None for _, _, each in places):
        places = sorted(places, key=lambda place: place[2] or (-1, 0))
        if [each for _, _, each in places] != [(number, len(places)) for number in range(len(places))]:
            blocks = [each for _, _, each in places]
            raise reader.fail(reader.op, f"{what} has the blocks {blocks}, expected one on each of its meshes")
    return spec, tuple((each.mesh, number) for each, number, _ in places), block is not None
