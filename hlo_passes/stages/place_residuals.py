"""`place-residuals`: chooses what the forward of each stage keeps for its backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.cut import divide
from jaxpp.ir import boundary
from jaxpp.ir.functions import operands_with_captures, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import MOST_RECOMPUTED, is_cheap
from jaxpp.ir.tasks import StageTask, copy_into, marked_task, read_tasks, set_task


@dataclass(frozen=True)
class PlaceResiduals(Pass):
    """Chooses the residuals of each stage so that the fewest bytes stay alive from its forward to its backward.

    An operation that depends on the forward alone and that only the backward uses may move to the forward, which then
    keeps its result instead of its operands. A cheap one of the forward may be computed again in the backward, which
    gets a copy of it, unless that takes a long chain of others: XLA would fuse the chain into each of its users.
    Nothing moves between stages, nor into a forward that is one task with its backward.

    Preconditions: `assign-stages` ran.

    ```mlir
    %y = tanh %x {jaxpp.task = "forward_0"}              ==>   %y = tanh %x {jaxpp.task = "forward_0"}
    %d = multiply %y, %y {jaxpp.task = "backward_0"}           %d = multiply %y, %y {jaxpp.task = "forward_0"}
    %s = reduce %d {jaxpp.task = "backward_0"}                 %s = reduce %d {jaxpp.task = "forward_0"}
    %g = multiply %s, %dy {jaxpp.task = "backward_0"}          %g = multiply %s, %dy {jaxpp.task = "backward_0"}
    ```
    """

    name: ClassVar[str] = "place-residuals"

    def run(self, module: ir.Module) -> None:
        """Place the residuals of the loop of `module`. Raises PassError when `assign-stages` has not run."""
        loop = MicrobatchLoop.of(module)
        body = _Uses(loop)
        stages = [_Stage(body, StageTask.forward(n), StageTask.backward(n)) for n in range(loop.stages)]
        # All of it is chosen before the first edit, which changes the hash of an operation.
        for stage, (moved, again) in [(stage, stage.residuals()) for stage in stages]:
            for op in moved:
                set_task(op, stage.forward)
            for op in reversed(again):  # a copy uses the copies of what it is made of
                copy_into(stage.backward, op)


class _Uses:
    """The operations of the loop's body.

    Attributes:
        tasks: the task of each operation, in program order.
        producers: the operation that makes a value.
        operands: what an operation uses, also in its regions.
        used_by: the tasks that use a value; None is among them where the loop carries it to the next microbatch.
        carried: the values that the last microbatch handed on.
    """

    def __init__(self, loop: MicrobatchLoop) -> None:
        ops, tasks = read_tasks(loop.body)
        self.tasks: dict[ir.Operation, StageTask | None] = dict(zip(ops, tasks, strict=True))
        self.producers: dict[ir.Value, ir.Operation] = {result: op for op in ops for result in op.results}
        self.operands = {op: operands_with_captures(op) for op in ops}
        self.used_by: dict[ir.Value, set[StageTask | None]] = {
            value: {None} for value in terminator(loop.body).operands
        }
        for op, task in self.tasks.items():
            if task is not None:
                for value in self.operands[op]:
                    self.used_by.setdefault(value, set()).add(task)
        indices = set(loop.indices)
        self.carried = {value for position, value in enumerate(loop.body.arguments) if position not in indices}
        self.marks = [(op, marked_task(boundary.read(op), loop.stages)) for op in ops if boundary.is_mark(op)]


@dataclass(frozen=True)
class _Stage:
    """The forward and the backward of one stage, as the halves that `divide` moves operations between."""

    body: _Uses
    forward: StageTask
    backward: StageTask

    def residuals(self) -> tuple[list[ir.Operation], list[ir.Operation]]:
        """What moves from the backward to the forward, and what the backward computes again, in program order."""
        tasks = self.body.tasks
        early, late = (
            [op for op, task in tasks.items() if task == half and not boundary.is_mark(op)]
            for half in (self.forward, self.backward)
        )
        if not early:  # a stage without a forward of its own must not get one
            return [], []
        wanted = [value for op, task in self.body.marks if task == self.backward for value in op.operands]
        moved, again = divide(self, late, wanted)
        return [op for op in tasks if op in moved], self._bounded([op for op in tasks if op in again])

    def _bounded(self, again: Sequence[ir.Operation]) -> list[ir.Operation]:
        """The operations of `again` without long chains: of a chain that is too long, one value is kept as a residual.

        XLA fuses all that makes a value into each fusion that uses it: a chain as long as the stage would be compiled,
        and computed, once for each of its values.
        """
        lengths: dict[ir.Operation, int] = {}
        for op in again:
            producers = (self.producer(value) for value in self.operands(op))
            length = 1 + sum(lengths.get(each, 0) for each in producers if each is not None)
            if length <= MOST_RECOMPUTED:
                lengths[op] = length
        found: list[ir.Operation] = []
        needed: set[ir.Value] = set()
        for op in reversed(lengths):
            used_by = (self.body.used_by.get(result, set()) for result in op.results)
            if not needed.isdisjoint(op.results) or any(self.backward in tasks for tasks in used_by):
                found.append(op)
                needed.update(self.operands(op))
        return found[::-1]

    def operands(self, op: ir.Operation) -> Sequence[ir.Value]:
        return self.body.operands[op]

    def producer(self, value: ir.Value) -> ir.Operation | None:
        return self.body.producers.get(value)

    def is_free(self, value: ir.Value) -> bool:
        op = self.producer(value)
        return value not in self.body.carried if op is None else self.body.tasks[op] is None

    def is_early(self, value: ir.Value) -> bool:
        op = self.producer(value)
        task = None if op is None else self.body.tasks[op]
        return task is not None and task <= self.forward

    def may_move(self, op: ir.Operation) -> bool:
        return all(self.body.used_by.get(result, set()) <= {self.backward} for result in op.results)

    def may_repeat(self, op: ir.Operation) -> bool:
        return self.body.tasks[op] == self.forward and is_cheap(op) and not boundary.is_mark(op)
