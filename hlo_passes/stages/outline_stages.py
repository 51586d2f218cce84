"""`outline-stages`: outlines each task of the microbatch loop as a function."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import erase_dead, replace
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import call, operations, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Member, Numbered
from jaxpp.ir.outlining import Outlined, outline
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.tasks import StageTask, check_mark, task_of
from jaxpp.ir.values import closure, is_used


class OutlineStages(Pass):
    """Outlines each task of the loop body as a function `@forward_i` or `@backward_i`, called in the body in order.

    The pass groups the operations by their `jaxpp.task`. An operation without a task (`assign-stages`) is cheap and
    depends only on loop invariants and the microbatch index. It is cloned into each task that uses it. The pass erases
    the stage marks.

    Preconditions: `assign-stages` ran; for several devices per submesh, `propagate-shardings` too.

    ```mlir
    %h = dot_general %x, %w0 {jaxpp.task = "forward_0"}    ==>   %h = call @forward_0(%x, %w0)
    %m = optimization_barrier %h {jaxpp.boundary = ...,          %y = call @forward_1(%h, %w1)
                                  jaxpp.task = "forward_1"}
    %y = dot_general %m, %w1 {jaxpp.task = "forward_1"}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Outlines the tasks of `module`. Raises PassError when `assign-stages` has not run."""
        loop = MicrobatchLoop.of(module)
        body = _TaskGroups(loop)
        shardings = Shardings(module)
        outlined: list[Outlined] = []
        for task in sorted(body.groups):
            attributes = {at.KIND: ir.StringAttr.get(task.kind), at.STAGE: at.i64(task.stage)}
            body.check_order(task)
            members, outputs = body.members(task), body.outputs(task)
            outlined.append(outline(module, str(task), members, outputs, attributes, shardings))
        shared = [op for op, task in zip(body.ops, body.tasks, strict=True) if task is None]
        _replace_body(loop, shared, outlined)


class _TaskGroups(Numbered):
    """The operations of the loop's body, grouped by task. The constructor erases `jaxpp.task` and the stage marks.

    Attributes:
        tasks: the task of each operation; None for a cheap one that each of its users rematerialises.
        groups: the numbers of each task's operations in program order, including the cheap ones that it rematerialises.
    """

    def __init__(self, loop: MicrobatchLoop) -> None:
        super().__init__(_live_ops(loop.body))
        self.tasks = list(map(task_of, self.ops))
        for op, task in zip(self.ops, self.tasks, strict=True):
            if task is not None:
                del op.attributes[at.TASK]
        self.groups = self._group()
        # None stands for the next microbatch.
        self._used_by: dict[ir.Value, set[StageTask | None]] = {
            value: {None} for value in terminator(loop.body).operands
        }
        for task, numbers in self.groups.items():
            for value in (value for number in numbers for value in self.operands[number]):
                self._used_by.setdefault(value, set()).add(task)

    def outputs(self, task: StageTask) -> list[ir.Value]:
        """Returns the values of `task` that another task or the next microbatch uses."""
        own = (self.results[number] for number in self.groups[task] if self.tasks[number] == task)
        return [result for results in own for result in results if self._used_by.get(result, set()) - {task}]

    def check_order(self, task: StageTask) -> None:
        """Raises PassError where an operation of `task` reads a value that a later task makes."""
        for number in self.groups[task]:
            for maker in self.makers[number]:
                other = self.tasks[maker]
                if other is not None and task < other:
                    raise PassError(
                        f"{task} reads a value of {other}, which is a later task",
                        location=self.ops[number].location,
                        hint="run assign-stages first",
                    )

    def members(self, task: StageTask) -> list[Member]:
        """Returns the operations of `task`: its own, which move, and the cheap ones that it rematerialises."""
        return [self.member(number, moves=self.tasks[number] is not None) for number in self.groups[task]]

    def _group(self) -> dict[StageTask, list[int]]:
        groups: dict[StageTask, list[int]] = {}
        for number, task in enumerate(self.tasks):
            if task is not None:
                groups.setdefault(task, []).append(number)
        shared = [[maker for maker in makers if self.tasks[maker] is None] for makers in self.makers]
        return {task: sorted(closure(numbers, shared.__getitem__)) for task, numbers in groups.items()}


def _live_ops(body: ir.Block) -> list[ir.Operation]:
    """Erases the stage marks and the dead operations, and returns the others.

    Raises PassError for a mark without a task.
    """
    for op in filter(boundary.is_mark, operations(body)):
        check_mark(op)
        replace(op, op.operands)
    erase_dead(body)
    return operations(body)[:-1]


def _replace_body(loop: MicrobatchLoop, shared: Sequence[ir.Operation], outlined: Sequence[Outlined]) -> None:
    """Calls the outlined functions in the body, and erases the operations of `shared` that have no uses left.

    The operations that count microbatches are used by the terminator, and stay.
    """
    end = terminator(loop.body)
    values: dict[ir.Value, ir.Value] = {}
    for part in outlined:
        attributes = {at.STAGE: part.function.attributes[at.STAGE]}
        operands = [values.get(value, value) for value in part.inputs]
        made = call(part.function, operands, attributes, ir.InsertionPoint(end), loop.op.location)
        values.update(zip(part.outputs, made.results, strict=True))
    for number, value in enumerate(end.operands):
        end.operands[number] = values.get(value, value)
    for op in reversed(shared):
        if not any(map(is_used, op.results)):
            op.erase()
