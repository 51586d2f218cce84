"""The results of the tasks of a program, as a run makes them, and the microbatches from which they are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.functions import body_of, terminator, values_behind
from jaxpp.ir.locations import source_of
from jaxpp.ir.program import Call, Constant, Place, Program, Receive, TaskName
from jaxpp.ir.values import defining_op
from jaxpp.validation.observed import RESULT, Observed

Behind: TypeAlias = frozenset[tuple[int, int]]
"""Microbatches, with the slices of their sequences."""


@dataclass(frozen=True)
class Outputs:
    """The results of a function: their types, and for each the operation that makes it and the user's line, or ""."""

    types: tuple[str, ...]
    makers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, function: ir.Operation) -> "Outputs":
        """Reads the body of a function."""
        values = list(terminator(body_of(function)).operands)
        ops = map(defining_op, values)
        makers = tuple(("", "") if op is None else (op.name, source_of(op.location) or "") for op in ops)
        return cls(tuple(str(value.type) for value in values), makers)

    def observed(self, number: int, kind: str, task: TaskName, value: Any, behind: Behind, mesh: str = "") -> Observed:
        """Returns a result of a call as an observed value. kind: the kind of the function."""
        place, unit = (RESULT, number, kind, self.types), (task.microbatch, task.slice)
        return Observed(place, task, unit, np.asarray(value), behind, *self.makers[number], f"{task}{mesh}")


class TaskValues:
    """Collects the results of the tasks of a program, in the order of its calls.

    bodies: the functions of the program by name. Calls of other functions have no results here.
    """

    def __init__(self, program: Program, bodies: Mapping[str, ir.Operation]) -> None:
        self.behind = _microbatches_behind(program, bodies)
        self._order = {place: number for number, place in enumerate(self.behind)}
        self._program = program
        self._outputs = {name: Outputs.of(op) for name, op in bodies.items()}

    def order(self, mesh: int, call: Call) -> int:
        """Returns a number that grows in the order in which the calls of all meshes can run."""
        return max((self._order[mesh, register] for register in call.results), default=-1)

    def of(self, mesh: int, call: Call, results: Sequence[Any]) -> list[Observed]:
        """Returns the results of a call that tasks make."""
        function, outputs = self._program.functions[call.function], self._outputs.get(call.function)
        found: list[Observed] = []
        if outputs is None:
            return found
        for number, (register, value) in enumerate(zip(call.results, results, strict=False)):
            task = call.maker(number, function)
            if task is not None:
                behind = self.behind[mesh, register]
                found.append(outputs.observed(number, function.kind, task, value, behind, f" on mesh {mesh}"))
        return found


def _microbatches_behind(program: Program, bodies: Mapping[str, ir.Operation]) -> Mapping[Place, Behind]:
    """Returns for each register the microbatches and slices of the tasks from which its value is computed.

    bodies: the functions of the program by name. Without its function, each result of a call depends on all operands.
    """
    found: dict[Place, Behind] = {}
    for argument in program.arguments.values():
        found.update(dict.fromkeys(argument.registers, frozenset()))
    reads = {name: _reads(op) for name, op in bodies.items()}
    for mesh, each in program.run_order():
        if isinstance(each, Call):
            own = frozenset((task.microbatch, task.slice) for task in each.tasks)
            positions = reads.get(each.function) or [range(len(each.operands))] * len(each.results)
            for result, read in zip(each.results, positions, strict=True):
                found[mesh, result] = own.union(*(found[mesh, each.operands[position]] for position in read))
        elif isinstance(each, Constant):
            found[mesh, each.result] = frozenset()
        elif isinstance(each, Receive):
            found[mesh, each.result] = found[program.sent[each.channel]]
    return found


def _reads(function: ir.Operation) -> Sequence[set[int]]:
    """Returns for each result of a function the positions of the arguments on which it depends."""
    body = body_of(function)
    positions: dict[ir.Value, int] = {argument: number for number, argument in enumerate(body.arguments)}
    behind = (values_behind([value]) for value in terminator(body).operands)
    return [{positions[value] for value in values if value in positions} for values in behind]
