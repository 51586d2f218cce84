"""A program flattened for dispatch: one list of small tuples over the registers of all meshes of this process."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jax.sharding import SingleDeviceSharding

from jaxpp import _compat
from jaxpp.runtime.arrays import Placed, Shardings
from jaxpp.runtime.links import Links
from jaxpp.runtime.order import Merged, with_pulls
from jaxpp.runtime.program import Call, Instruction, Program, Receive, Send
from jaxpp.runtime.route import Parts, batch_copy, route_of

Operands = Callable[[list[Any]], Sequence[Any]]
Label = tuple[tuple[int, Instruction], ...]
"""(mesh, instruction) of what one step does: one call, or the sends of one batch."""

Step = tuple[Callable[..., Any], Operands, slice, tuple[int, ...], Any, Label]
"""(function, operands, result registers, registers to free, extra, label).

A call: what `Runs` has for it, with the result handlers as `extra`. Otherwise `extra` is None, and `function` takes
arrays and returns arrays: a batch of copies, or what `Links` does.
"""

Place = tuple[int, int]
"""(mesh, the mesh's register)"""

Runs = Mapping[tuple[str, int], Callable[..., Any]]
"""How each (function, mesh) is run: as `execute_sharded` of its executable."""

End = tuple[int, Send | Receive]
"""(mesh, instruction)"""

NOTHING: Operands = operator.itemgetter(slice(0, 0))


class Flat:
    """The steps of a program, and which register each mesh's register became.

    numbers: (mesh, the mesh's register) -> register; count: how many there are.
    """

    def __init__(self, program: Program, runs: Runs, shardings: Shardings, links: Links | None = None) -> None:
        self.program, self.runs, self.shardings, self.links = program, runs, shardings, links
        self.steps: list[Step] = []
        self.numbers: dict[Place, int] = {}
        self.count = 0
        self.sends: list[tuple[int, Send]] = []
        self.handlers: dict[tuple[str, int], list[Any]] = {}
        self.coming: dict[Place, tuple[Receive, list[int], list[int]]] = {}
        """(receive, pieces, registers) of what was asked for and nobody waited for yet."""
        self.copied: dict[int, dict[int, int]] = {}
        """Of a channel between processes the pieces that stay in this one: piece -> register."""
        self.remote: dict[tuple[int, int], list[Step]] = {}
        """The steps of each (mesh, channel) from or to another process; they are in `steps` too."""
        self.fragile = _fragile(program) if links else set[Place]()

    def define(self, places: Sequence[Place]) -> slice:
        """New registers, side by side, for these (mesh, register)."""
        for place in places:
            self.numbers[place] = self.count
            self.count += 1
        return slice(self.count - len(places), self.count)

    def number(self, mesh: int, register: int) -> int:
        """The register of an argument or a constant, which no step defines, or of an earlier step's result."""
        if (mesh, register) not in self.numbers:
            self.define([(mesh, register)])
        return self.numbers[mesh, register]

    def reserve(self, count: int) -> slice:
        """New registers that are no register of a mesh."""
        self.count += count
        return slice(self.count - count, self.count)

    def call(self, mesh: int, call: Call) -> None:
        self.copy_pending()
        for register in call.operands:
            self.arrive(mesh, register)
        key = (call.function, mesh)
        if key not in self.handlers:
            placed = [self.shardings.place(spec, (mesh,)) for spec in self.program.functions[call.function].results]
            self.handlers[key] = [handler_of(each) for each in placed]
        operands = getter([self.number(mesh, register) for register in call.operands])
        frees = tuple(self.number(mesh, register) for register in call.frees)
        results = self.define([(mesh, register) for register in call.results])
        self.steps.append((self.runs[key], operands, results, frees, self.handlers[key], ((mesh, call),)))

    def send(self, mesh: int, send: Send) -> None:
        """Copy the pieces that stay in this process, and offer the others to their receivers."""
        if self.links is not None and not self.links.is_local(mesh, send.destination):
            self.offer(self.links, mesh, send)
        elif route_of(self.program, send.channel).is_direct:
            self.sends.append((mesh, send))
        else:
            self.recut(mesh, send)

    def recut(self, mesh: int, send: Send) -> None:
        """A copy to a mesh that cuts the value otherwise."""
        self.copy_pending()
        self.arrive(mesh, send.operand)
        copy = copy_of(self.program, self.shardings, send.channel)
        frees = tuple(self.number(mesh, register) for register in send.frees)
        operands = getter([self.number(mesh, send.operand)])
        results = self.define([self.program.hops[send.channel][2:]])
        self.steps.append((copy, operands, results, frees, None, ((mesh, send),)))

    def copy_pending(self) -> None:
        if not self.sends:
            return
        for mesh, send in self.sends:
            self.arrive(mesh, send.operand)
        operands = getter([self.number(mesh, send.operand) for mesh, send in self.sends])
        frees = tuple(self.number(mesh, register) for mesh, send in self.sends for register in send.frees)
        destinations = [self.program.hops[send.channel][2:] for _, send in self.sends]
        placed = [self.shardings.place(self.program.registers[mesh][value], (mesh,)) for mesh, value in destinations]
        copy = batch_copy([each.sharding for each in placed])
        self.steps.append((copy, operands, self.define(destinations), frees, None, tuple(self.sends)))
        self.sends = []

    def remote_step(
        self, function: Callable[..., Any], operands: Operands, results: slice, frees: Sequence[int], at: End
    ) -> None:
        step = (function, operands, results, tuple(frees), None, (at,))
        self.steps.append(step)
        self.remote.setdefault((at[0], at[1].channel), []).append(step)

    def offer(self, links: Links, mesh: int, send: Send) -> None:
        """Offer the pieces that go to other processes, and copy those that stay in this one."""
        self.copy_pending()
        self.arrive(mesh, send.operand)
        number = self.number(mesh, send.operand)
        frees = [self.number(mesh, register) for register in send.frees]
        stays, cut, devices = links.stays(mesh, send)
        if stays:
            copy = batch_copy([SingleDeviceSharding(device) for device in devices])
            results = self.reserve(len(stays))
            self.copied[send.channel] = dict(zip(stays, range(self.count)[results], strict=True))
            self.remote_step(_on_shards(cut, copy), getter([number]), results, (), (mesh, send))
        if (mesh, send.operand) in self.fragile:
            sharding = self.shardings.place(self.program.registers[mesh][send.operand], (mesh,)).sharding
            copied = self.reserve(1)
            self.remote_step(batch_copy([sharding], always=True), getter([number]), copied, (), (mesh, send))
            number = copied.start
            frees.append(number)
        self.remote_step(links.offer(mesh, send), getter([number]), self.reserve(0), frees, (mesh, send))

    def pull(self, mesh: int, receive: Receive) -> None:
        """Ask for the pieces that come from other processes."""
        if self.links is None or self.links.is_local(mesh, receive.source):
            return
        run, pieces = self.links.pull(mesh, receive)
        results = self.reserve(len(pieces))
        self.remote_step(run, NOTHING, results, (), (mesh, receive))
        self.coming[mesh, receive.result] = receive, pieces, list(range(self.count)[results])

    def arrive(self, mesh: int, register: int) -> None:
        """Wait for the pieces of a register that are on their way, if they are."""
        if self.links is None or (mesh, register) not in self.coming:
            return
        receive, pieces, registers = self.coming.pop((mesh, register))
        for piece, copied in self.copied.pop(receive.channel, {}).items():
            pieces, registers = [*pieces, piece], [*registers, copied]
        run = self.links.arrive(mesh, receive, pieces)
        results = self.define([(mesh, register)])
        self.remote_step(run, getter(registers), results, registers, (mesh, receive))

    def finish(self, links: Links) -> None:
        """Wait for the meshes that other processes compute on too."""
        for mesh, call, register in links.shared():
            operands = getter([self.number(mesh, register)])
            self.steps.append((links.finish(mesh, call), operands, slice(0, 0), (), None, ((mesh, call),)))


def flatten(program: Program, order: Merged, runs: Runs, shardings: Shardings, links: Links | None = None) -> Flat:
    """The steps in merged order. Sends within this process that follow each other are one batch of copies.

    Receives of those cost nothing. What other processes send is asked for early, and waited for right before its use.
    """
    flattener = Flat(program, runs, shardings, links)
    if links:
        flattener.steps.append((links.start, NOTHING, slice(0, 0), (), None, ()))
    for mesh, instruction in with_pulls(order) if links else order:
        if isinstance(instruction, Call):
            flattener.call(mesh, instruction)
        elif isinstance(instruction, Send):
            flattener.send(mesh, instruction)
        else:
            flattener.pull(mesh, instruction)
    flattener.copy_pending()
    for place in list(flattener.coming):
        flattener.arrive(*place)
    if links:
        flattener.finish(links)
    return flattener


def _fragile(program: Program) -> set[Place]:
    """What may be donated or deleted while another process still has to fetch it: the user's arrays among it."""
    found: set[Place] = set()
    values: list[Any] = [*program.arguments.values(), *program.results]
    for each in values:
        found.update(each.registers)
    for mesh, sequence in enumerate(program.sequences):
        for call in sequence:
            if isinstance(call, Call):
                found.update((mesh, call.operands[number]) for number in program.functions[call.function].donates)
    return found


def handler_of(placed: Placed) -> Any:
    return _compat.result_handler(placed.aval, placed.sharding)


def getter(numbers: Sequence[int]) -> Operands:
    """Reads these registers, always as a sequence."""
    if len(numbers) > 1:
        return operator.itemgetter(*numbers)
    start = numbers[0] if numbers else 0
    return operator.itemgetter(slice(start, start + len(numbers)))


def copy_of(program: Program, shardings: Shardings, channel: int) -> Callable[[Sequence[Any]], list[Any]]:
    """Copies an array to the mesh at the other end of the channel, both meshes being this process's."""
    hop = program.hops[channel]
    placed = shardings.place(program.registers[hop.target][hop.result], (hop.target,))
    route = route_of(program, channel)
    if route.is_direct:
        return batch_copy([placed.sharding])
    devices = list(shardings.union((hop.target,)).devices.flat)
    pieces = range(len(route.pieces))
    copy = batch_copy([SingleDeviceSharding(devices[each.target]) for each in route.pieces])
    dtype = program.registers[hop.target][hop.result].dtype
    here, there = (partial(shardings.type_at, mesh, dtype) for mesh in (hop.source, hop.target))
    moved = _on_shards(route.cut(pieces, range(program.partitions[hop.source]), here), copy)
    join = route.join(pieces, range(len(devices)), there)
    return lambda arrays: [_compat.join_arrays(placed.aval, placed.sharding, join(moved(arrays)))]


def _on_shards(cut: Parts, copy: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
    """`copy` for the parts of the shards of one array."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        return copy(cut(_compat.shards(arrays[0])))

    return run
