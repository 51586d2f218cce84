"""`place-residuals`: chooses what the forward of each stage keeps for its backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True)
class PlaceResiduals(Pass):
    """Chooses the residuals of each stage so that the fewest bytes stay alive from its forward to its backward.

    An operation that depends on the forward alone and that only the backward uses may move to the forward, which then
    keeps its result instead of its operands. A cheap one of the forward may be computed again in the backward, which
    gets a copy of it, unless that takes a long chain of others: XLA would fuse the chain into each of its users.
    Nothing moves between stages, nor into a forward that is one task with its backward.

    A loop of the forward that runs a known number of times, as that of a `lax.scan` over layers, stacks for the loop of
    its backward only what is not cheaply made of the rest: the backward makes that again in each of its trips. So do
    loops inside of it, of which each trip of the outer one stacks the stacks: one minimum cut chooses for all of them.

    A value that is compared with what is chosen of it, as with its maximum, is not made again if that is kept: it could
    round otherwise, and be equal to none of it.

    Of a value that the forward hands on in two shapes one is kept, and rows of keys and values that an earlier slice of
    the sequence keeps for its own backward cost nothing.

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
        stack_less(loop, MeshAxes.of(module))
        body = _Uses(loop)
        stages = [
            _Stage(body, StageTask.forward(n), StageTask.backward(n), loop.stages_per_slice) for n in range(loop.stages)
        ]
        chosen = [(stage, _residuals(stages, n, loop)) for n, stage in enumerate(stages)]  # before the first edit
        for stage, (moved, again) in chosen:
            for number in moved:
                set_task(body.ops[number], stage.forward)
            for number in reversed(again):  # in reverse, so that a copy uses those of its operands
                copy_into(stage.backward, body.ops[number])
        _share_reshaped(loop)


def _share_reshaped(loop: MicrobatchLoop) -> None:
    """Where a task hands on a value and a reshape of it, let the readers of the value read the reshape: one is kept."""
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
    """The uses of `value` outside of `task`, which makes it, each with the task that it is in."""
    readers = [(task_inside(use.owner.operation, body), use) for use in value.uses]
    return [(reader, use) for reader, use in readers if reader not in (None, task)]


def _behind_mark(value: ir.Value) -> ir.Value:
    """The result of the stage mark that `value` goes through; `value` itself if it goes through none."""
    marks = (use for use in value.uses if boundary.is_mark(use.owner.operation))
    return next((use.owner.operation.results[use.operand_number] for use in marks), value)


def _residuals(stages: Sequence["_Stage"], number: int, loop: MicrobatchLoop) -> tuple[list[int], list[int]]:
    """The operations that a stage moves to its forward, and those that its backward does again.

    All slices that compute the same take what the second slice chooses, so that they are one program. By itself the
    first slice would choose otherwise, as it reads no keys and values of an earlier slice.
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
    """The operations of the loop's body.

    Attributes:
        tasks: the task of each operation.
        by_task: the operations of each task, but for stage marks.
        marks: the stage marks.
        wanted: what the marks at the end of a task take.
        used_by: the tasks that use a value; None is among them where the loop carries it to the next microbatch.
        carried: the values that the last microbatch handed on.
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
        stages: those of one slice.
    """

    body: _Uses
    forward: StageTask
    backward: StageTask
    stages: int

    def residuals(self) -> tuple[list[int], list[int]]:
        """Return what moves from the backward to the forward and what the backward recomputes, in program order."""
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
        """What these operations compute, in whatever slice: each by its kind, and what it uses of the others."""
        place = {number: index for index, number in enumerate(self.ops)}
        made = {
            value: (where, index) for op, where in place.items() for index, value in enumerate(self.body.results[op])
        }
        kinds = (kind_of(self.body.ops[number], without=(at.TASK, at.SLICE)) for number in self.ops)
        return [(kind, [made.get(value) for value in uses]) for kind, uses in kinds]

    def places_in(self, other: "_Stage", found: Sequence[int]) -> list[int]:
        """The operations of `other`, a stage that does the same, which correspond to these of this one."""
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
