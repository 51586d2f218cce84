"""Reads the mesh functions of a module (docs/ir.md, section 6), and checks what the text can say and a line can't."""

from collections.abc import Callable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, callee, functions, name_of, operations
from jaxpp.ir.mesh_functions import mesh_functions, tasks_of_call
from jaxpp.ir.mesh_lines import Border, Instruction, Literal, MeshLine, MeshLines
from jaxpp.ir.program import Call, Receive, Send
from jaxpp.ir.steps import handed

Entry = Mapping[str, ir.Attribute]


def mesh_lines(module: ir.Module, *, last_uses: bool = True) -> MeshLines:
    """Returns the lines of all meshes: as the last pass left them, or read anew by `read_lines`."""
    return handed(module, MeshLines) or read_lines(module, last_uses=last_uses)


def read_lines(module: ir.Module, *, last_uses: bool = True) -> MeshLines:
    """Reads all mesh functions, their `jaxpp.last_use` only with `last_uses`.

    Raises ProgramError for an operation or an attribute that no program has.
    """
    kinds = {
        name: kind.value if isinstance(kind := op.attributes.get(at.KIND), ir.StringAttr) else ""
        for name, op in functions(module).items()
    }
    numbers: dict[ir.Attribute, tuple[int, ...]] = {}
    bodies = enumerate(mesh_functions(module))
    return MeshLines([_Reader(mesh, op, kinds, numbers, last_uses).read() for mesh, op in bodies])


def read_borders(function: ir.Operation, kind: str) -> list[Border]:
    """Reads the arguments, or the results (`kind`), of a mesh function. Raises ProgramError where a number lacks."""
    table = at.argument_attributes if kind == "argument" else at.result_attributes
    signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    types = signature.inputs if kind == "argument" else signature.results
    return [
        _read_border(function, f"{kind} {position} of @{name_of(function)}", kind, type_, entry)
        for position, (type_, entry) in enumerate(zip(types, table(function), strict=True))
    ]


def _read_border(function: ir.Operation, what: str, kind: str, type_: ir.Type, entry: Entry) -> Border:
    match at.plain(entry.get(at.NUMBER)):
        case int(number) if number >= 0:
            block = None
        case [number, index, count] if number >= 0 and 0 <= index < count:
            block = index, count
        case _:
            expected = f"the number of the step's {kind}, or array<i64: number, block, blocks>"
            message = f"{what} has {at.found(entry, at.NUMBER)}, expected {expected}"
            raise ProgramError(message, location=function.location)
    donated = at.DONOR in entry or at.ALIAS in entry
    return Border(number, type_, donated, block, entry.get(at.SHARDING), entry.get(at.MEMORY))


