"""A program flattened for dispatch: one list of small tuples over the registers of all meshes of this process."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from jax.sharding import SingleDeviceSharding

from jaxpp import _compat
from jaxpp.ir.program import Call, Instruction, Place, Program, Receive, Send
from jaxpp.runtime.execution.links import Links
from jaxpp.runtime.execution.operations import Operations, bound
from jaxpp.runtime.execution.order import Merged
from jaxpp.runtime.execution.registers import NOTHING, Operands, Registers, getter
from jaxpp.runtime.execution.route import Parts, route_of
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.processes.arrays import batch_copy

Labelled = tuple[int, Instruction]
"""(mesh, instruction)"""

StepLabel = tuple[Labelled, ...]
"""The instructions of one flat step: one call, or the sends of one batch. Empty for a step that only waits."""

FlatStep = tuple[Callable[..., Any], Operands, slice, tuple[int, ...], Any, StepLabel]
"""(function, operands, result registers, registers to free, extra, label).

For a call, `function` is its entry in `Runs`, and `extra` has the result handlers. Otherwise `extra` is None, and
`function` maps arrays to arrays: a batch of copies, or a function of `Links`.
"""

Runs = Mapping[tuple[str, int], Callable[..., Any]]
"""The function that runs each (function, mesh), with the signature of an executable's `execute_sharded`."""

Copy = Callable[[Sequence[Any]], list[Any]]


