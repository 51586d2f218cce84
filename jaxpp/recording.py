"""Records the results of all tasks of a program as it runs on its devices, to compare them with another run."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.functions import main_of, nested
from jaxpp.ir.program import Call
from jaxpp.runtime import Executable
from jaxpp.runtime.execution.steps import StepLabel
from jaxpp.runtime.processes.fetch import fetch
from jaxpp.validation.compare import HostArray, perturbed
from jaxpp.validation.observed import Observed, with_noise
from jaxpp.validation.records import Record
from jaxpp.validation.task_values import TaskValues


def leaves_of(executable: Executable, arguments: Mapping[int, HostArray]) -> list[Any]:
    """Returns the arguments of a step in their order, with a number for each argument that no mesh reads."""
    return [arguments.get(number, np.float32(0)) for number in range(executable.argument_count)]


def record_run(executable: Executable, arguments: Mapping[int, HostArray]) -> Record:
    """Runs a program twice, task by task: with these arguments, and with changed last bits. Donates no argument.

    In a job all processes call it, and each returns the whole record. No mesh may have devices of several processes.
    """
    with make_context(), ir.Location.unknown():
        compiled = {name: each for name, each in executable.program.functions.items() if each.bytecode}
        modules = {name: ir.Module.parse(each.bytecode) for name, each in compiled.items()}
        tasks = TaskValues(executable.program, {name: main_of(module) for name, module in modules.items()})
        types = {str(value.type) for each in modules.values() for op in nested(each.operation) for value in op.results}
    (values, results), (moved_values, moved) = (
        _run(executable, tasks, each) for each in (arguments, perturbed(arguments, 0))
    )
    return Record.of(arguments, results, moved, with_noise(values, moved_values), types)


def _run(
    executable: Executable, tasks: TaskValues, arguments: Mapping[int, HostArray]
) -> tuple[list[Observed], dict[int, HostArray]]:
    found: list[tuple[int, Observed]] = []

    def observe(label: StepLabel, made: Sequence[Any], _: object) -> None:
        for mesh, each in label:
            if isinstance(each, Call):
                found.extend((tasks.order(mesh, each), value) for value in tasks.of(mesh, each, made))

    results = executable.run(leaves_of(executable, arguments), observe)
    if executable.gather is not None:
        found = [each for part in executable.gather(_text(found)) for each in _parsed(part)]
    values = [value for _, value in sorted(found, key=lambda each: each[0])]
    return values, dict(enumerate(map(np.asarray, fetch(results))))


def _text(found: Sequence[tuple[int, Observed]]) -> str:
    """Returns the values of this process for the other processes."""
    part = Record({}, {}, [value for _, value in found], {}, 0.0)
    return json.dumps([[order for order, _ in found], base64.b64encode(part.to_bytes()).decode()])


def _parsed(text: str) -> list[tuple[int, Observed]]:
    orders, data = json.loads(text)
    return list(zip(orders, Record.from_bytes(base64.b64decode(data)).values, strict=True))
