"""A program flattened for dispatch: one list of small tuples over the registers of all meshes."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from jaxpp import _compat
from jaxpp.runtime.arrays import Placed, Shardings
from jaxpp.runtime.compile import Executables
from jaxpp.runtime.order import Merged
from jaxpp.runtime.program import Call, Instruction, Program, Receive, Send

Operands = Callable[[list[Any]], Sequence[Any]]
Label = tuple[tuple[int, Instruction], ...]
"""(mesh, instruction) of what one step does: one call, or the sends of one batch."""

Step = tuple[Callable[..., Any], Operands, slice, tuple[int, ...], Any, Label]
"""(function, operands, result registers, registers to free, extra, label).

A call: `execute_sharded`, with the result handlers as `extra`. A batch of copies: `extra` is None, and `function` is
`copy_batch` with everything but the arrays bound.
"""


class Flat:
    """The steps of a program, and which register each mesh's register became.

    numbers: (mesh, the mesh's register) -> register; count: how many there are.
    """

    def __init__(self, program: Program, executables: Executables, shardings: Shardings) -> None:
        self.program, self.executables, self.shardings = program, executables, shardings
        self.steps: list[Step] = []
        self.numbers: dict[tuple[int, int], int] = {}
        self.count = 0
        self.sends: list[tuple[int, Send]] = []
        self.handlers: dict[tuple[str, int], list[Any]] = {}
        self.destinations = {
            each.channel: (mesh, each.result)
            for mesh, sequence in enumerate(program.sequences)
            for each in sequence
            if isinstance(each, Receive)
        }

    def define(self, places: Sequence[tuple[int, int]]) -> slice:
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

    def call(self, mesh: int, call: Call) -> None:
        self.copy_pending()
        key = (call.function, mesh)
        if key not in self.handlers:
            placed = [self.shardings.place(spec, (mesh,)) for spec in self.program.functions[call.function].results]
            self.handlers[key] = [handler_of(each) for each in placed]
        operands = getter([self.number(mesh, register) for register in call.operands])
        frees = tuple(self.number(mesh, register) for register in call.frees)
        results = self.define([(mesh, register) for register in call.results])
        execute = self.executables[key].execute_sharded
        self.steps.append((execute, operands, results, frees, self.handlers[key], ((mesh, call),)))

    def copy_pending(self) -> None:
        if not self.sends:
            return
        operands = getter([self.number(mesh, send.operand) for mesh, send in self.sends])
        frees = tuple(self.number(mesh, register) for mesh, send in self.sends for register in send.frees)
        destinations = [self.destinations[send.channel] for _, send in self.sends]
        placed = [self.shardings.place(self.program.registers[mesh][value], (mesh,)) for mesh, value in destinations]
        copy = batch_copy([each.sharding for each in placed])
        self.steps.append((copy, operands, self.define(destinations), frees, None, tuple(self.sends)))
        self.sends = []


def flatten(program: Program, order: Merged, executables: Executables, shardings: Shardings) -> Flat:
    """The steps in merged order. Sends that follow each other are one batch of copies; receives cost nothing."""
    flattener = Flat(program, executables, shardings)
    for mesh, instruction in order:
        if isinstance(instruction, Call):
            flattener.call(mesh, instruction)
        elif isinstance(instruction, Send):
            flattener.sends.append((mesh, instruction))
    flattener.copy_pending()
    return flattener


def handler_of(placed: Placed) -> Any:
    return _compat.result_handler(placed.aval, placed.sharding)


def getter(numbers: Sequence[int]) -> Operands:
    """Reads these registers, always as a sequence."""
    if len(numbers) > 1:
        return operator.itemgetter(*numbers)
    start = numbers[0] if numbers else 0
    return operator.itemgetter(slice(start, start + len(numbers)))


def batch_copy(shardings: Sequence[Any], always: bool = False) -> Callable[[Sequence[Any]], list[Any]]:
    """Copies as many arrays as there are `shardings` to these, in one asynchronous call."""
    copy = _compat.copy_function()
    devices, targets, semantics = _compat.copy_arguments(shardings, always)
    return lambda arrays: copy(arrays, devices, targets, semantics)
