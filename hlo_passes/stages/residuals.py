"""What a stage keeps from its forward until its backward."""

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
    """The calls of the loop's body."""
    by_name = functions(module)
    return {kind_and_stage(by_name[callee(op)]): op for op in operations(loop.body) if op.name == "func.call"}


def readers_of(tasks: TaskFunctions, stage: int) -> list[ir.Operation]:
    """The tasks that read the residuals of `stage`."""
    return [tasks[kind, stage] for kind in READERS if (kind, stage) in tasks]


def residuals_of(loop: MicrobatchLoop, tasks: TaskFunctions, stage: int) -> list[ir.Value]:
    """What the backward of a stage, or its recompute, reads of the forward's results, and of the forward's inputs.

    Inputs that other tasks made are residuals; weights and the batch are none: they stay where they are. Of a stage
    without a forward, as the last one under `jax.grad` with a recompute, the results of other forwards are residuals.
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
    """Where the residuals of a stage are there: after its forward, or before what reads them if it has none."""
    forward = tasks.get(("forward", stage))
    if forward is not None:
        return ir.InsertionPoint.after(forward)
    readers = readers_of(tasks, stage)
    return ir.InsertionPoint(next((op for op in operations(loop.body) if op in readers), terminator(loop.body)))
