"""`outline-stages`: cuts the body of the microbatch loop at the stage marks, one function per task."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import call, name_of, terminator
from jaxpp.hlo_passes.ir.loop import MicrobatchLoop
from jaxpp.hlo_passes.ir.outlining import Outlined, outline
from jaxpp.hlo_passes.ir.shardings import Shardings
from jaxpp.hlo_passes.ir.values import is_used
from jaxpp.hlo_passes.stages.assign import Assignment
from jaxpp.hlo_passes.stages.residuals import place_residuals


@dataclass(frozen=True)
class OutlineStages(Pass):
    """Makes each task of the loop body a function `@forward_i` or `@backward_i`, called in the body in order.

    - The backward slice of each mark, in mark order, is that stage's forward (then backward) task. A mark belongs to
      the task that makes its operands, its results to the next task; the mark itself goes.
    - What no mark needs (weight gradients, accumulation, metrics) goes with the latest task among its operands'.
    - Cheap values that depend only on loop invariants and the microbatch index (constants, masks, slices of the
      batch, casts of weights) are cloned into each task that uses them.
    - What the backward needs of the forward is chosen so that the fewest bytes stay alive in between: a value that only
      the backward needs is computed on the better side, and cheap ones are computed again.

    Without a forward mark after the last stage (JAX also drops one whose result nobody uses), its forward and backward
    are one task, `@backward_{n-1}`.

    Preconditions: `find-microbatch-loop` ran; for several devices per submesh, `propagate-shardings` too.

    ```mlir
    %h = stablehlo.dot_general %x, %w0                   ==>   %h = call @forward_0(%x, %w0)
    %m = stablehlo.optimization_barrier %h                     %y = call @forward_1(%h, %w1)
      {jaxpp.boundary = {stage = 0, phase = "forward"}}
    %y = stablehlo.dot_general %m, %w1
    ```
    """

    name: ClassVar[str] = "outline-stages"

    def run(self, module: ir.Module) -> None:
        """Outline the tasks of `module`. Raises PassError when the marks are not in the order of the data."""
        loop = MicrobatchLoop.of(module)
        assignment = Assignment(loop.body, loop.stages, loop.indices)
        place_residuals(assignment)
        assignment.bypass_marks()
        handed_on = assignment.handed_on()
        groups = _group(assignment, handed_on)
        shardings = Shardings(module)
        outlined: list[Outlined] = []
        for task in sorted(groups):
            kind, stage = assignment.tasks.kind_and_stage(task)
            attributes = {at.KIND: ir.StringAttr.get(kind), at.STAGE: at.i64(stage)}
            outputs = _outputs(assignment, task, groups[task])
            outputs += [value for value, where in handed_on.items() if where == task]
            outlined.append(
                outline(module, f"{kind}_{stage}", groups[task], outputs, attributes, shardings, assignment.bypass)
            )
        _replace_body(loop, assignment, outlined)


def _group(assignment: Assignment, handed_on: dict[ir.Value, int]) -> dict[int, list[ir.Operation]]:
    """The operations of each task in program order, with its own clones of the cheap ones."""
    groups: dict[int, set[ir.Operation]] = {}
    for op, task in assignment.task.items():
        groups.setdefault(task, set()).add(op)
    for value, task in handed_on.items():
        op = assignment.producer(value)
        if op is not None:
            groups.setdefault(task, set()).add(op)
    for task, ops in groups.items():
        ops.update(assignment.recomputed.get(task, ()))
        work = list(ops)
        while work:
            for value in assignment.operands[work.pop()]:
                op = assignment.producer(value)
                if op is not None and op in assignment.cheap and op not in ops:
                    ops.add(op)
                    work.append(op)
    position = {op: number for number, op in enumerate(assignment.ops)}
    return {task: sorted(ops, key=position.__getitem__) for task, ops in groups.items()}


def _outputs(assignment: Assignment, task: int, ops: list[ir.Operation]) -> list[ir.Value]:
    """The values of `task` that another task or the next iteration uses."""
    own = (op for op in ops if assignment.task.get(op) == task)
    return [result for op in own for result in op.results if assignment.used_by(result) - {task}]


def _replace_body(loop: MicrobatchLoop, assignment: Assignment, outlined: list[Outlined]) -> None:
    end = terminator(loop.body)
    values: dict[ir.Value, ir.Value] = {}
    for part in outlined:
        attributes = {at.STAGE: part.function.attributes[at.STAGE]}
        operands = [values.get(value, value) for value in part.inputs]
        results = [value.type for value in part.outputs]
        made = call(name_of(part.function), results, operands, attributes, ir.InsertionPoint(end), loop.op.location)
        values.update(zip(part.outputs, made.results, strict=True))
    for number, value in enumerate(assignment.yielded):
        end.operands[number] = values.get(value, value)
    for op in reversed(assignment.ops):
        if not any(map(is_used, op.results)):
            op.erase()