@dataclasses.dataclass
class _Emitter:
    """Emits the steps of one instruction after the other.

    Attributes:
        is_batched: whether a step may be several copies. Otherwise each instruction is a separate step.
        sends: the sends that the next batch of copies has so far.
        in_flight: for each channel within this process, the register of the copy, if the receive is a separate step.
        handlers: the result handlers of each function, by mesh.
        copies: for each function that only copies to another memory, by mesh, the function that runs it.
        coming: (receive, pieces, registers) of the values that were asked for and not yet waited for.
        asked: the channels whose values were asked for.
        copied: for each channel between processes, the pieces that stay in this process, piece -> register.
    """

    program: Program
    runs: Runs
    shardings: SubmeshShardings
    registers: Registers
    links: Links | None
    operations: Operations
    is_batched: bool
    steps: list[FlatStep] = dataclasses.field(default_factory=list[FlatStep])
    sends: list[tuple[int, Send]] = dataclasses.field(default_factory=list[tuple[int, Send]])
    in_flight: dict[int, int] = dataclasses.field(default_factory=dict[int, int])
    handlers: dict[tuple[str, int], list[Any]] = dataclasses.field(default_factory=dict[tuple[str, int], list[Any]])
    copies: dict[tuple[str, int], Copy] = dataclasses.field(default_factory=dict[tuple[str, int], Copy])
    coming: dict[Place, tuple[Receive, list[int], list[int]]] = dataclasses.field(default_factory=dict[Any, Any])
    asked: set[int] = dataclasses.field(default_factory=set[int])
    copied: dict[int, dict[int, int]] = dataclasses.field(default_factory=dict[int, dict[int, int]])

    @cached_property
    def fragile(self) -> set[Place]:
        """The registers whose arrays may be donated or deleted before another process has fetched them."""
        return _fragile(self.program)

    @cached_property
    def always_copies(self) -> bool:
        """Whether to copy between meshes that share devices: a mesh may donate a value that the other still needs."""
        return self.shardings.are_shared(range(self.program.meshes))

    def add(
        self,
        function: Callable[..., Any],
        operands: Operands,
        results: slice,
        frees: Sequence[int],
        *label: tuple[int, Instruction],
    ) -> None:
        """Adds a step that is not a call."""
        self.steps.append((function, operands, results, tuple(frees), None, label))

    def call(self, mesh: int, call: Call) -> None:
        function = self.program.functions[call.function]
        if function.is_copy and self.pass_on(mesh, call):
            return
        self.copy_pending()
        for register in call.operands:
            self.arrive(mesh, register)
        if self.links and (settle := self.links.settle(mesh, call)):
            self.add(settle, NOTHING, slice(0, 0), ())
        key = (call.function, mesh)
        if key not in self.handlers:
            placed = [self.shardings.place(spec, (mesh,)) for spec in function.results]
            self.handlers[key] = [each.join for each in placed]
            if function.is_copy:
                self.copies[key] = batch_copy([each.sharding for each in placed])
        operands = self.registers.read(mesh, call.operands)
        results = self.registers.define([(mesh, register) for register in call.results])
        frees = tuple(self.registers.number(mesh, register) for register in call.frees)  # also unused results
        if function.is_operation:
            run = bound(call, self.operations, self.shardings.devices_here(mesh)[0], wait=not self.is_batched)
            self.add(run, operands, results, frees, (mesh, call))
        elif key in self.copies:
            self.add(self.copies[key], operands, results, frees, (mesh, call))
        else:
            self.steps.append((self.runs[key], operands, results, frees, self.handlers[key], ((mesh, call),)))

    def pass_on(self, mesh: int, call: Call) -> bool:
        """Replaces a copy within one memory by its operands, if they all are on their way; returns whether it did."""
        pairs = [((mesh, one), (mesh, other)) for one, other in zip(call.operands, call.results, strict=True)]
        function = self.program.functions[call.function]
        waiting = all(place in self.coming for place, _ in pairs) and {*call.operands} <= {*call.frees}
        if not (self.is_batched and waiting and function.arguments == function.results):
            return False
        for place, result in pairs:
            self.coming[result] = self.coming.pop(place)
        return True

    def send(self, mesh: int, send: Send) -> None:
        """Copies the pieces that stay in this process, and offers the others to their receivers."""
        if self.links is not None and self.links.exchange.crosses(send.channel):
            self.offer(self.links, mesh, send)
        elif self.is_batched and route_of(self.program, send.channel).is_direct:
            self.sends.append((mesh, send))
        else:
            self.copy(mesh, send)

    def copy(self, mesh: int, send: Send) -> None:
        """Copies one value to a mesh of this process, which may cut the value differently."""
        self.copy_pending()
        self.arrive(mesh, send.operand)
        copy = _copy_of(self.program, self.shardings, send.channel)
        frees = [self.registers.number(mesh, register) for register in send.frees]
        operands = self.registers.read(mesh, [send.operand])
        if self.is_batched:
            results = self.registers.define([self.program.hops[send.channel][2:]])
        else:
            (self.in_flight[send.channel],) = made = self.registers.reserve(1)
            results = slice(made.start, made.stop)
        self.add(copy, operands, results, frees, (mesh, send))

    def copy_pending(self) -> None:
        if not self.sends:
            return
        for mesh, send in self.sends:
            self.arrive(mesh, send.operand)
        operands = getter([self.registers.number(mesh, send.operand) for mesh, send in self.sends])
        frees = [self.registers.number(mesh, register) for mesh, send in self.sends for register in send.frees]
        destinations = [self.program.hops[send.channel][2:] for _, send in self.sends]
        placed = [self.shardings.place(self.program.registers[mesh][value], (mesh,)) for mesh, value in destinations]
        copy = batch_copy([each.sharding for each in placed], self.always_copies)
        self.add(copy, operands, self.registers.define(destinations), frees, *self.sends)
        self.sends = []

    def offer(self, links: Links, mesh: int, send: Send) -> None:
        """Offers the pieces that go to other processes, and copies those that stay in this one."""
        self.copy_pending()
        self.arrive(mesh, send.operand)
        offer = links.offer(send)
        if (mesh, send.operand) in self.fragile:
            sharding = self.shardings.place(self.program.registers[mesh][send.operand], (mesh,)).sharding
            offer = _after(batch_copy([sharding], always=True), offer)
        stays, cut, devices = links.exchange.stays(send.channel)
        made = self.registers.reserve(len(stays))
        if stays:
            self.copied[send.channel] = dict(zip(stays, made, strict=True))
            offer = _both(_on_shards(cut, batch_copy([SingleDeviceSharding(device) for device in devices])), offer)
        frees = [self.registers.number(mesh, register) for register in send.frees]
        operands = self.registers.read(mesh, [send.operand])
        self.add(offer, operands, slice(made.start, made.stop), frees, (mesh, send))

    def receive(self, mesh: int, receive: Receive) -> None:
        """Asks for the pieces that come from other processes. A copy within this process is there already.

        If the value was already asked for at its send, this waits for it at the latest.
        """
        if self.links is None or not self.links.exchange.crosses(receive.channel):
            if not self.is_batched:
                copied = self.in_flight.pop(receive.channel)
                results = self.registers.define([(mesh, receive.result)])
                self.add(list, getter([copied]), results, [copied], (mesh, receive))
            return
        if receive.channel in self.asked:
            if not self.is_batched:
                self.arrive(mesh, receive.result)
            return
        self.asked.add(receive.channel)
        run, pieces = self.links.pull(receive)
        made = self.registers.reserve(len(pieces))
        self.add(run, NOTHING, slice(made.start, made.stop), (), (mesh, receive))
        self.coming[mesh, receive.result] = receive, pieces, list(made)
        if not self.is_batched and not self.links.is_ordered:
            self.arrive(mesh, receive.result)

    def arrive(self, mesh: int, register: int) -> None:
        """Waits for the pieces of a register, if they are on their way, and joins them."""
        if self.links is None or (mesh, register) not in self.coming:
            return
        receive, pieces, registers = self.coming.pop((mesh, register))
        for piece, copied in self.copied.pop(receive.channel, {}).items():
            pieces, registers = [*pieces, piece], [*registers, copied]
        run = self.links.arrive(mesh, receive, pieces)
        self.add(run, getter(registers), self.registers.define([(mesh, register)]), registers, (mesh, receive))

    def finish(self, links: Links) -> None:
        """Waits for the meshes that this process shares with others."""
        for mesh, call, register in links.exchange.shared():
            self.add(links.finish(mesh, call), self.registers.read(mesh, [register]), slice(0, 0), ())


