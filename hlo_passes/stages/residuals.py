"""Finds the residuals of a stage: the values that live from its forward to its backward or recompute."""

from collections.abc import Mapping

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.split_forward import BACKWARDS
from jaxpp.ir.functions import callee, functions, kind_and_stage, operations, terminator
from jaxpp.ir.loop import MicrobatchLoop

TaskFunctions = Mapping[tuple[str, int], ir.Operation]
"""The call of each (kind, stage) in the body of the loop."""

READERS = ("recompute", *BACKWARDS)
"""The kinds of tasks that read the residuals of their stage."""


def tasks_of(module: ir.Module, loop: MicrobatchLoop) -> TaskFunctions:
    """Returns the calls in the loop's body by (kind, stage)."""
    by_name = functions(module)
    return {kind_and_stage(by_name[callee(op)]): op for op in operations(loop.body) if op.name == "func.call"}


def readers_of(tasks: TaskFunctions, stage: int) -> list[ir.Operation]:
    """Returns the calls of the tasks that read the residuals of `stage`."""
    return [tasks[kind, stage] for kind in READERS if (kind, stage) in tasks]


def residuals_of(loop: MicrobatchLoop, tasks: TaskFunctions, stage: int) -> list[ir.Value]:
    """Returns the results and the inputs of a stage's forward that the stage's backward or recompute reads.

    Only inputs that other tasks made are residuals. Weights and the batch are not: they stay where they are. A stage
    may have no forward, such as the last one under `jax.grad` with a recompute. Its residuals are the results of other
    forwards that it reads.
    """
    readers = readers_of(tasks, stage)
    forward = tasks.get(("forward", stage))
    if forward is None:
        read = (value for reader in readers for value in reader.operands)
        made = {result for (kind, _), op in tasks.items() if kind == "forward" for result in op.results}
        return [value for value in dict.fromkeys(read) if value in made]
    made = filter(loop.is_of_a_task, forward.operands)
    return [
        value
        for value in dict.fromkeys([*made, *forward.results])
        if any(use.owner.operation in readers for use in value.uses)
    ]


def behind_residuals(loop: MicrobatchLoop, tasks: TaskFunctions, stage: int) -> ir.InsertionPoint:
    """Returns the point after a stage's forward; for a stage without one, the point in front of its first reader."""
    forward = tasks.get(("forward", stage))
    if forward is not None:
        return ir.InsertionPoint.after(forward)
    readers = readers_of(tasks, stage)
    return ir.InsertionPoint(next((op for op in operations(loop.body) if op in readers), terminator(loop.body)))
