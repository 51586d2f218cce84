"""`unroll-steps`: writes all steps of a loop over optimizer steps, in the order of their schedule."""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.step_copies import CallOfStep, StepCopies
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.kinds import AROUND, HALVES
from jaxpp.ir.mesh_functions import tasks_of_call
from jaxpp.ir.phases import main_of_phase
from jaxpp.ir.program import TaskName
from jaxpp.ir.steps import MainLine, handed, leave
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.schedules.builders.steps import UPDATE, steps_of
from jaxpp.schedules.engine.merged_order import start_times, unit_cost


class UnrollSteps(Pass):
    """Repeats `@main` for each step of a `jaxpp.train_loop`: in a straight line where no mesh waits for a step's end.

    The calls are cloned, never their functions. The results that are the state go into the next step unchanged.
    Additional calls slice the batches and stack the metrics. Microbatches are numbered across all steps.

    A schedule that overlaps steps (with a delay) covers all steps. Their tasks then follow its order, and each mesh's
    update stands where its gradients are ready, by the times of the schedule. Otherwise each mesh runs one step after
    the other. Calls after the tasks that read values of other meshes, and that no task waits for, move after the tasks
    of the next step. In both cases a task waits only for the values that it reads.

    Preconditions: `infer-placement` ran. A module without `jaxpp.train_loop` stays as it is.

    ```mlir
    module {jaxpp.train_loop = {steps = 2, state = 1}}   ==>   func.func @main(%w0, %xs) {
    func.func @main(%w, %x) {                                    %x0 = call @batch_0(%xs, %c0)
      %g = call @backward_0(%w, %x) ...                          %g0 = call @backward_0(%w0, %x0) ...
      %v = call @after_0(%w, %g) ... }                           %w1 = call @after_0(%w0, %g0) ...
                                                                 %x1 = call @batch_0(%xs, %c1)
                                                                 %g1 = call @backward_0(%w1, %x1) ...
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Repeats the step.

        Raises PassError if the schedule runs a task before an update that the task needs, or is not one of all steps.
        """
        loop = TrainLoopAttr.of(module)
        if loop is None:
            line = handed(module, MainLine)
            if line is not None:
                leave(module, line)
            return
        copies = StepCopies(module, loop, main_of_phase(module, placed=True).steps)
        plan = loop.plan
        if plan is not None and copies.microbatches:  # otherwise there is no task to order
            _check_microbatches(plan, loop, copies.microbatches)
            for call in _ScheduledCalls(copies, plan).run():
                copies.emit(call)
        else:
            _one_after_the_other(copies, loop.steps)
        line = copies.finish()
        del module.operation.attributes[at.TRAIN_LOOP]
        leave(module, line)


def _check_microbatches(plan: schedules.Schedule, loop: TrainLoopAttr, microbatches: int) -> None:
    """Raises PassError unless a schedule of all steps has as many microbatches as they have."""
    if plan.microbatches != loop.steps * microbatches:
        raise PassError(
            f"the schedule of {at.TRAIN_LOOP} has {plan.microbatches} microbatches, "
            f"expected {loop.steps * microbatches}: {microbatches} in each of {loop.steps} steps",
            hint="give a schedule of all steps, or none",
        )


def _one_after_the_other(copies: StepCopies, steps: int) -> None:
    """Copies step after step, and delays updates that wait for other meshes until after the tasks of the next step.

    For example the norm of all gradients is delayed if it is only a metric. `StepCopies.emit` copies an update that
    needs such a call before the first task that needs the update.
    """
    waiting: list[CallOfStep] = []
    for step in range(steps):
        behind, waiting = waiting, []
        for number, one in enumerate(copies.calls):
            call = CallOfStep(step, number)
            needs = copies.needs(call) if one.kind == "after" else set[CallOfStep]()
            crosses = any(set(one.meshes).difference(copies.calls[need.number].meshes) for need in needs)
            if crosses or not needs.isdisjoint(waiting):
                waiting.append(call)
            else:
                copies.emit(call)
        for each in behind:
            copies.emit(each)
    for each in waiting:
        copies.emit(each)


class _ScheduledCalls:
    """The calls of all steps in the order of a schedule that covers them.

    A task stands where the schedule has it, and an update where its operands are ready.
    """

    def __init__(self, copies: StepCopies, schedule: schedules.Schedule) -> None:
        self._copies, self._schedule = copies, schedule
        self._tasks = defaultdict[TaskName, list[int]](list)
        """The indices of each task's calls. The forward of the last slice has two: its own, and the one after it."""
        updates: list[int] = []
        for number, one in enumerate(copies.calls):
            if one.kind == "after":
                updates.append(number)
            elif one.kind not in AROUND:
                for name in tasks_of_call(one.op, one.kind):
                    self._tasks[name].append(number)
        self._waiting: dict[CallOfStep, int] = {}
        self._users = defaultdict[CallOfStep, list[CallOfStep]](list)
        self._ready: list[tuple[float, CallOfStep]] = []
        self._ends: dict[CallOfStep, float] = {}
        for step in range(steps_of(schedule)):
            for update in (CallOfStep(step, number) for number in updates):
                needs = copies.needs(update)
                self._waiting[update] = len(needs)
                for need in needs:
                    self._users[need].append(update)
                if not needs:
                    heapq.heappush(self._ready, (0.0, update))

    def run(self) -> Iterator[CallOfStep]:
        """Yields the calls of tasks and of updates. `StepCopies.emit` copies other calls when a task reads them."""
        times = start_times(self._schedule, _cost)
        rows = zip(times, self._schedule.orders, strict=True)
        for start, task in sorted(
            ((s, t) for row in rows for s, t in zip(*row, strict=True)), key=lambda each: each[0]
        ):
            yield from self._updates_until(start)
            for call in self._calls_of(task):
                if call not in self._ends:  # a fused call is yielded at the first of its tasks
                    yield call
                    one = self._copies.calls[call.number]
                    cell = tasks_of_call(one.op, one.kind)
                    self._note(call, start + sum(_cost(schedules.Task(*each)) for each in cell))
        yield from self._updates_until(math.inf)

    def _calls_of(self, task: schedules.Task) -> list[CallOfStep]:
        """Returns the calls of a task: usually one, none, or two for the halves of a backward."""
        step, microbatch = divmod(task.microbatch, self._copies.microbatches)
        for kinds in ((task.kind,), HALVES if task.kind == "backward" else ()):
            names = [TaskName(kind, task.stage, microbatch, task.slice) for kind in kinds]
            if found := [number for name in names for number in self._tasks.get(name, ())]:
                return [CallOfStep(step, number) for number in found]
        return []

    def _updates_until(self, time: float) -> Iterator[CallOfStep]:
        """Yields the updates whose operands are ready at `time`."""
        while self._ready and self._ready[0][0] <= time:
            end, update = heapq.heappop(self._ready)
            yield update
            self._note(update, end)

    def _note(self, made: CallOfStep, end: float) -> None:
        self._ends[made] = end
        for user in self._users[made]:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                ready = max(self._ends[need] for need in self._copies.needs(user))
                heapq.heappush(self._ready, (ready, user))


def _cost(task: schedules.Task) -> float:
    return 0.001 if task.kind == UPDATE else unit_cost(task)
