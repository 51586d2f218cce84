"""`place-residuals`: chooses the values that the forward of each stage keeps for its backward."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.cut import divide, without_long_chains
from jaxpp.hlo_passes.stages.stacked_rows import stack_less
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import sharded
from jaxpp.ir.functions import operations, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tasks import (
    StageTask,
    copy_into,
    marked_task,
    op_of,
    read_tasks,
    set_task,
    task_inside,
    task_of,
    task_of_value,
)


class PlaceResiduals(Pass):
    """Chooses the residuals of each stage so that the fewest bytes stay alive from its forward to its backward.

    An operation that depends only on the forward and that only the backward uses may move to the forward. The forward
    then keeps its result instead of its operands. A cheap operation of the forward may be copied to the backward, which
    then recomputes its result. The pass copies no long chain of operations: XLA would fuse the chain into each of its
    users. Nothing moves between stages, nor into a forward that is one task with its backward.

    A loop of the forward, such as a `lax.scan` over layers, stacks values for the loop of its backward. If it runs a
    known number of times, it stacks only the values that are not cheaply made from the others. Each trip of the
    backward's loop rematerialises the rest. The same holds for nested loops, whose stacks each trip of the outer loop
    stacks in turn. One minimum cut chooses for all of them.

    The backward may compare a value with a choice from it, such as its maximum. If the maximum is kept, the value is
    not rematerialised: it could round differently, and then no element would equal the maximum.

    Where the forward hands on a value in two shapes, only one of them is kept. Rows of keys and values that an earlier
    slice of the sequence keeps for its own backward cost nothing.

    Preconditions: `assign-stages` ran.

    ```mlir
    %y = tanh %x {jaxpp.task = "forward_0"}              ==>   %y = tanh %x {jaxpp.task = "forward_0"}
    %d = multiply %y, %y {jaxpp.task = "backward_0"}           %d = multiply %y, %y {jaxpp.task = "forward_0"}
    %s = reduce %d {jaxpp.task = "backward_0"}                 %s = reduce %d {jaxpp.task = "forward_0"}
    %g = multiply %s, %dy {jaxpp.task = "backward_0"}          %g = multiply %s, %dy {jaxpp.task = "backward_0"}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Places the residuals of the loop of `module`. Raises PassError when `assign-stages` has not run."""
        loop = MicrobatchLoop.of(module)
        stack_less(loop, MeshAxes.of(module))
        body = _Uses(loop)
        stages = [
            _Stage(body, StageTask.forward(n), StageTask.backward(n), loop.stages_per_slice) for n in range(loop.stages)
        ]
        # All stages choose before the first edit.
        chosen = [(stage, _residuals(stages, n, loop)) for n, stage in enumerate(stages)]
        for stage, (moved, again) in chosen:
            for number in moved:
                set_task(body.ops[number], stage.forward)
            for number in reversed(again):  # in reverse order, so that a copy uses the copies of its operands
                copy_into(stage.backward, body.ops[number])
        _share_reshaped(loop)


def _share_reshaped(loop: MicrobatchLoop) -> None:
    """Lets the readers of a value make it from its reshape, where a task hands on both.

    Then only the reshape is kept.
    """
    for op in [op for op in operations(loop.body) if op.name == "stablehlo.reshape"]:
        task = task_of(op)
        if task is None or task_of_value(op.operands[0]) != task:
            continue
        old, new = op.operands[0], _behind_mark(op.results[0])
        shared = _read_by_others(old, task, loop.body)
        if not shared or not _read_by_others(new, task, loop.body):
            continue
        maker = ir.OpResult(new).owner
        if not all(maker.is_before_in_block(op_of(loop.body, use.owner.operation)) for _, use in shared):
            continue
        made: dict[StageTask, ir.Value] = {}
        for reader, use in shared:
            if reader not in made:
                shape = stablehlo.reshape(old.type, new, ip=ir.InsertionPoint.after(maker), loc=op.location)
                made[reader] = sharded(shape, at.value_sharding(old))
                set_task(ir.OpResult(shape).owner.operation, reader)
            use.owner.operands[use.operand_number] = made[reader]


def _read_by_others(value: ir.Value, task: StageTask, body: ir.Block) -> list[tuple[StageTask, ir.OpOperand]]:
    """Returns the uses of `value` by tasks other than its own, `task`, each with the task that uses it."""
    readers = [(task_inside(use.owner.operation, body), use) for use in value.uses]
    return [(reader, use) for reader, use in readers if reader not in (None, task)]


def _behind_mark(value: ir.Value) -> ir.Value:
    """Returns the result of the stage mark that takes `value`; `value` itself if no mark takes it."""
    marks = (use for use in value.uses if boundary.is_mark(use.owner.operation))
    return next((use.owner.operation.results[use.operand_number] for use in marks), value)


def _residuals(stages: Sequence["_Stage"], number: int, loop: MicrobatchLoop) -> tuple[list[int], list[int]]:
    """Returns the operations that a stage moves to its forward, and those that its backward rematerialises.

    All slices that compute the same follow the choice of the second slice, so that they become one program. The first
    slice alone would choose differently, because it reads no keys and values of an earlier slice.
    """
    stage = stages[number]
    if loop.slices > 1:
        like = stages[loop.stages_per_slice + number % loop.stages_per_slice]
        if like.form == stage.form:
            moved, again = (like.places_in(stage, found) for found in like.residuals())
            if all(map(stage.may_move, moved)) and all(map(stage.may_repeat, again)):
                return moved, again
    return stage.residuals()


class _Uses(Numbered):
    """The operations of the loop's body, and the tasks that use their results.

    Attributes:
        tasks: the task of each operation.
        by_task: the operations of each task, without stage marks.
        marks: the stage marks.
        wanted: the operands of the marks at the end of each task.
        used_by: the tasks that use each value. None stands for the next microbatch, to which the loop carries it.
        carried: the arguments of the body that the previous microbatch computed.
    """

    def __init__(self, loop: MicrobatchLoop) -> None:
        ops, self.tasks = read_tasks(loop.body)
        super().__init__(ops)
        self.marks = {number for number, op in enumerate(self.ops) if boundary.is_mark(op)}
        self.by_task: dict[StageTask | None, list[int]] = {}
        self.wanted: dict[StageTask, list[ir.Value]] = {}
        self.used_by: dict[ir.Value, set[StageTask | None]] = {
            value: {None} for value in terminator(loop.body).operands
        }
        for number, (op, task, operands) in enumerate(zip(self.ops, self.tasks, self.operands, strict=True)):
            if number in self.marks:
                self.wanted.setdefault(marked_task(boundary.read(op), loop.stages_per_slice), []).extend(operands)
            else:
                self.by_task.setdefault(task, []).append(number)
            if task is not None:
                for value in operands:
                    self.used_by.setdefault(value, set()).add(task)
        self.carried = loop.carried


@dataclass(frozen=True)
class _Stage:
    """The forward and the backward of one stage, as the halves that `divide` moves operations between.

    Attributes:
        body: the operations of the loop's body.
        forward: the task whose operations are the early half.
        backward: the task whose operations are the late half.
        stages: the number of stages in each slice.
    """

    body: _Uses
    forward: StageTask
    backward: StageTask
    stages: int

    def residuals(self) -> tuple[list[int], list[int]]:
        """Returns the operations that move to the forward, and those that the backward rematerialises, in order."""
        early, late = (self.body.by_task.get(half, []) for half in (self.forward, self.backward))
        if not early:  # a stage without a forward function must not get one
            return [], []
        moved, again = divide(self, late, self.body.wanted.get(self.backward, []))
        return sorted(moved), without_long_chains(self, sorted(again), self._is_read)

    @property
    def ops(self) -> list[int]:
        """The operations of both halves."""
        return [op for half in (self.forward, self.backward) for op in self.body.by_task.get(half, [])]

    @property
    def form(self) -> list[object]:
        """The computation of both halves in a form that is equal for equal slices.

        The form has an entry for each operation: its kind, and the results of the others that it uses.
        """
        place = {number: index for index, number in enumerate(self.ops)}
        made = {
            value: (where, index) for op, where in place.items() for index, value in enumerate(self.body.results[op])
        }
        kinds = (kind_of(self.body.ops[number], without=(at.TASK, at.SLICE)) for number in self.ops)
        return [(kind, [made.get(value) for value in uses]) for kind, uses in kinds]

    def places_in(self, other: "_Stage", found: Sequence[int]) -> list[int]:
        """Returns the operations of `other`, a stage of the same form, that correspond to `found` in this one."""
        place = dict(zip(self.ops, other.ops, strict=True))
        return [place[op] for op in found]

    def _is_read(self, value: ir.Value) -> bool:
        return self.backward in self.body.used_by.get(value, ())

    def is_free(self, value: ir.Value) -> bool:
        op = self.body.producers.get(value)
        if op is None:
            return value not in self.body.carried
        task = self.body.tasks[op]
        return task is None or self._is_kept_by_another(value, task)

    def _is_kept_by_another(self, value: ir.Value, maker: StageTask) -> bool:
        """Whether an earlier slice made `value` and keeps it for its own backward."""
        number = maker.stage // self.stages
        if number >= self.forward.stage // self.stages:
            return False
        readers = self.body.used_by.get(value, ())
        return any(task is not None and task.is_backward and task.stage // self.stages == number for task in readers)

    def is_early(self, value: ir.Value) -> bool:
        op = self.body.producers.get(value)
        task = None if op is None else self.body.tasks[op]
        return task is not None and task <= self.forward

    def may_move(self, op: int) -> bool:
        return all(self.body.used_by.get(result, set()) <= {self.backward} for result in self.body.results[op])

    def may_repeat(self, op: int) -> bool:
        body = self.body
        return body.tasks[op] == self.forward and op not in body.marks and is_cheap(body.ops[op])
