"""The results of the tasks of a program, as a run makes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.functions import body_of, terminator
from jaxpp.ir.locations import source_of
from jaxpp.ir.program import Call, Program, TaskName
from jaxpp.ir.values import defining_op
from jaxpp.validation.behind import Behind, microbatches_behind
from jaxpp.validation.observed import RESULT, Observed


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
        self.behind = microbatches_behind(program, bodies)
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
