"""The user's own functions, called as tasks of a program."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call, Program
from jaxpp.schedules.task import Task

Operations = Mapping[str, Callable[[Task, Sequence[Any]], Any]]
"""By the kind of the task: a function of the task and of the arrays that the program hands to it."""


def check_operations(program: Program, operations: Operations) -> None:
    """Raise ProgramError where the program calls a function that is not given."""
    for function in program.functions.values():
        if function.is_operation and function.kind not in operations:
            raise ProgramError(f"the program has tasks of the kind {function.kind!r}, and no function is given for it")


def bound(call: Call, operations: Operations, device: Any, *, wait: bool) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function of arrays that calls the user's function of one task, and returns no arrays.

    device: where JAX computes what has no operands.
    wait: until the arrays that the user's function returns are computed, which nobody else gets.
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
