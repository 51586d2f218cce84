"""`verify-loop`: checks what docs/ir.md promises of a module whose microbatch loop is found (section 2)."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.functions import callee, loop_body, main_of, nested, operands_with_captures, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.phases import broken
from jaxpp.ir.tasks import StageTask, read_tasks


class VerifyLoop(Pass):
    """Checks that a module keeps the promises of phase 2 (docs/ir.md), and changes nothing.

    - `@main` calls no function, and one loop counts microbatches in its canonical form.
    - No loop carries a value that its body hands on unchanged.
    - The stage marks stand directly in the body of the microbatch loop, and belong to existing stages.
    - An operation of the body with a task uses no value of a later task. An operation without a task uses only values
      that every task has: loop invariants, counts of microbatches, and results of other operations without a task.

    Preconditions: `assign-stages` ran.

    ```mlir
    %a = tanh %x {jaxpp.task = "forward_1"}    ==>   error: phase 2: a value flows backwards:
    %b = sine %a {jaxpp.task = "forward_0"}               from forward_1 to forward_0
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Checks `module`. Raises PassError for a promise that it breaks."""
        main, loop = main_of(module), MicrobatchLoop.of(module)
        for op in nested(main):
            if op.name == "func.call":
                raise broken(2, f"@main calls @{callee(op)}, expected no call", op)
            if at.LOOP in op.attributes and op != loop.op:
                raise broken(2, "a second loop over microbatches", op)
            if boundary.is_mark(op):
                _check_mark(loop, op)
            if op.name == "stablehlo.while":
                _check_carried(op)
        _check_tasks(loop)


def _check_mark(loop: MicrobatchLoop, op: ir.Operation) -> None:
    if op.block != loop.body:
        raise broken(2, "a stage mark that does not stand directly in the loop", op)
    stage = boundary.read(op).stage
    if stage >= loop.stages:
        raise broken(2, f"a mark of stage {stage}, expected 0 to {loop.stages - 1}", op)


def _check_carried(loop: ir.Operation) -> None:
    body = loop_body(loop)
    for position, (argument, value) in enumerate(zip(body.arguments, terminator(body).operands, strict=True)):
        if value == argument:
            raise broken(2, f"a loop hands on its value {position} unchanged", loop)


def _check_tasks(loop: MicrobatchLoop) -> None:
    ops, tasks = read_tasks(loop.body)
    carried = loop.carried
    made: dict[ir.Value, StageTask] = {
        result: task for op, task in zip(ops, tasks, strict=True) if task is not None for result in op.results
    }
    for op, task in zip(ops, tasks, strict=True):
        for value in operands_with_captures(op):
            source = made.get(value)
            if task is None and (source is not None or value in carried):
                what = "of the last microbatch" if source is None else f"of {source}"
                raise broken(2, f"an operation with no {at.TASK} uses a value {what}", op)
            if task is not None and source is not None and source > task:
                raise broken(2, f"a value flows backwards: from {source} to {task}", op)
