"""Residuals: what a forward task hands to its backward, and what is computed on which side."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir.cheap import is_cheap
from jaxpp.hlo_passes.stages.assign import Assignment
from jaxpp.hlo_passes.stages.cut import divide


def place_residuals(assignment: Assignment) -> None:
    """Choose the residuals of each stage so that the fewest bytes stay alive from its forward to its backward.

    An operation that depends on the forward alone and that only the backward uses may move to the forward; a cheap one
    of the forward may be computed again in the backward.
    """
    assignment.refresh()
    by_task: dict[int, list[ir.Operation]] = {}
    for op in assignment.live():
        if op in assignment.task:
            by_task.setdefault(assignment.task[op], []).append(op)
    for stage in range(assignment.tasks.stages):
        forward, backward = assignment.tasks.forward(stage), assignment.tasks.backward(stage)
        if forward in by_task and backward in by_task:
            wanted = [value for op in assignment.marks_after(backward) for value in assignment.operands[op]]
            moved, again = divide(_Stage(assignment, forward, backward), by_task[backward], wanted)
            assignment.task.update(dict.fromkeys(moved, forward))
            assignment.recomputed[backward] = again


@dataclass(frozen=True)
class _Stage:
    """The forward and the backward of one stage, as the halves that `divide` moves operations between."""

    assignment: Assignment
    forward: int
    backward: int

    def operands(self, op: ir.Operation) -> Sequence[ir.Value]:
        return self.assignment.operands[op]

    def producer(self, value: ir.Value) -> ir.Operation | None:
        return self.assignment.producer(value)

    def is_free(self, value: ir.Value) -> bool:
        return self.assignment.is_free(value)

    def is_early(self, value: ir.Value) -> bool:
        task = self.assignment.task_of(value)
        return task is not None and task <= self.forward

    def may_move(self, op: ir.Operation) -> bool:
        return all(self.assignment.used_by(result) <= {self.backward} for result in op.results)

    def may_repeat(self, op: ir.Operation) -> bool:
        return self.assignment.task.get(op) == self.forward and is_cheap(op)
