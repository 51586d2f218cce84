"""`insert-transfers`: one function per mesh, with a send and a receive for each value that moves between meshes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.host_copies import copy_host_state
from jaxpp.hlo_passes.program.stacks import Stacks
from jaxpp.hlo_passes.program.transfer_order import MeshTransfer, TransferScheduler, with_early_receives
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, create, main_of, terminator
from jaxpp.ir.kinds import form_of
from jaxpp.ir.ops import shape_of
from jaxpp.ir.phases import main_of_phase
from jaxpp.ir.rows import with_size
from jaxpp.ir.shardings import MeshAxes, Shardings
from jaxpp.ir.steps import Channel, MeshLine, MeshLines, Step, leave
from jaxpp.ir.transports import RULES, check_transport
from jaxpp.ir.values import defining_op


@dataclass(frozen=True)
class InsertTransfers(Pass):
    """Splits `@main` into one function `@mesh_k` per mesh: the mesh's calls in order, with its sends and receives.

    Each value is sent once to each mesh that needs it. It is sent right after it is made, and received right before its
    first use there. An operand of a `load` is an exception: it stays on the mesh to which it was evicted, and is sent
    when the `load` comes up in `@main`. Constants, such as the microbatch index, are made where they are used. Each
    value has its own channel number for each destination. Sends under `pull`, the default, don't wait, and the token
    chain of a mesh fixes the order of its transfers. Each mesh takes and returns one block of a stack: `jaxpp.number =
    array<i64: 0, 1, 4>` is the second of the four blocks of argument or result 0.

    For a transport whose sends wait for their receives, one order of all meshes fixes the place of both. A value then
    moves as soon as it is made and neither mesh runs a task, by the usual costs of tasks. If a mesh can transfer and
    run tasks at the same time, its tasks don't delay the value. `verify-program` proves the order.

    Parameters or the state of an optimizer may be in host memory (`mhlo.memory_kind = "pinned_host"`). Such an argument
    is copied to the devices right before the first operation that uses it, and such a result back as soon as it is
    made. An argument in host memory that is returned unchanged, to host memory, is not copied. The copies are calls of
    functions that return their argument unchanged, in the other memory: `%l = call @to_devices_0(%m)`. The runtime
    copies the values and compiles nothing.

    Options:
        transport: the transport that will carry the values: `pull`, `device_put` or `pair`, as in
            `verify-program`.

    Preconditions: `infer-placement` ran.

    ```mlir
    func.func public @main(%w0, %w1, %x) {                ==>   func.func public @mesh_0(%w0, %x) {
      %a = call @forward_0(%w0, %x) {jaxpp.mesh = 0}              %a = call @forward_0(%w0, %x) {jaxpp.mesh = 0}
      %b = call @forward_1(%w1, %a) {jaxpp.mesh = 1}              "stablehlo.send"(%a, %t) {handle = 0, [[0, 1]]} }
                                                                func.func public @mesh_1(%w1) {
                                                                  %a, %t = "stablehlo.recv"(%t0) {handle = 0, [[0, 1]]}
                                                                  %b = call @forward_1(%w1, %a) {jaxpp.mesh = 1} }
    ```
    """

    transport: str = "pull"

    def __post_init__(self) -> None:
        check_transport(self.transport)

    def run(self, module: ir.Module) -> None:
        """Replaces `@main` by the functions of the meshes. Raises PassError for an operation or a value on no mesh."""
        main = main_of(module)
        placed = main_of_phase(module, placed=True)
        plan = _TransferPlan(main, placed.meshes)
        rules = RULES[self.transport]
        if rules.rendezvous:
            devices = [each.partitions for each in MeshAxes.of_each(module, placed.meshes)]
            beside = {mesh for mesh, count in enumerate(devices) if rules.is_beside(count)}
            plan.meet(placed.steps, beside, early=rules.early)
        else:
            plan.read(placed.steps)
        writer = _MeshWriter(module, main, plan.handles)
        lines = [writer.write(line) for line in plan.lines]
        main.erase()
        if not copy_host_state(module):
            leave(module, MeshLines(lines))


class _Border(NamedTuple):
    """An argument or a result of a mesh function.

    Attributes:
        number: the index of the argument or result of `@main`.
        value: its value in `@main`; for a stack, the value of the block.
        block: for a block of a stack its index and the number of blocks, otherwise None.
        donated: whether the user donated the argument.
        memory: its memory, if not the memory of the devices.
    """

    number: int
    value: ir.Value
    block: tuple[int, int] | None
    donated: bool = False
    memory: ir.Attribute | None = None


@dataclass(slots=True)
class _Placed:
    """An operation that a mesh runs.

    Attributes:
        step: the operation in `@main`.
        operands: the numbers of its operands on the mesh.
    """

    step: Step[ir.Value]
    operands: list[int]


@dataclass(slots=True)
class _Receive:
    """The receive of a value from another mesh."""

    value: ir.Value
    channel: Channel


@dataclass(slots=True)
class _Line:
    """The sequence of one mesh.

    Attributes:
        mesh: the mesh.
        arguments: the arguments of its function.
        results: the results of its function.
        steps: its constants, calls and receives, in order.
        sends: the numbers and channels of the values that are sent after each entry of `steps`, by its index; -1 is the
            start.
        returned: the numbers of the values that the function returns.
        numbers: the numbers of the values of `@main` on the mesh: arguments first, then results of `steps`.
    """

    mesh: int
    arguments: list[_Border] = field(default_factory=list[_Border])
    results: list[_Border] = field(default_factory=list[_Border])
    steps: list[_Placed | _Receive] = field(default_factory=list[Any])
    sends: dict[int, list[tuple[int, Channel]]] = field(default_factory=dict[int, Any])
    returned: list[int] = field(default_factory=list[int])
    numbers: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])

    def note(self, value: ir.Value) -> int:
        """Numbers a value that the mesh takes as an argument, makes or receives; returns the number."""
        number = self.numbers[value] = len(self.numbers)
        return number


class _TransferPlan:
    """The operations, sends and receives of each mesh, found before the module is changed.

    Attributes:
        lines: the sequence of each mesh.
        handles: the attribute of each channel.
    """

    def __init__(self, main: ir.Operation, meshes: int) -> None:
        self.lines = [_Line(mesh) for mesh in range(meshes)]
        self.handles: Sequence[ir.Attribute] = ()
        self._channels = 0
        self._main = main
        self._stacks = Stacks.of(main)
        self._whole_stacks = self._stacks.whole
        self._sources: dict[ir.Value, tuple[_Line, int, int]] = {}
        """The first mesh with a value, the index of its maker in `steps` there (-1: an argument), its number there."""
        self._constants: dict[ir.Value, Step[ir.Value]] = {}
        self._read_arguments()
        self._read_results()

    def _read_arguments(self) -> None:
        entries = at.argument_attributes(self._main)
        for number, (value, entry) in enumerate(zip(body_of(self._main).arguments, entries, strict=True)):
            homes = self._stacks.arguments.get(value)
            donated = at.DONOR in entry or at.ALIAS in entry
            for mesh in at.numbers(entry[at.MESHES]):
                block = None if homes is None else (homes.index(mesh), len(homes))
                here = value if block is None else self._slice(value, block[0])
                self.lines[mesh].arguments.append(_Border(number, here, block, donated, entry.get(at.MEMORY)))
                number_here = self.lines[mesh].note(here)
                self._sources.setdefault(here, (self.lines[mesh], -1, number_here))

    def _slice(self, argument: ir.Value, block: int) -> ir.Value:
        """Returns the value of `@main` for a block of `argument`; `argument` itself if nothing uses the block."""
        for use in argument.uses:
            value = use.owner.operation.results[0]
            if self._stacks.blocks[value] == block:
                return value
        return argument

    def _read_results(self) -> None:
        returned = terminator(body_of(self._main)).operands
        for number, entry in enumerate(at.result_attributes(self._main)):
            stack = self._stacks.results.get(number)
            for mesh in at.numbers(entry[at.MESHES]):
                block = None if stack is None else (stack.homes.index(mesh), len(stack.homes))
                value = returned[number] if stack is None or block is None else stack.op.operands[block[0]]
                self.lines[mesh].results.append(_Border(number, value, block, memory=entry.get(at.MEMORY)))

    def read(self, steps: Sequence[Step[ir.Value]]) -> None:
        """Plans the operations and transfers of each mesh, given `@main`. Raises PassError for a value on no mesh."""
        for step in steps:
            if step.function is None:
                self._add_other(step)
                continue
            for mesh in step.meshes:
                self._add(step, self.lines[mesh], late=form_of(step.kind).sends_late)
        self._return()
        for sends in (sends for line in self.lines for sends in line.sends.values()):
            if len(sends) > 1:
                needed = {number: -place for place, number in reversed([*enumerate(number for number, _ in sends)])}
                sends.sort(key=lambda send: needed[send[0]])  # the value that is needed first goes last

    def meet(self, steps: Sequence[Step[ir.Value]], beside: Collection[int], *, early: bool) -> None:
        """Plans as `read` does, but puts each send and its receive next to each other in one order of all meshes.

        Args:
            steps: the operations of `@main`.
            beside: the meshes whose transfers run beside their calls.
            early: whether the meshes in `beside` receive one call earlier.
        """
        homes: dict[ir.Value, list[int]] = {}
        for line in self.lines:
            for border in line.arguments:
                homes.setdefault(border.value, []).append(line.mesh)
        results = {line.mesh: [border.value for border in line.results] for line in self.lines}
        for step in steps:
            if step.function is None:
                self._add_other(step)
        channels: dict[MeshTransfer, Channel] = {}
        actions = TransferScheduler(steps, homes, results, beside).run()
        for mesh, what in with_early_receives(actions, beside) if early else actions:
            line = self.lines[mesh]
            if not isinstance(what, MeshTransfer):
                self._add(what, line, late=False)
                continue
            if what not in channels:
                channels[what] = self._channel(what.source, what.target)
            if what.target == mesh:
                line.steps.append(_Receive(what.value, channels[what]))
                line.note(what.value)
            else:
                line.sends.setdefault(len(line.steps) - 1, []).append((line.numbers[what.value], channels[what]))
        self._return()

    def _return(self) -> None:
        """Makes or receives, on each mesh, the values that its function returns, and numbers the channels."""
        for line in self.lines:
            line.returned = self._bring([border.value for border in line.results], line, late=False)
        texts = [f"#stablehlo.channel_handle<handle = {number}, type = 1>" for number in range(self._channels)]
        # Parsing each attribute by itself takes three times as long.
        self.handles = list(ir.ArrayAttr(ir.Attribute.parse(f"[{', '.join(texts)}]")))

    def _add_other(self, step: Step[ir.Value]) -> None:
        """Notes a constant for its users. Raises PassError for any operation but constants and blocks of stacks."""
        if step.name == "stablehlo.constant":
            self._constants[step.results[0]] = step
        elif self._stacks.blocks.keys().isdisjoint(step.results) and self._whole_stacks.isdisjoint(step.results):
            raise PassError(f"a {step.name} on no mesh", location=step.op.location, hint="run infer-placement first")

    def _add(self, call: Step[ir.Value], line: _Line, *, late: bool) -> None:
        operands = self._bring(call.operands, line, late=late)
        step = len(line.steps)
        for value in call.results:
            self._sources.setdefault(value, (line, step, line.note(value)))
        line.steps.append(_Placed(call, operands))

    def _bring(self, values: Sequence[ir.Value], line: _Line, *, late: bool) -> list[int]:
        """Makes or receives each of `values` that the mesh lacks; returns the numbers of all `values` there."""
        numbers = list(map(line.numbers.get, values))
        pairs = zip(numbers, values, strict=True)
        return [self._fetch(value, line, late=late) if number is None else number for number, value in pairs]

    def _fetch(self, value: ir.Value, line: _Line, *, late: bool) -> int:
        """Makes a constant on the mesh of `line`, or receives another value; returns its number there.

        The value is sent right after it is made; with `late`, after the last operation that the sender runs so far.
        """
        if value in line.numbers:  # fetched for an earlier operand
            return line.numbers[value]
        found = self._sources.get(value)
        if found is None:
            return self._make_constant(value, line)
        source, step, number = found
        if late:
            runs = (place for place in reversed(range(len(source.steps))) if isinstance(source.steps[place], _Placed))
            step = next(runs, step)
        channel = self._channel(source.mesh, line.mesh)
        source.sends.setdefault(step, []).append((number, channel))
        line.steps.append(_Receive(value, channel))
        return line.note(value)

    def _make_constant(self, value: ir.Value, line: _Line) -> int:
        """Makes a constant on a mesh; returns its number there. Raises PassError for any other value."""
        constant = self._constants.get(value)
        if constant is None:
            op = defining_op(value)
            what, where = ("an argument of @main", self._main) if op is None else ("a value", op)
            raise PassError(f"{what} that mesh {line.mesh} needs is on no mesh", location=where.location)
        line.steps.append(_Placed(constant, []))
        return line.note(value)

    def _channel(self, source: int, target: int) -> Channel:
        """Returns a new channel between two meshes."""
        self._channels += 1
        return self._channels - 1, source, target


class _MeshWriter:
    """A writer of the mesh functions, which moves the calls of `@main` into them."""

    def __init__(self, module: ir.Module, main: ir.Operation, handles: Sequence[ir.Attribute]) -> None:
        self._module = module
        self._main = main
        self._handles = handles
        self._first: dict[tuple[Any, ...], ir.Operation] = {}
        self._shardings = Shardings(module)
        self._recv_sharding: dict[ir.Attribute, ir.Attribute] = {}
        self._tokens = [ir.Type.parse("!stablehlo.token")]
        self._unknown = ir.Location.unknown()

    def write(self, line: _Line) -> MeshLine:
        """Writes the function of one mesh; returns its operations and values."""
        block = body_of(self._function(line))
        self._ip = ir.InsertionPoint(block)
        self._line = MeshLine([], list(block.arguments))
        self._token: ir.Value = stablehlo.create_token(ip=self._ip, loc=self._unknown)
        op = ir.OpResult(self._token).owner.operation
        self._line.steps.append(Step(op, op.name, [], ()))
        self._send(line.sends.get(-1, []))
        for number, step in enumerate(line.steps):
            if isinstance(step, _Receive):
                self._receive(step)
            else:
                self._run(step, block, line.mesh)
            if number in line.sends:
                self._send(line.sends[number])
        values = [self._line.values[number] for number in line.returned]
        op = func.return_(values, ip=self._ip, loc=self._unknown).operation
        self._line.steps.append(Step(op, op.name, line.returned, ()))
        return self._line

    def _function(self, line: _Line) -> ir.Operation:
        """Creates the function of a mesh, without its body."""
        inputs = [_type(border) for border in line.arguments]
        outputs = [border.value.type for border in line.results]
        name, attributes = f"mesh_{line.mesh}", {at.MESH: at.i64(line.mesh)}
        function = create(self._module, name, inputs, outputs, attributes, visibility="public", before=self._main)
        at.set_tables(function, list(map(self._entry, line.arguments)), list(map(self._entry, line.results)))
        return function

    def _entry(self, border: _Border) -> dict[str, ir.Attribute]:
        """Returns the attributes of an argument or a result."""
        number = at.one_or_several([border.number, *(border.block or ())])
        entry: dict[str, ir.Attribute] = {at.NUMBER: number}
        sharding = self._shardings.of(border.value)
        if sharding is not None:
            entry[at.SHARDING] = sharding
        if border.donated:
            entry[at.DONOR] = ir.BoolAttr.get(True)
        if border.memory is not None:
            entry[at.MEMORY] = border.memory
        return entry

    def _run(self, run: _Placed, block: ir.Block, mesh: int) -> None:
        """Moves or clones an operation to the end of `block`, with the mesh's values as operands."""
        step, values = run.step, self._line.values
        if step.function is None:  # each mesh makes its own constants
            op = step.op.clone(self._ip).operation
            self._line.steps.append(Step(op, step.name, [], (len(values),)))
            values.append(op.result)
            return
        if len(step.meshes) > 1:
            step = Step.of(step.op.clone(self._ip).operation)
            del step.op.attributes[at.MESHES]
            step.op.attributes[at.MESH] = at.i64(mesh)
        else:
            block.append(step.op)
        operands = step.op.operands
        for position, (number, value) in enumerate(zip(run.operands, step.operands, strict=True)):
            if values[number] is not value:
                operands[position] = values[number]
        first = len(values)
        values += step.results
        here: Step[Any] = step
        here.operands, here.results = run.operands, range(first, len(values))
        self._line.steps.append(here)

    def _send(self, sends: Sequence[tuple[int, Channel]]) -> None:
        """Sends values, each on its channel."""
        for number, channel in sends:
            op = self._transfer("stablehlo.send", channel, [self._line.values[number], self._token], self._tokens)
            self._line.steps.append(Step(op, "stablehlo.send", [number], (), channel=channel))
            self._token = op.results[0]

    def _receive(self, step: _Receive) -> None:
        type_, sharding = step.value.type, self._shardings.of(step.value)
        op = self._transfer("stablehlo.recv", step.channel, [self._token], [type_, *self._tokens], sharding)
        made, channel = (len(self._line.values),), step.channel
        self._line.steps.append(Step(op, "stablehlo.recv", [], made, channel=channel))
        results = op.results
        self._line.values.append(results[0])
        self._token = results[1]

    def _transfer(
        self,
        name: str,
        channel: Channel,
        operands: Sequence[ir.Value],
        types: Sequence[ir.Type],
        sharding: ir.Attribute | None = None,
    ) -> ir.Operation:
        """Makes a send or a receive. All but the first of its kind are clones, which take half as long."""
        number, source, target = channel
        key = name, source, target, types[0], sharding
        first = self._first.get(key)
        if first is None:
            pair = ir.Attribute.parse(f"dense<[[{source}, {target}]]> : tensor<1x2xi64>")
            attributes = {"channel_handle": self._handles[number], "source_target_pairs": pair}
            if sharding is not None:
                attributes[at.SHARDING] = self._received(sharding)
            op = ir.Operation.create(name, types, operands, attributes, ip=self._ip, loc=self._unknown)
            self._first[key] = op
            return op
        op = first.clone(self._ip).operation
        op.attributes["channel_handle"] = self._handles[number]
        places = op.operands
        for place, value in enumerate(operands):
            places[place] = value
        return op

    def _received(self, sharding: ir.Attribute) -> ir.Attribute:
        """Returns the sharding of a receive: one entry for the value, one for the token."""
        if sharding not in self._recv_sharding:
            text = str(sharding).removeprefix("#sdy.sharding")
            mesh = text[1:].split(",")[0]
            parsed = ir.Attribute.parse(f"#sdy.sharding_per_value<[{text}, <{mesh}, []>]>")
            self._recv_sharding[sharding] = parsed
        return self._recv_sharding[sharding]


def _type(border: _Border) -> ir.Type:
    """Returns the type of an argument of a mesh function.

    A stack's argument has the type of one block, even if no value of `@main` is that block.
    """
    if border.block is None or isinstance(border.value, ir.OpResult):
        return border.value.type
    return with_size(border.value.type, 0, shape_of(border.value)[0] // border.block[1])
