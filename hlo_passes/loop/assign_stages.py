"""`assign-stages`: writes on each operation of the microbatch loop to which task it belongs."""

from collections.abc import Iterable, Sequence
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.stage_graph import copy_to_readers, made_of_batch
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import erase_dead, split_barrier
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import operations, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import MOST_RECOMPUTED, is_cheap
from jaxpp.ir.tasks import StageTask, copy_into, in_slice, marked_task, next_stage
from jaxpp.ir.values import defining_op


class AssignStages(Pass):
    """Writes its task on each operation of the loop's body: `jaxpp.task = "forward_0"` or `"backward_0"`.

    - Each mark ends a task, which contains all operations on which this mark depends and no mark before it. Forward
      marks come before backward marks. The mark itself belongs to the task that its results enter.
    - An operation on which no mark depends (weight gradients, accumulation, metrics) gets the latest of its operands'
      tasks. An operation after a barrier of `jax.checkpoint`, with operands from forwards only, is recomputation: it
      gets the earliest of its users' tasks, a backward.
    - Cheap values that depend only on loop invariants and the microbatch index get no task: constants, masks, slices
      of the batch, casts of weights. Each task that uses one recomputes it. JAX's helpers and CSE share such values
      between stages; they would otherwise be sent between meshes, or kept from forward to backward.
    - A cheap value that the user marked gets a task all the same, unless it is made of constants. If the loop carries
      a cheap value to the next microbatch, a copy of it gets the task that uses it there.
    - Operations whose results nobody uses are erased.

    Without a forward mark after the last stage, its forward and backward are one task, `backward_{n-1}`. JAX drops that
    mark if nobody uses its result.

    A schedule may order the stages as a graph (`Placement.after`), which is the same in each slice. Then:

    - a forward mark belongs to its own stage, unless the next stage is the only one that reads this stage;
    - gradients that come back from several stages are added in the backward of the stage that they read;
    - an operation that combines forwards without an order between them goes to the first stage after all of them;
    - a stage recomputes a value made of the microbatch alone (a generator's key, a mask), unless it comes after the
      stage that makes the value.

    Later passes keep the attribute, and the operations that they make in the loop's body inherit it. `verify-loop`
    checks it.

    Preconditions: `number-stages` ran.

    ```mlir
    %h = stablehlo.dot_general %x, %w0     ==>   %h = stablehlo.dot_general %x, %w0 {jaxpp.task = "forward_0"}
    %m = stablehlo.optimization_barrier %h       %m = stablehlo.optimization_barrier %h
      {jaxpp.boundary = {stage = 0,                {jaxpp.boundary = {stage = 0, phase = "forward"},
       phase = "forward"}}                          jaxpp.task = "forward_1"}
    %y = stablehlo.dot_general %m, %w1           %y = stablehlo.dot_general %m, %w1 {jaxpp.task = "forward_1"}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Assigns the operations of the loop of `module`. Raises PassError when a value flows to an earlier task."""
        loop = MicrobatchLoop.of(module)
        ops = operations(loop.body)[:-1]
        entered = _entered(loop, ops)
        _split_barriers(loop, ops)
        # A slice's loss may be unused, but its mark ends the last forward: the next slice uses the other results.
        erase_dead(loop.body, marks=loop.slices == 1)
        assignment = _Assignment(loop, entered)
        assignment.run()
        names = {task: ir.StringAttr.get(str(task)) for task in {*assignment.tasks} - {None}}
        for op, task in zip(assignment.ops, assignment.tasks, strict=True):
            if task is not None:
                op.attributes[at.TASK] = names[task]
        _hand_on(loop, assignment.handed_on())
        if assignment.of_batch:
            copy_to_readers(loop, [assignment.ops[number] for number in sorted(assignment.of_batch)], assignment.before)


