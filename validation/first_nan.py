"""Finds the first NaN that a module makes: the task, the operation and the user's line."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.program import Call
from jaxpp.validation.compare import is_inexact
from jaxpp.validation.cpu import Array, Runner
from jaxpp.validation.observe import ValueRunner
from jaxpp.validation.observed import Observed


@dataclass(frozen=True)
class FirstNan:
    """The first NaN of a run.

    Attributes:
        task: the task that makes it, and its mesh; "@main" for a module that is no program.
        operation: the name of the operation; "" if the operation makes no NaN on its own.
        share: the number of NaNs, and of all numbers of the value.
        line: the user's line, or "".
    """

    task: str
    operation: str
    share: str
    line: str

    def __str__(self) -> str:
        """Formats it as three lines."""
        value = f"{self.operation or 'unknown'}, {self.share}"
        return f"first NaN: {self.task}\nvalue: {value}\nline: {self.line or 'unknown'}"


class _FoundError(Exception):
    """Ends a run at the call that makes the first NaN."""

    def __init__(self, mesh: int, call: Call, operands: Sequence[Array], results: Sequence[Array]) -> None:
        super().__init__()
        self.mesh, self.call, self.operands, self.results = mesh, call, operands, results


def first_nan(module: ir.Module, arguments: Mapping[int, Array], runner: Runner) -> FirstNan | None:
    """Runs a module, and returns its first NaN that was not made from another one; None if there is none.

    Raises:
        PassError: the module can't be run.
    """
    values = ValueRunner(module, runner)
    if values.program is None:
        return _first(values.run(arguments)[0], "@main")
    try:
        values.program.run(arguments, _watch)
    except _FoundError as found:
        task = f"{found.call} on mesh {found.mesh}"
        inside = _first(values.values_of(values.program.bodies[found.call.function], found.operands), task)
        return inside or FirstNan(task, "", next(filter(None, map(_share, found.results))), "")
    return None


def _watch(mesh: int, call: Call, operands: Sequence[Array], results: Sequence[Array]) -> None:
    if any(map(_share, results)) and not any(map(_share, operands)):
        raise _FoundError(mesh, call, operands, results)


def _first(values: Iterable[Observed], task: str) -> FirstNan | None:
    found = ((each, _share(each.value)) for each in values)
    return next((FirstNan(task, each.operation, share, each.line) for each, share in found if share), None)


def _share(value: Array) -> str:
    """Returns the number of NaNs among the numbers of a value; "" if there are none."""
    numbers = np.asarray(value)
    if not is_inexact(numbers.dtype):
        return ""
    count = int(np.count_nonzero(numbers != numbers))
    return f"{count} of {numbers.size} numbers" if count else ""
