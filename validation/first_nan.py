"""Finds the first NaN that a module makes: the task, the operation and the user's line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.ir import attributes as at
from jaxpp.ir.build import set_returned
from jaxpp.ir.functions import body_of, clone_alone, main_of, operations
from jaxpp.ir.locations import source_of
from jaxpp.ir.ops import float_width
from jaxpp.ir.program import Call
from jaxpp.validation.compare import is_inexact
from jaxpp.validation.cpu import Array, Runner
from jaxpp.validation.interpreter import Interpreter
from jaxpp.validation.signature import public_main


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
    if (main := public_main(module)) is not None:
        operands = [arguments[number] for number in range(len(body_of(main).arguments))]
        return _inside(module, "main", operands, runner, "@main")
    try:
        Interpreter(module, runner).run(arguments, _watch)
    except _FoundError as found:
        task = f"{found.call} on mesh {found.mesh}"
        inside = _inside(module, found.call.function, found.operands, runner, task)
        return inside or FirstNan(task, "", next(filter(None, map(_share, found.results))), "")
    return None


def _watch(mesh: int, call: Call, operands: Sequence[Array], results: Sequence[Array]) -> None:
    if any(map(_share, results)) and not any(map(_share, operands)):
        raise _FoundError(mesh, call, operands, results)


def _inside(module: ir.Module, function: str, operands: Sequence[Array], runner: Runner, task: str) -> FirstNan | None:
    """Runs a function that returns each of its values, and returns the first NaN among them."""
    module = own_copy(module)
    with module.context, ir.Location.unknown():
        alone = ir.Module.create()
        for name in module.operation.attributes:
            alone.operation.attributes[name] = module.operation.attributes[name]
        clone_alone(module, function, alone)
        InlineCalls().run(alone)
        main = main_of(alone)
        values = [result for op in operations(body_of(main)) for result in op.results if _is_float(result)]
        made = [(op.name, source_of(op.location) or "") for op in (value.owner.operation for value in values)]
        set_returned(main, values)
        at.set_tables(main, results=[{} for _ in values])
        results = runner.compile(alone, "main")(operands)
    for (name, line), result in zip(made, results, strict=True):
        if share := _share(result):
            return FirstNan(task, name, share, line)
    return None


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and float_width(value) > 0


def _share(value: Array) -> str:
    """Returns the number of NaNs among the numbers of a value; "" if there are none."""
    numbers = np.asarray(value)
    if not is_inexact(numbers.dtype):
        return ""
    count = int(np.count_nonzero(numbers != numbers))
    return f"{count} of {numbers.size} numbers" if count else ""
