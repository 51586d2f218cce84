"""`verify-loop`: checks the promises of docs/ir.md for a module with its microbatch loop (sections 2 and 3)."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.functions import (
    callee,
    functions,
    kind_and_stage,
    loop_body,
    main_of,
    nested,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.kinds import FORMS, HALVES, operations_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.mesh_functions import task_functions
from jaxpp.ir.phases import broken, check_tasks
from jaxpp.ir.tasks import StageTask, read_tasks
from jaxpp.ir.values import defining_op


class VerifyLoop(Pass):
    """Checks that a module keeps the promises of phase 2, or of phase 3 (docs/ir.md), and changes nothing.

    In phase 2, where no function has a kind:

    - `@main` calls no function, and one loop counts microbatches in its canonical form.
    - No loop carries a value that its body hands on unchanged.
    - The stage marks stand directly in the body of the microbatch loop, and belong to existing stages.
    - An operation of the body with a task uses no value of a later task. An operation without a task uses only values
      that every task has: loop invariants, counts of microbatches, and results of other operations without a task.

    In phase 3:

    - The loop's body holds calls of task functions, each with the `jaxpp.stage` of its function. It also counts the
      microbatches, without the result of a call.
    - Each task function has a `jaxpp.kind` that a program can have, and an existing stage. A stage with an `input_grad`
      or a `weight_grad` has no `backward`.
    - No stage mark and no `jaxpp.task` is left.

    Preconditions: `assign-stages` ran.

    ```mlir
    %a = tanh %x {jaxpp.task = "forward_1"}    ==>   error: phase 2: a value flows backwards:
    %b = sine %a {jaxpp.task = "forward_0"}               from forward_1 to forward_0

    %a = call @forward_0(%x) {jaxpp.stage = 0}   ==>   error: phase 3: a stablehlo.tanh in the loop, expected calls of
    %b = stablehlo.tanh %a                             tasks and the counting of microbatches
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Checks `module`. Raises PassError for a promise that it breaks."""
        loop = MicrobatchLoop.of(module)
        if task_functions(module):
            check_tasks(module, loop.body)
            _check_counting(loop)
            _check_functions(module, loop.stages)
        else:
            _check_main(module, loop)
            _check_tasks(loop)


def _check_main(module: ir.Module, loop: MicrobatchLoop) -> None:
    for op in nested(main_of(module)):
        if op.name == "func.call":
            raise broken(2, f"@main calls @{callee(op)}, expected no call", op)
        if at.LOOP in op.attributes and op != loop.op:
            raise broken(2, "a second loop over microbatches", op)
        if boundary.is_mark(op):
            _check_mark(loop, op)
        if op.name == "stablehlo.while":
            _check_carried(op)


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


def _check_counting(loop: MicrobatchLoop) -> None:
    *ops, end = operations(loop.body)
    carried = loop.carried
    for op in ops:
        if op.name == "func.call":
            continue
        made = [defining_op(value) for value in op.operands]
        if any(each is not None and each.name == "func.call" for each in made) or not carried.isdisjoint(op.operands):
            raise broken(3, f"a {op.name} in the loop, expected calls of tasks and the counting of microbatches", op)
    for position, value in enumerate(end.operands):
        op = defining_op(value)
        if op is not None and op.block == loop.body and (op.name != "func.call") != (position in loop.indices):
            raise broken(3, f"the loop's value {position} comes from a {op.name}", end)


def _check_functions(module: ir.Module, stages: int) -> None:
    known = {*FORMS, *operations_of(module)}
    tasks = [(*kind_and_stage(function), function) for function in functions(module).values()]
    whole = {stage for kind, stage, _ in tasks if kind == "backward"}
    for kind, stage, function in tasks:
        if kind and (kind not in known or stage >= stages):
            raise broken(3, f"a function of kind {kind} of stage {stage}, which there is not", function)
        if kind in HALVES and stage in whole:
            raise broken(3, f"stage {stage} has a backward and its half, the {kind}", function)
        for op in nested(function):
            if at.TASK in op.attributes or boundary.is_mark(op):
                raise broken(3, "a stage mark" if boundary.is_mark(op) else f"{at.TASK} in a function", op)