def _split_barriers(loop: MicrobatchLoop, ops: Sequence[ir.Operation]) -> None:
    """Splits barriers: each value that every task can compute by itself gets a barrier of its own.

    `jax.checkpoint` makes one barrier of weights, perhaps of several stages, and of the gradient for which the
    recomputation waits. The weights need not wait.
    """
    if not any(map(boundary.is_barrier, ops)):
        return
    shared = set[ir.Value](loop.body.arguments[position] for position in loop.indices)
    unknown = set[ir.Value](result for op in ops for result in op.results).union(loop.body.arguments) - shared
    for op in ops:
        alone = [number for number, value in enumerate(op.operands) if value not in unknown]
        if boundary.is_barrier(op):
            if alone:
                rest = [number for number in range(len(op.operands)) if number not in alone]
                results = split_barrier(op, [*([number] for number in alone), rest])
                unknown.update(results[number] for number in rest)
                unknown.difference_update(results[number] for number in alone)
        elif is_cheap(op) and len(alone) == len(op.operands):
            unknown.difference_update(op.results)


def _entered(loop: MicrobatchLoop, ops: Sequence[ir.Operation]) -> dict[boundary.Boundary, StageTask]:
    """Maps each mark to the task that its results enter, whether or not an operation uses them."""
    marks = {boundary.read(op) for op in ops if boundary.is_mark(op)}
    last = loop.stages - 1
    ended = {mark.stage for mark in marks if mark.phase == "forward"}
    # Without a mark after the last stage, nothing separates its forward from its backward: they are one task.
    fused = last not in ended and any(mark.phase == "backward" for mark in marks)
    readers = _readers(loop)
    entered: dict[boundary.Boundary, StageTask] = {}
    for mark in marks:
        if mark.phase == "backward":
            entered[mark] = StageTask.backward(mark.stage)
        elif mark.stage in readers and readers[mark.stage] != (mark.stage + 1,):
            entered[mark] = StageTask.forward(mark.stage)
        else:
            following = next_stage(mark.stage, loop.stages_per_slice)
            is_last = fused and following == last
            entered[mark] = StageTask.backward(last) if is_last else StageTask.forward(following)
    return entered


def _readers(loop: MicrobatchLoop) -> dict[int, tuple[int, ...]]:
    """Maps each stage, except the last of each slice, to the stages that read it; empty if the stages are a chain."""
    placement = loop.plan.placement if loop.schedule else None
    if placement is None or not placement.after:
        return {}
    return {
        first + stage: tuple(first + other for other in placement.near(stage, 1))
        for first in range(0, loop.stages, placement.stages)
        for stage in range(placement.stages - 1)
    }


def _before(loop: MicrobatchLoop) -> dict[int, set[int]]:
    """Maps each stage to all stages before it, also in earlier slices.

    The entry after the last stage is for the task that follows the last slice: it comes after all stages.
    """
    placement = loop.plan.placement
    found: dict[int, set[int]] = {}
    for number in range(loop.stages):
        part, stage = divmod(number, placement.stages)
        read = [part * placement.stages + other for other in placement.near(stage, -1)]
        read += [number - placement.stages] if part else []
        found[number] = set(read).union(*map(found.__getitem__, read))
    return found | {loop.stages: set(range(loop.stages))}


