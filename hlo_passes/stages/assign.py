"""Which task of the microbatch loop each operation belongs to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.cheap import cheap_operations
from jaxpp.hlo_passes.ir.functions import has_side_effect, operands_with_captures, operations, terminator

# The task number of a use by the next iteration of the loop.
NEXT_ITERATION = -1


@dataclass(frozen=True)
class Tasks:
    """The tasks of one iteration in their order: forward 0 to n-1, then backward n-1 to 0, as numbers 0 to 2n-1."""

    stages: int

    def forward(self, stage: int) -> int:
        """The number of the forward task of `stage`."""
        return stage

    def backward(self, stage: int) -> int:
        """The number of the backward task of `stage`."""
        return 2 * self.stages - 1 - stage

    def kind_and_stage(self, task: int) -> tuple[str, int]:
        """The inverse of `forward` and `backward`."""
        return ("forward", task) if task < self.stages else ("backward", 2 * self.stages - 1 - task)


class Assignment:
    """The task of every live operation of the loop body.

    `task` maps an operation to its task's number. `cheap` operations have none: each task that uses one gets a clone.
    Dead operations belong to no task either. `recomputed` holds, for a task, operations of another that it computes
    again.
    """

    def __init__(self, body: ir.Block, stages: int, indices: Sequence[int]) -> None:
        self.tasks = Tasks(stages)
        self.ops = operations(body)[:-1]
        self.yielded = list(terminator(body).operands)
        self._producers: dict[ir.Value, ir.Operation] = {result: op for op in self.ops for result in op.results}
        self._carried: dict[ir.Value, int] = {
            argument: i for i, argument in enumerate(body.arguments) if i not in set(indices)
        }
        self.operands = {op: operands_with_captures(op) for op in self.ops}
        self._marks = [(op, boundary.read(op)) for op in self.ops if boundary.is_mark(op)]
        self._read_ends()
        self._live = self._reach(value for i, value in enumerate(self.yielded) if i not in set(indices))
        claimed = {self.producer(value) for op, _ in self._marks for value in op.operands}
        self.cheap = cheap_operations(self.operands, self._producers, self.is_invariant, claimed)
        self.task: dict[ir.Operation, int] = {}
        self.recomputed: dict[int, set[ir.Operation]] = {}
        self.bypass: dict[ir.Value, ir.Value] = {}
        self._claim_slices()
        self._place_the_rest()

    def producer(self, value: ir.Value) -> ir.Operation | None:
        """The operation of the body that computes `value`; None for a value from outside of the body."""
        return self._producers.get(value)

    def live(self) -> list[ir.Operation]:
        """The operations that a result of the loop depends on, in program order, without marks."""
        return [op for op in self.ops if op in self._live and not boundary.is_mark(op)]

    def bypass_marks(self) -> None:
        """From here on a mark's result is its operand.

        The IR stays as it is: the hash of an operation is made of its operands, and would change.
        """
        for op, _ in self._marks:
            for result, operand in zip(op.results, op.operands, strict=True):
                self.bypass[result] = self.bypass.get(operand, operand)
        self.yielded = [self.bypass.get(value, value) for value in self.yielded]
        for op, values in self.operands.items():
            self.operands[op] = [self.bypass.get(value, value) for value in values]
        self.refresh()

    def refresh(self) -> None:
        """Find the users of each value again, after operations changed their task."""
        self._used_by: dict[ir.Value, set[int]] = {value: {NEXT_ITERATION} for value in self.yielded}
        uses = [*self.task.items(), *((op, task) for task, ops in self.recomputed.items() for op in ops)]
        for op, task in uses:
            again = self.recomputed.get(task, ())
            for value in self.operands[op]:
                if self.producer(value) not in again:
                    self._used_by.setdefault(value, set()).add(task)
        if not self.bypass:
            for op, _ in self._marks:
                for value in self.operands[op]:
                    self._used_by.setdefault(value, set()).add(self.after[op])

    def used_by(self, value: ir.Value) -> set[int]:
        """The tasks that use `value`; NEXT_ITERATION is among them when the loop carries it."""
        return self._used_by.get(value, set())

    def is_free(self, value: ir.Value) -> bool:
        """Whether every task can have `value`, or make it for itself: invariants, indices and what is cheap."""
        op = self.producer(value)
        return self.is_invariant(value) if op is None else op in self.cheap

    def is_invariant(self, value: ir.Value) -> bool:
        """Whether `value` comes from outside of the loop, or is the microbatch index."""
        return value not in self._carried and value not in self._producers

    def _read_ends(self) -> None:
        """Where each mark's operands are computed and where its results belong."""
        tasks = self.tasks
        last = tasks.stages - 1
        forward = [mark.stage for _, mark in self._marks if mark.phase == "forward"]
        has_backward = any(mark.phase == "backward" for _, mark in self._marks)
        # Without a mark after the last stage nothing separates its forward from its backward: they are one task.
        fused = last not in forward and has_backward
        self.before: dict[ir.Operation, int] = {}
        self.after: dict[ir.Operation, int] = {}
        for op, mark in self._marks:
            if mark.phase == "forward":
                following = min(mark.stage + 1, last)
                self.before[op] = tasks.forward(mark.stage)
                self.after[op] = tasks.backward(last) if fused and following == last else tasks.forward(following)
            else:
                self.before[op] = tasks.backward(min(mark.stage + 1, last))
                self.after[op] = tasks.backward(mark.stage)

    def _reach(self, roots: Iterable[ir.Value]) -> set[ir.Operation]:
        found: set[ir.Operation] = {op for op in self.ops if has_side_effect(op)}
        work = [op for op in found] + [op for op in map(self.producer, roots) if op is not None]
        found.update(work)
        while work:
            for value in self.operands[work.pop()]:
                op = self.producer(value)
                if op is not None and op not in found:
                    found.add(op)
                    work.append(op)
        return found

    def _claim_slices(self) -> None:
        """The backward slice of each mark, in the order of the tasks, up to what another mark has claimed."""
        for mark in sorted((op for op, _ in self._marks if op in self._live), key=lambda op: self.before[op]):
            work = [mark]
            while work:
                for value in self.operands[work.pop()]:
                    op = self.producer(value)
                    if op is None or op in self.task or op in self.cheap or op in self.after:
                        continue
                    self.task[op] = self.before[mark]
                    work.append(op)

    def _place_the_rest(self) -> None:
        """What no mark needs goes with the latest task among its operands'; without one, with its first user."""
        floating: list[ir.Operation] = []
        for op in self.live():
            found = [task for task in map(self.task_of, self.operands[op]) if task is not None]
            if op in self.task:
                self._check_order(op, max(found, default=0))
            elif op not in self.cheap:
                if found:
                    self.task[op] = max(found)
                else:
                    floating.append(op)
        carried = self._where_carried(floating)
        users_of: dict[ir.Value, list[ir.Operation]] = {}
        for op, values in self.operands.items():
            for value in values:
                users_of.setdefault(value, []).append(op)
        for op in reversed(floating):
            users = (self.task.get(user) for result in op.results for user in users_of.get(result, ()))
            self.task[op] = min((task for task in users if task is not None), default=carried[op])
        for op, _ in self._marks:
            found = [task for task in map(self.task_of, self.operands[op]) if task is not None]
            if op in self._live and max(found, default=0) > self.before[op]:
                raise self._backwards(op, max(found), self.before[op])

    def _where_carried(self, floating: Sequence[ir.Operation]) -> dict[ir.Operation, int]:
        """For operations on what the last iteration handed on: the task that makes it; for others the first task."""
        where: dict[ir.Operation, int] = {}
        for op in floating:
            found = [0]
            for value in self.operands[op]:
                producer = self.producer(value)
                if producer is not None:
                    found.append(where.get(producer, 0))
                elif value in self._carried:
                    found.append(self.task_of(self.yielded[self._carried[value]]) or 0)
            where[op] = max(found)
        return where

    def task_of(self, value: ir.Value) -> int | None:
        """The task that `value` comes from; None for one that every task can have or make for itself."""
        op = self.producer(value)
        if op is None:
            return None
        return self.after.get(op, self.task.get(op))

    def _check_order(self, op: ir.Operation, latest: int) -> None:
        if latest > self.task[op]:
            raise self._backwards(op, latest, self.task[op])

    def _backwards(self, op: ir.Operation, source: int, target: int) -> PassError:
        (kind, stage), (from_kind, from_stage) = map(self.tasks.kind_and_stage, (target, source))
        return PassError(
            f"a value flows backwards: from the {from_kind} of stage {from_stage} to the {kind} of stage {stage}",
            location=op.location,
            hint="mark the stages in the order in which the data passes through them",
        )

    def marks_after(self, task: int) -> list[ir.Operation]:
        """The live marks whose operands `task` computes."""
        return [op for op, _ in self._marks if self.before[op] == task and op in self._live]

    def handed_on(self) -> dict[ir.Value, int]:
        """Cheap values that the loop carries to its next iteration, each with the task that computes it for that."""
        carried = {i: argument for argument, i in self._carried.items()}
        values: dict[ir.Value, int] = {}
        for i, value in enumerate(self.yielded):
            if i in carried and self.producer(value) in self.cheap:
                values.setdefault(
                    value, min(self.used_by(carried[i]) - {NEXT_ITERATION}, default=min(self.task.values()))
                )
        return values