class _Reader:
    """Reads one mesh function, whose sends and receives must form one chain of tokens.

    kinds: the kind of each function of the module.
    numbers: the numbers in attributes that were read; all meshes share them.
    last_uses: whether `jaxpp.last_use` is read.
    """

    def __init__(
        self,
        mesh: int,
        op: ir.Operation,
        kinds: Mapping[str, str],
        numbers: dict[ir.Attribute, tuple[int, ...]],
        last_uses: bool,
    ) -> None:
        noted = op.attributes.get(at.BYTES)
        if noted is not None and not isinstance(noted, ir.DictAttr):
            raise ProgramError(f"{at.BYTES} is {noted}, expected numbers of bytes by name", location=op.location)
        peaks = at.noted_bytes(op)
        self._line = MeshLine(mesh, read_borders(op, "argument"), read_borders(op, "result"), function=op)
        self._line.peak, self._line.host_peak = peaks.get("peak", 0), peaks.get("host_peak", 0)
        self._op, self._kinds, self._numbers, self._last_uses = op, kinds, numbers, last_uses
        self._known: dict[ir.Value, int] = {value: number for number, value in enumerate(body_of(op).arguments)}
        self._token: ir.Value | None = None

    def read(self) -> MeshLine:
        """Returns the line of the mesh."""
        readers: dict[str, Callable[[ir.Operation], Instruction]] = {
            "func.call": self._call,
            "stablehlo.constant": self._literal,
            "stablehlo.recv": self._transfer,
            "stablehlo.send": self._transfer,
        }
        line = self._line
        for op in operations(body_of(self._op)):
            name = op.name
            if name == "stablehlo.create_token":
                self._begin(op)
            elif name == "func.return":
                line.returned.extend(self._registers(op))
                self._frees(op, ())
                line.locations += [op.location, self._op.location]
            elif name in readers:
                line.sequence.append(readers[name](op))
                line.locations.append(op.location)
            else:
                found = f"a mesh function has a {name}"
                message = f"{found}: only constants, calls, sends and receives are allowed"
                raise ProgramError(message, location=op.location)
        line.registers = len(self._known)
        return line

    def _registers(self, op: ir.Operation, values: Sequence[ir.Value] | None = None) -> list[int]:
        """Returns the registers of `values`, which `op` uses: its operands, if not given."""
        found = [self._known.get(value) for value in (op.operands if values is None else values)]
        registers = [register for register in found if register is not None]
        if len(registers) < len(found):
            raise ProgramError(f"a {op.name} of a token, which only a send or a recv takes", location=op.location)
        return registers

    def _make(self, values: Sequence[ir.Value]) -> tuple[int, ...]:
        registers = tuple(range(len(self._known), len(self._known) + len(values)))
        self._known.update(zip(values, registers, strict=True))
        return registers

    def _call(self, op: ir.Operation) -> Call:
        name, operands = callee(op), tuple(self._registers(op))
        mesh = op.attributes.get(at.MESH)
        if mesh is not None and not at.is_number(mesh, self._line.mesh, self._line.mesh + 1):
            found = f"the call of @{name}: {at.MESH} is {mesh}"
            raise ProgramError(f"{found}, expected {self._line.mesh}, the mesh of its function", location=op.location)
        kind = self._kinds.get(name, "")
        tasks = tasks_of_call(op, kind) if name in self._kinds else ()
        return Call(name, operands, self._make(list(op.results)), kind, tasks, self._frees(op, operands))

    def _literal(self, op: ir.Operation) -> Literal:
        (register,) = self._make(list(op.results))
        return Literal(register, op.clone(ip=False).operation)

    def _transfer(self, op: ir.Operation) -> Send | Receive:
        *values, taken = op.operands
        *made, token = op.results
        if len(values) + len(made) != 1:
            message = f"a {op.name} of {len(values) + len(made)} values, expected one"
            raise ProgramError(message, location=op.location)
        if taken != self._token:
            message = f"a {op.name} does not take the token of what is before it"
            raise ProgramError(message, location=op.location)
        self._token = token
        channel, source, target = self._channel(op)
        here, there = (source, target) if values else (target, source)
        if not there != here == self._line.mesh:
            message = f"channel {channel}: a {op.name} on mesh {self._line.mesh}"
            raise ProgramError(message, location=op.location)
        if values:
            (operand,) = self._registers(op, values)
            return Send(channel, operand, target, self._frees(op, (operand,)))
        (register,) = self._make(made)
        sharding = at.value_sharding(made[0]) if at.SHARDING in op.attributes else None
        self._line.received[register] = made[0].type, sharding
        return Receive(channel, register, source)

    def _begin(self, op: ir.Operation) -> None:
        if self._token is not None:
            chains = sum(each.name == op.name for each in operations(body_of(self._op)))
            raise ProgramError(f"a mesh function has {chains} token chains, expected one", location=self._op.location)
        self._token = op.results[0]

    def _channel(self, op: ir.Operation) -> tuple[int, int, int]:
        """Returns the channel number, the sending and the receiving mesh of a send or a receive."""
        attributes = op.attributes
        pairs = attributes.get("source_target_pairs")
        if pairs is None:
            raise ProgramError(f"a {op.name} without source_target_pairs", location=op.location)
        pair = self._numbers.get(pairs)
        if pair is None:
            pair = self._numbers[pairs] = tuple(int(mesh) for mesh in ir.DenseIntElementsAttr(pairs))
        if len(pair) != 2:
            found = f"{len(pair) // 2} source-target pairs"
            raise ProgramError(f"a {op.name} with {found}, expected one", location=op.location)
        return stablehlo.ChannelHandle(attributes["channel_handle"]).handle, pair[0], pair[1]

    def _frees(self, op: ir.Operation, operands: Sequence[int]) -> tuple[int, ...]:
        """Returns the operands that `jaxpp.last_use` names. Raises ProgramError where it names no operand."""
        attribute = op.attributes.get(at.LAST_USE)
        if attribute is None or not self._last_uses:
            return ()
        numbers = self._numbers.get(attribute)
        if numbers is None:
            if not isinstance(attribute, ir.DenseI64ArrayAttr):
                raise ProgramError(f"{at.LAST_USE} is {attribute}, expected array<i64: ...>", location=op.location)
            numbers = self._numbers[attribute] = tuple(at.numbers(attribute))
        wrong = next((number for number in numbers if not 0 <= number < len(operands)), None)
        if wrong is not None:
            message = f"{at.LAST_USE} names operand {wrong}, which must not die here"
            raise ProgramError(message, location=op.location)
        return tuple(sorted({operands[number] for number in numbers}))