class _Assignment(Numbered):
    """The operations of the loop's body, and their tasks.

    Attributes:
        tasks: the task of each operation; None where each task that uses its results recomputes them.
        before: all stages before each stage, if the stages are a graph; empty otherwise.
        of_batch: the operations that depend on the microbatch alone, if the stages are a graph. Readers recompute them.
    """

    def __init__(self, loop: MicrobatchLoop, entered: dict[boundary.Boundary, StageTask]) -> None:
        body, indices = loop.body, set(loop.indices)
        super().__init__(operations(body)[:-1])
        self._loop = loop
        self._slices = [at.integer(op, at.SLICE) if loop.slices > 1 else None for op in self.ops]
        self.tasks: list[StageTask | None] = [None] * len(self.ops)
        self._yielded = list(terminator(body).operands)
        self._carried: dict[ir.Value, int] = {
            argument: position for position, argument in enumerate(body.arguments) if position not in indices
        }
        self._readers = _readers(loop)
        self.before = _before(loop) if self._readers else dict[int, set[int]]()
        enters = (task.stage for mark, task in entered.items() if mark.phase == "forward" and task.is_backward)
        self._fused = next(enters, None)  # the stage whose forward and backward are one task, if there is one
        self.of_batch = made_of_batch(loop, self) if self._readers else set[int]()
        self._ends: dict[int, StageTask] = {}
        # Maps the backward mark of each stage that several stages read to this stage.
        self._joins: dict[int, int] = {}
        for number, op in enumerate(self.ops):
            if boundary.is_mark(op):
                mark = boundary.read(op)
                self.tasks[number] = entered[mark]
                self._ends[number] = marked_task(mark, loop.stages_per_slice)
                if mark.phase == "backward" and mark.stage in self._readers:
                    reader, *others = self._readers[mark.stage]
                    self._ends[number] = StageTask.backward(mark.stage if others else reader)
                    if others:
                        self._joins[number] = mark.stage
        self._cheap = self._find_cheap()

    def run(self) -> None:
        """Assigns each operation. Raises PassError where a value flows to an earlier task, or not as the graph says."""
        self._claim()
        self._check_graph()
        self._place_the_rest()
        for number, ending in self._ends.items():
            self._check_order(number, ending)

    def handed_on(self) -> list[tuple[int, ir.Operation, StageTask]]:
        """Returns each position that carries a cheap operation's result, the operation, and the task that computes it.

        If the value passes through marks, the task is the one that the last mark enters. Otherwise it is the first task
        that uses the value in the next iteration.
        """
        found: list[tuple[int, ir.Operation, StageTask]] = []
        tasks: dict[tuple[int, StageTask | None], StageTask] = {}
        for argument, position in self._carried.items():
            value, entered = self._yielded[position], None
            while (number := self.producers.get(value)) in self._ends:
                entered = entered or self.tasks[number]
                value = self.operands[number][ir.OpResult(value).result_number]
            if number is None or number not in self._cheap:
                continue
            if (number, entered) not in tasks:
                users = [task for task, used in zip(self.tasks, self.operands, strict=True) if argument in used]
                users = [entered] if entered else users if any(users) else self.tasks
                first = min((task for task in users if task is not None), default=StageTask.forward(0))
                tasks[number, entered] = first
            found.append((position, self.ops[number], tasks[number, entered]))
        return found

    def _find_cheap(self) -> set[int]:
        """Returns the cheap operations that depend only on loop invariants and the microbatch index.

        Each takes at most `MOST_RECOMPUTED` operations to recompute. Only operations made of constants are cheap where
        a mark takes the result; with slices, also where another slice or the next iteration takes it.
        """
        claimed = {self.producers.get(value) for mark in self._ends for value in self.operands[mark]}
        claimed |= self._handed_to_other_slices()
        length: dict[int, int] = {}
        constant: set[int] = set()
        for number, (op, values, makers) in enumerate(zip(self.ops, self.operands, self.makers, strict=True)):
            # A barrier of jax.checkpoint, through which the recomputation reads weights, costs nothing.
            if not is_cheap(op) and not boundary.is_barrier(op):
                continue
            is_inside = len(makers) == len(values)
            if is_inside and constant.issuperset(makers):
                constant.add(number)
            elif number in claimed:
                continue
            outside = () if is_inside else (value for value in values if value not in self.producers)
            if length.keys() >= {*makers} and not any(map(self._is_handed_on, outside)):
                total = 1 + sum([length[maker] for maker in makers])
                if total <= MOST_RECOMPUTED:
                    length[number] = total
        return set(length)

    def _is_handed_on(self, value: ir.Value) -> bool:
        """Whether the loop carries `value`, or a slice takes it from the slice before; also true of initial values."""
        op = defining_op(value)
        return value in self._carried or (op is not None and at.APART in op.attributes)

    def _handed_to_other_slices(self) -> set[int | None]:
        """Returns the operations of slices whose results another slice takes, or the loop carries."""
        uses = [(part, values) for part, values in zip(self._slices, self.operands, strict=True) if part is not None]
        taken = ((part, self.producers.get(value)) for part, values in [*uses, (-1, self._yielded)] for value in values)
        return {made for part, made in taken if made is not None and self._slices[made] not in (None, part)}

    def _check_graph(self) -> None:
        """Raises PassError where a forward reads a stage that the schedule's graph does not put before its own."""
        for number, task in enumerate(self.tasks):
            if not self._readers or task is None or task.is_backward:
                continue
            for each in self.makers[number]:
                source = None if each in self.of_batch else self.tasks[each]
                if source is not None and source != task and source.stage not in self.before.get(task.stage, ()):
                    reader, read = (each.stage % self._loop.stages_per_slice for each in (task, source))
                    raise PassError(
                        f"stage {reader} reads what stage {read} makes, but the schedule does not say so",
                        location=self.ops[number].location,
                        hint=f"say that stage {reader} comes after stage {read}, or compute it in a "
                        "stage that both come after",
                    )

    def _claim(self) -> None:
        """Assigns each operation to the mark of the earliest task among those that depend on it, if there is one."""
        marks = sorted(self._ends, key=self._ends.__getitem__)
        first = {mark: rank for rank, mark in enumerate(marks)}
        for number in reversed(range(len(self.ops))):
            if number in self._cheap or number in self._ends:
                continue
            users = [user for user in self.users[number] if user in first]
            if users:
                claims = [(first[user], self._claimed(number, user, marks[first[user]])) for user in users]
                first[number], self.tasks[number] = min(claims)

    def _claimed(self, number: int, user: int, mark: int) -> StageTask:
        """Returns the task of an operation that `mark` claims through `user`, which is the mark itself or claimed too.

        At a mark of `_joins`, an operation that combines gradients of several stages belongs to the task that ends
        there. An operation that depends on one backward mark only belongs to the backward of this mark's stage.
        """
        task = self._ends[mark] if user == mark else self.tasks[user]
        assert task is not None, "the users of an operation are claimed first"
        if mark in self._joins and (user == mark or len(self._from_stages[user]) > 1):
            stages = self._from_stages[number]
            if len(stages) > 1:
                return task
            # If the last stage has no mark, its backward depends on no backward mark.
            task = StageTask.backward(max(stages, default=max(self._readers[self._joins[mark]])))
        return self._in_its_slice(number, task)

    @cached_property
    def _from_stages(self) -> list[frozenset[int]]:
        """For each operation the stages of the nearest backward marks: itself, or those on which it depends."""
        found: list[frozenset[int]] = []
        for op, makers in zip(self.ops, self.makers, strict=True):
            mark = boundary.read(op) if boundary.is_mark(op) else None
            if mark is not None and mark.phase == "backward":
                found.append(frozenset([mark.stage]))
                continue
            found.append(frozenset[int]().union(*(found[each] for each in makers)))
        return found

    def _in_its_slice(self, number: int, task: StageTask) -> StageTask:
        """Returns the task of an operation on which `task` depends: the same stage's task in the operation's slice.

        If `task` is a backward and the operation depends on no backward mark, the backward recomputes it: it gets
        `task`, in whichever slice it is.
        """
        part = self._slices[number]
        if part is None or (task.is_backward and not self._from_stages[number]):
            return task
        return in_slice(task, part, self._loop.stages_per_slice)

    def _behind_the_slices(self, number: int, latest: StageTask | None) -> StageTask | None:
        """Returns the task of an operation whose operands are made by `latest` and earlier tasks.

        An operation of no slice that needs the last stage of the last slice follows the last loss: it gets the
        additional task `forward_{stages}`.
        """
        loop = self._loop
        if loop.slices == 1 or self._slices[number] is not None or latest is None or latest.is_backward:
            return latest
        return StageTask.forward(loop.stages) if latest.stage >= loop.stages - 1 else latest

    def _place_the_rest(self) -> None:
        """Assigns the operations on which no mark depends: to the latest of their operands' tasks, if there is one.

        Operations without such a task, and the recomputation of `jax.checkpoint`, get the earliest of their users'
        tasks; for recomputation that is a backward.
        """
        floating: list[int] = []
        again: set[int] = set()
        for number, task in enumerate(self.tasks):
            if number in self._cheap or number in self._ends:
                continue
            if task is not None:
                self._check_order(number, task)
                continue
            latest = self._behind_the_slices(number, self._joining(number) or self._latest(self.makers[number]))
            if latest is not None and latest.is_backward:
                latest = self._in_its_slice(number, latest)
            if self._is_again(number, latest, again):
                again.add(number)
            if latest is None or number in again:
                floating.append(number)
            self.tasks[number] = latest
        carried = self._where_carried(floating)
        for number in reversed(floating):
            users = (self.tasks[user] for user in self.users[number])
            default = self.tasks[number] if number in again else carried[number]
            self.tasks[number] = min((task for task in users if task is not None), default=default)

    def _is_again(self, number: int, latest: StageTask | None, again: set[int]) -> bool:
        """Whether an operation on forwards (`latest` is one) is a barrier, or depends on one (`again`)."""
        if latest is None or latest.is_backward:
            return False
        return boundary.is_barrier(self.ops[number]) or not again.isdisjoint(self.makers[number])

    def _where_carried(self, floating: Sequence[int]) -> dict[int, StageTask]:
        """Maps each operation to the latest task that makes a carried value on which it depends, or to `forward_0`."""
        where: dict[int, StageTask] = {}
        for number in floating:
            found = [StageTask.forward(0)]
            for value in self.operands[number]:
                producer = self.producers.get(value)
                if producer in where:
                    found.append(where[producer])
                elif value in self._carried:
                    made = self.producers.get(self._yielded[self._carried[value]])
                    task = None if made is None else self.tasks[made]
                    found += [] if task is None else [task]
            where[number] = max(found)
        return where

    def _latest(self, makers: Iterable[int]) -> StageTask | None:
        """Returns the latest task of these operations; None where none of them has a task."""
        return max([task for each in makers if (task := self.tasks[each]) is not None], default=None)

    def _joining(self, number: int) -> StageTask | None:
        """Returns the first task after all forwards that make the operands, if the stages are a graph.

        Returns None where the stages are a chain, a backward makes an operand, or one stage makes all of them.
        """
        if not self._readers:
            return None
        tasks = (self.tasks[each] for each in self.makers[number] if each not in self.of_batch)
        found = {task for task in tasks if task is not None}
        stages = {task.stage for task in found}
        if len(stages) < 2 or any(task.is_backward for task in found):
            return None
        first = next(
            each for each in range(max(stages), self._loop.stages + 1) if stages <= {each, *self.before.get(each, ())}
        )
        return StageTask.backward(first) if first == self._fused else StageTask.forward(first)

    def _check_order(self, number: int, task: StageTask) -> None:
        latest = self._latest(self.makers[number])
        if latest is not None and latest > task:
            raise PassError(
                f"a value flows backwards: from {self._words(latest)} to {self._words(task)}",
                location=self.ops[number].location,
                hint="mark the stages in the order in which the data passes through them",
            )

    def _words(self, task: StageTask) -> str:
        """Returns the words for a task in error messages."""
        part, stage = divmod(task.stage, self._loop.stages_per_slice)
        if self._loop.slices == 1:
            return f"the {task.kind} of stage {task.stage}"
        if part == self._loop.slices:
            return "what follows the last slice"
        return f"the {task.kind} of stage {stage} in slice {part}"


def _hand_on(loop: MicrobatchLoop, handed_on: Iterable[tuple[int, ir.Operation, StageTask]]) -> None:
    """Copies each of these cheap operations into its task, and lets the loop carry the copy's result."""
    end = terminator(loop.body)
    copies: dict[tuple[ir.Value, StageTask], ir.Value] = {}
    for position, op, task in handed_on:
        key = op.results[0], task
        if key not in copies:
            copies[key] = copy_into(task, op).results[0]
        end.operands[position] = copies[key]
