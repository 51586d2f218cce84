"""`verify-tasks`: checks the promises of docs/ir.md about a module whose tasks are functions (section 3)."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.functions import functions, kind_and_stage, nested, operations, terminator
from jaxpp.ir.kinds import FORMS, operations_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.phases import broken, check_tasks
from jaxpp.ir.values import defining_op


class VerifyTasks(Pass):
    """Checks that a module keeps the promises of phase 3 (docs/ir.md), and changes nothing.

    - The loop's body holds calls of task functions, each with the `jaxpp.stage` of its function. It also counts the
      microbatches, without the result of a call.
    - Each task function has a `jaxpp.kind` that a program can have, and an existing stage. A stage with an `input_grad`
      or a `weight_grad` has no `backward`.
    - No stage mark and no `jaxpp.task` is left.

    Preconditions: `outline-stages` ran.

    ```mlir
    %a = call @forward_0(%x) {jaxpp.stage = 0}   ==>   error: phase 3: a stablehlo.tanh in the loop, expected calls of
    %b = stablehlo.tanh %a                             tasks and the counting of microbatches
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Checks `module`. Raises PassError for a promise that it breaks."""
        loop = MicrobatchLoop.of(module)
        check_tasks(module, loop.body)
        _check_body(loop)
        known = {*FORMS, *operations_of(module)}
        tasks = [(*kind_and_stage(function), function) for function in functions(module).values()]
        whole = {stage for kind, stage, _ in tasks if kind == "backward"}
        for kind, stage, function in tasks:
            if kind and (kind not in known or stage >= loop.stages):
                raise broken(3, f"a function of kind {kind} of stage {stage}, which there is not", function)
            if kind in ("input_grad", "weight_grad") and stage in whole:
                raise broken(3, f"stage {stage} has a backward and its half, the {kind}", function)
            for op in nested(function):
                if at.TASK in op.attributes or boundary.is_mark(op):
                    raise broken(3, "a stage mark" if boundary.is_mark(op) else f"{at.TASK} in a function", op)


def _check_body(loop: MicrobatchLoop) -> None:
    *ops, end = operations(loop.body)
    carried = loop.carried
    for op in ops:
        if op.name == "func.call":
            continue
        made = [defining_op(value) for value in op.operands]
        if any(each is not None and each.name == "func.call" for each in made) or not carried.isdisjoint(op.operands):
            raise broken(3, f"a {op.name} in the loop, expected calls of tasks and the counting of microbatches", op)
    for position, value in enumerate(terminator(loop.body).operands):
        op = defining_op(value)
        if op is not None and op.block == loop.body and (op.name != "func.call") != (position in loop.indices):
            raise broken(3, f"the loop's value {position} comes from a {op.name}", end)
