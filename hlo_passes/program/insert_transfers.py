"""`insert-transfers`: one function per mesh, with a send and a receive for each value that moves between meshes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.host_copies import copy_host_state
from jaxpp.hlo_passes.program.stacks import Stacks
from jaxpp.hlo_passes.program.transfer_order import MeshTransfer, TransferScheduler, with_early_receives
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, main_of, terminator
from jaxpp.ir.kinds import form_of
from jaxpp.ir.mesh_functions import tasks_of_call
from jaxpp.ir.mesh_lines import Border, Literal, MeshLine, MeshLines
from jaxpp.ir.ops import shape_of
from jaxpp.ir.phases import main_of_phase
from jaxpp.ir.program import Call, Receive, Send, TaskName
from jaxpp.ir.rows import with_size
from jaxpp.ir.shardings import MeshAxes, Shardings
from jaxpp.ir.steps import Step, leave
from jaxpp.ir.transports import rules_of
from jaxpp.ir.values import defining_op
from jaxpp.ir.write_lines import write_lines


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
        rules_of(self.transport)  # raises for an unknown name

    def run(self, module: ir.Module) -> None:
        """Replaces `@main` by the functions of the meshes. Raises PassError for an operation or a value on no mesh."""
        placed = main_of_phase(module, placed=True)
        plan = _TransferPlan(module, placed.meshes)
        rules = rules_of(self.transport)
        if rules.rendezvous:
            devices = [each.partitions for each in MeshAxes.of_each(module, placed.meshes)]
            beside = {mesh for mesh, count in enumerate(devices) if rules.is_beside(count)}
            lines = plan.meet(placed.steps, beside, early=rules.early)
        else:
            lines = plan.read(placed.steps)
        main_of(module).erase()
        if any(border.memory for line in lines.lines for border in (*line.arguments, *line.results)):
            write_lines(module, lines)
            copy_host_state(module)
        else:
            leave(module, lines)


@dataclass(slots=True)
class _Growing:
    """The line of one mesh, which grows.

    Attributes:
        line: the line; its sequence is empty until the end.
        steps: its constants, calls and receives, in order.
        locations: the location of each entry of `steps`.
        sends: the sends after each entry of `steps`, by its index; -1 is the start.
        results: the value of `@main` of each result.
        numbers: the registers of the values of `@main`: arguments first, then results of `steps`.
    """

    line: MeshLine
    steps: list[Literal | Call | Receive] = field(default_factory=list[Any])
    locations: list[ir.Location] = field(default_factory=list[ir.Location])
    sends: dict[int, list[Send]] = field(default_factory=dict[int, Any])
    results: list[ir.Value] = field(default_factory=list[ir.Value])
    numbers: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])

    def note(self, value: ir.Value) -> int:
        """Gives a value that the mesh takes as an argument, makes or receives a register; returns the register."""
        number = self.numbers[value] = len(self.numbers)
        return number

    def finished(self, unknown: ir.Location) -> MeshLine:
        """Returns the line, with the sends in their places; their location is `unknown`."""
        line, sequence = self.line, self.line.sequence
        sequence += (first := self.sends.get(-1, []))
        line.locations += [unknown] * len(first)
        for place, step in enumerate(self.steps):
            sequence.append(step)
            line.locations.append(self.locations[place])
            if place in self.sends:
                sequence += self.sends[place]
                line.locations += [unknown] * len(self.sends[place])
        line.locations += [unknown, unknown]
        line.registers = len(self.numbers)
        return line


class _TransferPlan:
    """The operations, sends and receives of each mesh, found in `@main`, which does not change."""

    def __init__(self, module: ir.Module, meshes: int) -> None:
        self._main = main_of(module)
        self._growing = [_Growing(MeshLine(mesh)) for mesh in range(meshes)]
        self._unknown = ir.Location.unknown(module.context)
        self._channels = 0
        self._shardings = Shardings(module)
        self._stacks = Stacks.of(self._main)
        self._sources: dict[ir.Value, tuple[_Growing, int, int]] = {}
        """The first mesh with a value, the index of its maker in `steps` there (-1: an argument), its register."""
        self._constants: dict[ir.Value, Step] = {}
        self._literals: dict[ir.Value, ir.Operation] = {}
        """The operation of each constant that a mesh makes, in no block."""
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
                border = self._border(number, here, block, donated, entry)
                self._growing[mesh].line.arguments.append(border)
                register = self._growing[mesh].note(here)
                self._sources.setdefault(here, (self._growing[mesh], -1, register))

    def _border(
        self, number: int, value: ir.Value, block: tuple[int, int] | None, donated: bool, entry: dict[str, ir.Attribute]
    ) -> Border:
        return Border(number, _type(value, block), donated, block, self._shardings.of(value), entry.get(at.MEMORY))

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
                self._growing[mesh].line.results.append(self._border(number, value, block, False, entry))
                self._growing[mesh].results.append(value)

    def read(self, steps: Sequence[Step]) -> MeshLines:
        """Plans the operations and transfers of each mesh, given `@main`. Raises PassError for a value on no mesh."""
        self._note_others(steps)
        for step in steps:
            for mesh in step.meshes if step.function is not None else ():
                self._add(step, self._growing[mesh], late=form_of(step.kind).sends_late)
        self._return()
        for sends in (sends for each in self._growing for sends in each.sends.values()):
            if len(sends) > 1:
                needed = {send.operand: -place for place, send in reversed([*enumerate(sends)])}
                sends.sort(key=lambda send: needed[send.operand])  # the value that is needed first goes last
        return self._lines()

    def meet(self, steps: Sequence[Step], beside: Collection[int], *, early: bool) -> MeshLines:
        """Plans as `read` does, but puts each send and its receive next to each other in one order of all meshes.

        Args:
            steps: the operations of `@main`.
            beside: the meshes whose transfers run beside their calls.
            early: whether the meshes in `beside` receive one call earlier.
        """
        homes: dict[ir.Value, list[int]] = {}
        for growing in self._growing:
            for value in growing.numbers:
                homes.setdefault(value, []).append(growing.line.mesh)
        results = {growing.line.mesh: growing.results for growing in self._growing}
        self._note_others(steps)
        channels: dict[MeshTransfer, int] = {}
        actions = TransferScheduler(steps, homes, results, beside).run()
        for mesh, what in with_early_receives(actions, beside) if early else actions:
            growing = self._growing[mesh]
            if not isinstance(what, MeshTransfer):
                self._add(what, growing, late=False)
                continue
            if what not in channels:
                channels[what] = self._channel()
            if what.target == mesh:
                self._receive(what.value, growing, channels[what], what.source)
            else:
                send = Send(channels[what], growing.numbers[what.value], what.target, ())
                growing.sends.setdefault(len(growing.steps) - 1, []).append(send)
        self._return()
        return self._lines()

    def _return(self) -> None:
        """Makes or receives, on each mesh, the values that its function returns."""
        for growing in self._growing:
            growing.line.returned.extend(self._bring(growing.results, growing, late=False))

    def _lines(self) -> MeshLines:
        return MeshLines([growing.finished(self._unknown) for growing in self._growing])

    def _note_others(self, steps: Sequence[Step]) -> None:
        """Notes the constants for their users. Raises PassError for other operations, but those of stacks."""
        self._stacks.check_others(steps)
        self._constants.update({step.results[0]: step for step in steps if step.name == "stablehlo.constant"})

    def _add(self, step: Step, growing: _Growing, *, late: bool) -> None:
        """Appends a call to the line of a mesh."""
        operands = self._bring(step.operands, growing, late=late)
        place, results = len(growing.steps), list[int]()
        for value in step.results:
            register = growing.note(value)
            results.append(register)
            self._sources.setdefault(value, (growing, place, register))
        tasks = tasks_of_call(step.op, step.kind) if step.task is None else (TaskName(step.kind, *step.task[:3]),)
        growing.steps.append(Call(step.callee, tuple(operands), tuple(results), step.kind, tasks, ()))
        growing.locations.append(step.op.location)

    def _bring(self, values: Sequence[ir.Value], growing: _Growing, *, late: bool) -> list[int]:
        """Makes or receives each of `values` that the mesh lacks; returns the registers of all `values` there."""
        numbers = list(map(growing.numbers.get, values))
        pairs = zip(numbers, values, strict=True)
        return [self._fetch(value, growing, late=late) if number is None else number for number, value in pairs]

    def _fetch(self, value: ir.Value, growing: _Growing, *, late: bool) -> int:
        """Makes a constant on a mesh, or receives another value; returns its register there.

        The value is sent right after it is made; with `late`, after the last operation that the sender runs so far.
        """
        if value in growing.numbers:  # fetched for an earlier operand
            return growing.numbers[value]
        found = self._sources.get(value)
        if found is None:
            return self._make_constant(value, growing)
        source, place, register = found
        if late:
            places = reversed(range(len(source.steps)))
            place = next((each for each in places if not isinstance(source.steps[each], Receive)), place)
        channel = self._channel()
        source.sends.setdefault(place, []).append(Send(channel, register, growing.line.mesh, ()))
        return self._receive(value, growing, channel, source.line.mesh)

    def _receive(self, value: ir.Value, growing: _Growing, channel: int, source: int) -> int:
        register = growing.note(value)
        growing.steps.append(Receive(channel, register, source))
        growing.locations.append(self._unknown)
        growing.line.received[register] = value.type, self._shardings.of(value)
        return register

    def _make_constant(self, value: ir.Value, growing: _Growing) -> int:
        """Makes a constant on a mesh; returns its register there. Raises PassError for any other value."""
        if value not in self._constants:
            op = defining_op(value)
            what, where = ("an argument of @main", self._main) if op is None else ("a value", op)
            message = f"{what} that mesh {growing.line.mesh} needs is on no mesh"
            raise PassError(message, location=where.location)
        if value not in self._literals:
            self._literals[value] = self._constants[value].op.clone(ip=False).operation
        register = growing.note(value)
        growing.steps.append(Literal(register, self._literals[value]))
        growing.locations.append(self._literals[value].location)
        return register

    def _channel(self) -> int:
        """Returns the number of a new channel."""
        self._channels += 1
        return self._channels - 1


def _type(value: ir.Value, block: tuple[int, int] | None) -> ir.Type:
    """Returns the type of an argument or a result of a mesh function.

    A stack's argument has the type of one block, even if no value of `@main` is that block.
    """
    if block is None or isinstance(value, ir.OpResult):
        return value.type
    return with_size(value.type, 0, shape_of(value)[0] // block[1])