def flatten(
    program: Program,
    order: Merged,
    runs: Runs,
    shardings: SubmeshShardings,
    registers: Registers,
    links: Links | None,
    operations: Operations,
    is_batched: bool,
) -> list[FlatStep]:
    """Returns the flat steps of this process, in the merged order of all meshes.

    registers: the registers of the steps, which this function defines.
    operations: the user's functions.
    is_batched: whether consecutive sends within this process are one batch of copies, and their receives cost nothing.
        Values from other processes are then asked for early, and waited for right before their use. Otherwise each
        instruction is a separate step. A sent value then arrives with the receive.
    """
    emitter = _Emitter(program, runs, shardings, registers, links, operations, is_batched)
    if links:
        emitter.add(links.start, NOTHING, slice(0, 0), ())
    for mesh, instruction in links.in_order(order, is_batched) if links else order:
        if isinstance(instruction, Call):
            emitter.call(mesh, instruction)
        elif isinstance(instruction, Send):
            emitter.send(mesh, instruction)
        else:
            emitter.receive(mesh, instruction)
    emitter.copy_pending()
    for place in list(emitter.coming):
        emitter.arrive(*place)
    if links:
        emitter.finish(links)
    return emitter.steps


def _fragile(program: Program) -> set[Place]:
    """Returns the registers whose arrays may be donated or deleted before another process has fetched them."""
    found: set[Place] = set()
    values: list[Any] = [*program.arguments.values(), *program.results]
    for each in values:
        found.update(each.registers)
    for mesh, sequence in enumerate(program.sequences):
        for call in sequence:
            if isinstance(call, Call):
                found.update((mesh, call.operands[number]) for number in program.functions[call.function].donates)
    return found


def _copy_of(program: Program, shardings: SubmeshShardings, channel: int) -> Copy:
    """Returns a function that copies an array to the channel's other mesh. Both meshes are in this process."""
    hop = program.hops[channel]
    placed = shardings.place(program.registers[hop.target][hop.result], (hop.target,))
    always = shardings.are_shared((hop.source, hop.target))
    route = route_of(program, channel)
    if route.is_direct:
        return batch_copy([placed.sharding], always)
    devices = list(shardings.union((hop.target,)).devices.flat)
    pieces = range(len(route.pieces))
    copy = batch_copy([SingleDeviceSharding(devices[each.target]) for each in route.pieces], always)
    dtype = program.registers[hop.target][hop.result].dtype
    here, there = (partial(shardings.type_at, mesh, dtype) for mesh in (hop.source, hop.target))
    moved = _on_shards(route.cut(pieces, range(program.partitions[hop.source]), here), copy)
    join = route.join(pieces, range(len(devices)), there)
    return lambda arrays: [placed.join(join(moved(arrays)))]


def _on_shards(cut: Parts, copy: Copy) -> Copy:
    """Returns a function that applies `copy` to the parts that `cut` makes of the shards of one array."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        return copy(cut(_compat.shards(arrays[0])))

    return run


def _after(copy: Copy, run: Copy) -> Copy:
    """Returns a function that runs `run` on the copies."""
    return lambda arrays: run(copy(arrays))


def _both(copy: Copy, run: Copy) -> Copy:
    """Returns a function that copies arrays, then runs `run` on the same arrays, and returns the copies."""

    def both(arrays: Sequence[Any]) -> list[Any]:
        copied = copy(arrays)
        run(arrays)
        return copied

    return both
