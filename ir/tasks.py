"""The task of an operation in the body of the microbatch loop: reading and writing `jaxpp.task`."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import operations
from jaxpp.ir.values import defining_op

_KINDS = ("forward", "backward")


class StageTask(NamedTuple):
    """The forward or the backward of one stage. Tasks compare in the order of one microbatch: backwards come last.

    Attributes:
        is_backward: whether it is the backward of its stage.
        order: its place among the tasks of its kind: the number of its stage, negative for a backward.
    """

    is_backward: bool
    order: int

    @classmethod
    def forward(cls, stage: int) -> "StageTask":
        """Returns the forward of `stage`."""
        return cls(False, stage)

    @classmethod
    def backward(cls, stage: int) -> "StageTask":
        """Returns the backward of `stage`."""
        return cls(True, -stage)

    @property
    def kind(self) -> str:
        """The `jaxpp.kind` of its function."""
        return _KINDS[self.is_backward]

    @property
    def stage(self) -> int:
        """The number of its stage."""
        return abs(self.order)

    def __str__(self) -> str:
        """Returns its name, which is also the name of its function: `forward_0`."""
        return f"{self.kind}_{self.stage}"


@lru_cache(maxsize=4096)
def _parsed(name: str) -> StageTask | None:
    kind, _, stage = name.rpartition("_")
    if kind not in _KINDS or not stage.isdecimal() or str(int(stage)) != stage:
        return None
    return StageTask.forward(int(stage)) if kind == "forward" else StageTask.backward(int(stage))


def task_of(op: ir.Operation) -> StageTask | None:
    """Returns the task that `jaxpp.task` of `op` names; None without the attribute. Raises PassError for other forms.

    An operation without a task is cheap and depends only on loop invariants and the microbatch index. Each task that
    uses it makes a copy of its own. A stage mark belongs to the task that its results enter.
    """
    attribute = op.attributes.get(at.TASK)
    if attribute is None:
        return None
    task = _parsed(attribute.value) if isinstance(attribute, ir.StringAttr) else None
    if task is None:
        raise PassError(
            f"unknown form of {at.TASK}: {attribute}",
            location=op.location,
            hint='it names a task: "forward_0", "backward_0"',
        )
    return task


def task_of_value(value: ir.Value) -> StageTask | None:
    """Returns the task that makes `value` of the loop body; None for a value that every task has or can make."""
    op = defining_op(value)
    return None if op is None else task_of(op)


def latest_task(values: Iterable[ir.Value]) -> StageTask | None:
    """Returns the latest task that makes one of `values`; None where every task has or can make all of them."""
    return max((task for task in map(task_of_value, values) if task is not None), default=None)


def set_task(op: ir.Operation, task: StageTask | None) -> None:
    """Writes `jaxpp.task` on `op`, unless there is no task."""
    if task is not None:
        op.attributes[at.TASK] = ir.StringAttr.get(str(task))


def inherit_task(op: ir.Operation, source: ir.Operation | None) -> None:
    """Gives `op`, which is new in the loop's body, the task of `source`."""
    if source is not None and at.TASK in source.attributes:
        op.attributes[at.TASK] = source.attributes[at.TASK]


def task_inside(op: ir.Operation, body: ir.Block) -> StageTask | None:
    """Returns the task of the operation of `body` that is `op` or contains it."""
    return task_of(op_of(body, op))


def op_of(body: ir.Block, op: ir.Operation) -> ir.Operation:
    """Returns the operation of `body` that is `op` or contains it; the module if `op` is elsewhere."""
    while op.parent is not None and op.block != body:  # a module is in no block, and MLIR crashes when asked for it
        op = op.parent.operation
    return op


def copy_into(task: StageTask, op: ir.Operation, readers: Collection[StageTask] = ()) -> ir.Operation:
    """Copies `op` into `task`, right after `op`; the operations of `task` and of `readers` use the copy instead."""
    copy = op.clone(ir.InsertionPoint.after(op)).operation
    set_task(copy, task)
    for result, copied in zip(op.results, copy.results, strict=True):
        for use in list(result.uses):
            if task_inside(use.owner.operation, op.block) in (task, *readers):
                use.owner.operands[use.operand_number] = copied
    return copy


def in_slice(task: StageTask, number: int, stages: int) -> StageTask:
    """Returns the task of the same kind and stage in slice `number`. stages: the number of stages of one slice."""
    return StageTask(task.is_backward, (-1 if task.is_backward else 1) * (number * stages + task.stage % stages))


def marked_task(mark: boundary.Boundary, stages: int) -> StageTask:
    """Returns the task that makes the operands of a stage mark, and ends there. stages: the stages of one slice."""
    if mark.phase == "forward":
        return StageTask.forward(mark.stage)
    return StageTask.backward(next_stage(mark.stage, stages))


def next_stage(stage: int, stages: int) -> int:
    """Returns the stage after `stage`, of `stages` in each slice; the last stage of a slice itself."""
    return stage if stage % stages == stages - 1 else stage + 1


def read_tasks(body: ir.Block) -> tuple[Sequence[ir.Operation], Sequence[StageTask | None]]:
    """Returns the operations of the loop's body in program order, and the task of each.

    Raises PassError for a stage mark without a task: `assign-stages` has not run.
    """
    ops = operations(body)[:-1]
    tasks = [task_of(op) for op in ops]
    for op, task in zip(ops, tasks, strict=True):
        if task is None and boundary.is_mark(op):
            check_mark(op)
    return ops, tasks


def check_mark(mark: ir.Operation) -> None:
    """Raises PassError for a stage mark without a task: `assign-stages` has not run."""
    if task_of(mark) is None:
        raise PassError(f"a stage mark with no {at.TASK}", location=mark.location, hint="run assign-stages first")
