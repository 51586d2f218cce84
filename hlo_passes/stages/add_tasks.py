"""`add-tasks`: adds what a schedule has besides forwards and backwards, and merges the tasks of slices."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.merge_slices import merge_slices
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import call, create, operations, set_results, terminator
from jaxpp.ir.kinds import BACKWARDS, FORMS, operations_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.outlining import copy_function
from jaxpp.ir.phases import check_tasks, tasks_of
from jaxpp.ir.shardings import Shardings, boundary_attributes

HOST = "pinned_host"

_LEAVING = tuple(kind for kind, form in FORMS.items() if form.back)
"""The kinds of tasks that move residuals away."""

_READERS = ("recompute", *BACKWARDS)
"""The kinds of tasks that read the residuals of their stage."""


@dataclass(frozen=True)
class AddTasks(Pass):
    """Adds calls for tasks that the schedule has besides forwards, backwards and recomputes.

    The residuals of a stage are the results of its forward, and the forward's inputs from other tasks, that the stage's
    backward or recompute reads. Weights and the batch are no residuals: they stay where they are.

    - A kind may be bound to a user's function (`jaxpp.operations` of the module). The called function, `@checkpoint_0`
      for the kind `checkpoint` of stage 0, has an empty body and no results. The runtime calls the user's function
      instead. If that reads residuals, `@checkpoint_0` takes the residuals of its stage. They live until the last call
      that takes them.
    - `@offload_i` or `@evict_i` is called after the forward, and `@reload_i` or `@load_i` before the backward. All four
      functions return their arguments unchanged: the runtime copies, and compiles nothing. The results of `@offload_i`
      and the arguments of `@reload_i` have `mhlo.memory_kind = "pinned_host"`, XLA's name for host memory.
      `unroll-microbatches` will place `@evict_i` on the mesh of the schedule's `evict`, and `@load_i` on the stage's
      own mesh. The residuals are then sent between the meshes like any other values.

    `unroll-microbatches` leaves out the calls for microbatches for which the schedule has no such task.

    **Slices.** Before the pass, stage s of slice j, of n stages, has the number j * n + s. After it, the calls have
    stage s and `jaxpp.slice = j`. The slices of a stage call one function, where theirs are equal. The operations after
    the loss of the last slice, such as the mean over the slices, have their own function. Its call has the slice number
    after the last one. So the last slice does the same work as the others. A slice that does more or less than the
    others keeps a function of its own.

    Options:
        offload: the numbers of further stages to offload, separated by blanks. Their tasks are added to the schedule.

    Preconditions: `outline-stages` ran, and `split-backward` and `split-forward` for a schedule that needs them.

    ```mlir
    %y:2 = call @forward_0(%x, %w)     ==>   %y:2 = call @forward_0(%x, %w)
                                             call @checkpoint_0(%y#1)
                                             %h = call @offload_0(%y#1)
                                             %r = call @reload_0(%h)
    %d = call @backward_0(%y#1, %dy)         %d = call @backward_0(%r, %dy)

    // of two slices of one stage
    %a:2 = call @forward_0(%x, %z)     ==>   %a:2 = call @forward_0(%x, %z) {jaxpp.slice = 0}
    %b:2 = call @forward_1(%x, %a#1)         %b:2 = call @forward_0(%x, %a#1) {jaxpp.slice = 1}
    ```
    """

    offload: str = ""

    def __post_init__(self) -> None:
        if not all(word.isdecimal() for word in self.offload.split()):
            raise ValueError(f"offload is '{self.offload}', expected numbers of stages")

    def run(self, module: ir.Module) -> None:
        """Adds the calls to the microbatch loop of `module`, and merges slices.

        Raises PassError for a stage that can't be offloaded.
        """
        loop = self._added(module)
        merge_slices(module, loop)

    def _added(self, module: ir.Module) -> MicrobatchLoop:
        loop, operations_ = MicrobatchLoop.of(module), operations_of(module)
        if self.offload:
            loop = loop.rescheduled(lambda plan: schedules.offload(plan, *map(int, self.offload.split())))
        leaving = {kind: loop.stages_with(kind) for kind in _LEAVING}
        if not operations_ and not any(leaving.values()):
            return loop
        check_tasks(module, loop.body)
        stages = _Stages(module, loop)
        for kind, reads in operations_.items():
            for stage in sorted(loop.stages_with(kind)):
                stages.operate(kind, stage, reads=reads)
        for stage in sorted(set[int]().union(*leaving.values())):
            stages.move(stage, [kind for kind, moved in leaving.items() if stage in moved])
        return loop


class _Stages:
    """The tasks of each stage in the body of a loop."""

    def __init__(self, module: ir.Module, loop: MicrobatchLoop) -> None:
        self._module, self._loop, self._shardings = module, loop, Shardings(module)
        self._tasks = tasks_of(module, loop.body)

    def _readers(self, stage: int) -> list[ir.Operation]:
        """Returns the calls of the tasks that read the residuals of `stage`."""
        return [self._tasks[kind, stage] for kind in _READERS if (kind, stage) in self._tasks]

    def _residuals(self, stage: int) -> list[ir.Value]:
        """Returns the residuals of a stage.

        A stage may have no forward, such as the last one under `jax.grad` with a recompute. Its residuals are the
        results of other forwards that it reads.
        """
        readers = self._readers(stage)
        forward = self._tasks.get(("forward", stage))
        if forward is None:
            read = (value for reader in readers for value in reader.operands)
            made = {result for (kind, _), op in self._tasks.items() if kind == "forward" for result in op.results}
            return [value for value in dict.fromkeys(read) if value in made]
        taken = filter(self._loop.is_of_a_task, forward.operands)
        return [
            value
            for value in dict.fromkeys([*taken, *forward.results])
            if any(use.owner.operation in readers for use in value.uses)
        ]

    def _behind_residuals(self, stage: int) -> ir.InsertionPoint:
        """Returns the point after a stage's forward, or in front of the first reader of a stage without one."""
        forward = self._tasks.get(("forward", stage))
        if forward is not None:
            return ir.InsertionPoint.after(forward)
        readers, body = self._readers(stage), self._loop.body
        return ir.InsertionPoint(next((op for op in operations(body) if op in readers), terminator(body)))

    def operate(self, kind: str, stage: int, *, reads: bool) -> None:
        """Adds a call of a user's function, which may read the residuals of its stage."""
        operands = self._residuals(stage) if reads else []
        types, attributes = [value.type for value in operands], {at.STAGE: at.i64(stage)}
        function = create(self._module, f"{kind}_{stage}", types, [], {at.KIND: ir.StringAttr.get(kind), **attributes})
        at.set_tables(function, arguments=boundary_attributes(self._shardings, operands))
        set_results(function, [])
        call(function, operands, attributes, self._behind_residuals(stage), self._loop.op.location)

    def move(self, stage: int, kinds: Sequence[str]) -> None:
        """Adds, for each of `kinds`, a call that moves the residuals of a stage away and one that moves them back.

        `unroll-microbatches` leaves one of these pairs for a microbatch, or none.
        """
        residuals, readers = self._residuals(stage), self._readers(stage)
        if not residuals:
            return
        there, first = self._behind_residuals(stage), next(op for op in operations(self._loop.body) if op in readers)
        uses = [(op, n) for op in readers for n, value in enumerate(op.operands) if value in residuals]
        here = boundary_attributes(self._shardings, residuals)
        values = list(residuals)
        for kind in kinds:
            host = {at.MEMORY: ir.StringAttr.get(HOST)} if kind == "offload" else {}
            away = [entry | host for entry in here]
            values = self._copy(kind, stage, values, (here, away), there)
            there = ir.InsertionPoint(first)
            values = self._copy(FORMS[kind].back, stage, values, (away, here), there)
        new = dict(zip(residuals, values, strict=True))
        for op, number in uses:
            op.operands[number] = new[op.operands[number]]

    def _copy(
        self,
        kind: str,
        stage: int,
        values: Sequence[ir.Value],
        tables: tuple[list[dict[str, ir.Attribute]], list[dict[str, ir.Attribute]]],
        ip: ir.InsertionPoint,
    ) -> list[ir.Value]:
        """Calls a new function that returns its arguments, `values`. Returns the results of the call.

        `tables` holds the attributes of the function's arguments, and of its results.
        """
        name, types = f"{kind}_{stage}", [value.type for value in values]
        kept = {at.KIND: ir.StringAttr.get(kind), at.STAGE: at.i64(stage)}
        function = copy_function(self._module, name, types, kept, *tables)
        return list(call(function, values, {at.STAGE: at.i64(stage)}, ip, values[0].location).results)
