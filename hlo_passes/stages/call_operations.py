"""`call-operations`: calls the user's own functions where the schedule has tasks for them."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.residuals import TaskFunctions, behind_residuals, residuals_of, tasks_of
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import call, create, set_results
from jaxpp.ir.kinds import operations_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.phases import check_tasks
from jaxpp.ir.shardings import Shardings, boundary_attributes


@dataclass(frozen=True)
class CallOperations(Pass):
    """Adds a call for each kind of task that is bound to a user's function (`jaxpp.operations` of the module).

    The called function, `@checkpoint_0` for the kind `checkpoint` of stage 0, has an empty body and no results. The
    runtime calls the user's function instead. If the user's function reads residuals, `@checkpoint_0` takes the
    residuals of its stage. These are the results of the forward, and its inputs from other tasks, that the stage's
    backward or recompute reads. They live until the last call that takes them.

    `unroll-microbatches` leaves out the call for microbatches for which the schedule has no such task.

    Preconditions: `outline-stages` ran, and `split-backward` and `split-forward` for a schedule that needs them.

    ```mlir
    %y:2 = call @forward_0(%x, %w)     ==>   %y:2 = call @forward_0(%x, %w)
                                             call @checkpoint_0(%y#1)
    %d = call @backward_0(%y#1, %dy)         %d = call @backward_0(%y#1, %dy)
    ```
    """

    name: ClassVar[str] = "call-operations"

    def run(self, module: ir.Module) -> None:
        """Adds the calls to the microbatch loop of `module`."""
        operations = operations_of(module)
        if not operations:
            return
        loop = MicrobatchLoop.of(module)
        check_tasks(module, loop.body)
        tasks = tasks_of(module, loop)
        for kind, reads in operations.items():
            for stage in sorted(loop.stages_with(kind)):
                _call(module, loop, tasks, kind, stage, residuals_of(loop, tasks, stage) if reads else [])


def _call(
    module: ir.Module, loop: MicrobatchLoop, tasks: TaskFunctions, kind: str, stage: int, operands: list[ir.Value]
) -> None:
    types, attributes = [value.type for value in operands], {at.STAGE: at.i64(stage)}
    function = create(module, f"{kind}_{stage}", types, [], {at.KIND: ir.StringAttr.get(kind), **attributes})
    at.set_tables(function, arguments=boundary_attributes(Shardings(module), operands))
    set_results(function, [])
    call(function, operands, attributes, behind_residuals(loop, tasks, stage), loop.op.location)
