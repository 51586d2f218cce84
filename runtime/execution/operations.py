"""The user's functions that a program calls as tasks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call, Program
from jaxpp.schedules.model.task import Task

Operations = Mapping[str, Callable[[Task, Sequence[Any]], Any]]
"""By kind of task: a function of the task and of the arrays that the program passes to it."""


def check_operations(program: Program, operations: Operations) -> None:
    """Raises ProgramError if the program calls a function that is not given."""
    for function in program.functions.values():
        if function.is_operation and function.kind not in operations:
            raise ProgramError(f"the program has tasks of the kind {function.kind!r}, and no function is given for it")


def bound(call: Call, operations: Operations, device: Any, *, wait: bool) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Returns a function of arrays that calls the user's function for one task, and returns no arrays.

    device: the default device during the call, for computations without operands.
    wait: whether to wait until the results of the user's function are computed. They are then dropped.
    """
    assert call.stage is not None
    assert call.microbatch is not None
    task, function = Task(call.kind, call.stage, call.microbatch, call.slice), operations[call.kind]

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        with jax.default_device(device):
            made = function(task, arrays)
        if wait:
            jax.block_until_ready(made)
        return ()

    return run
