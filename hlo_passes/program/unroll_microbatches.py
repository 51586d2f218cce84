"""`unroll-microbatches`: replaces the microbatch loop by one call per task, in the order of the schedule."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.fused_tasks import fuse
from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import Accumulator, Part, find_accumulators
from jaxpp.ir.build import constant
from jaxpp.ir.counted import wrapped
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, callee, following, functions, kind_and_stage, main_of, operations, terminator
from jaxpp.ir.kinds import HALVES, form_of
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.phases import check_tasks, main_line
from jaxpp.ir.steps import Step, leave
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.values import block_of
from jaxpp.schedules.builders.steps import is_in_one_order
from jaxpp.schedules.engine.merged_order import merged_order

TemplateKey: TypeAlias = tuple[str, int, int]
"""The kind, the stage and the slice of a task."""


class UnrollMicrobatches(Pass):
    """Replaces the microbatch loop by one call per (kind, stage, microbatch), in an order that the schedule allows.

    The calls are cloned, never the bodies of the tasks. Each call carries `jaxpp.stage`, `jaxpp.microbatch` and
    `jaxpp.mesh`; the microbatch index is a constant. Carried values of the loop pass from call to call in the order of
    the microbatches. `@main` still runs under plain XLA.

    Sums, maxima and stacks over the microbatches (`Add`, `Max`, `Concat`) pass through the calls of each mesh
    separately, in the order of the schedule. They are combined after the last call. So a stage may be on several
    meshes, several stages may use one weight, and only one value per mesh is sent. If the steps of a `jaxpp.train_loop`
    run their tasks in different orders, each stage of a mesh has its own sum. All steps run the microbatches of one
    stage in the same order.

    Tasks that the schedule leaves out, such as weight gradients of frozen layers, add nothing to the sums.

    Calls that the schedule runs as one task become one call of one function. They are a forward and a backward that the
    schedule runs together (DualPipe), which XLA can then overlap. Or they are the two halves of a task that is whole
    for this microbatch: of a backward, or a forward and its recompute. XLA then computes common values once, and no
    residuals are kept between the halves. The function's kind joins the kinds of its tasks: `forward+backward`. A call
    of several tasks has a list of their stages as `jaxpp.stage`, and of their microbatches as `jaxpp.microbatch`.
    Functions that nothing calls any more are erased.

    Preconditions: `outline-stages` ran, and `split-backward` and `split-forward` for a schedule that needs them; the
    schedule has the tasks that the loop has.

    ```mlir
    %r = stablehlo.while(%i = %c0, %acc = %zero)   ==>   %a0 = call @forward_0(%w, %x, %c0) {jaxpp.microbatch = 0, ...}
      { %a = call @forward_0(%w, %x, %i)                 %a1 = call @forward_0(%w, %x, %c1) {jaxpp.microbatch = 1, ...}
        %s = call @backward_0(%w, %a, %acc) ... }        %s0 = call @backward_0(%w, %a0, %zero) ...
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Unrolls the loop of `module`. Raises PassError if the schedule doesn't fit its tasks or carried values."""
        loop = MicrobatchLoop.of(module)
        check_tasks(module, loop.body)
        schedule = loop.plan
        unrolled = _Unrolled(module, loop, schedule)
        unrolled.check(schedule)
        cells = {cell[0]: cell for cell in schedule.fused}
        followers = {task for cell in schedule.fused for task in cell[1:]}
        for mesh, task in merged_order(schedule):
            if not followers:
                unrolled.emit(mesh, (task,))
            elif task not in followers:
                unrolled.emit(mesh, cells.get(task, (task,)))
        unrolled.finish()
        module.operation.attributes[at.MESHES] = at.i64(schedule.meshes)
        if unrolled.groups:
            fuse(module, unrolled.groups)
        else:
            leave(module, main_line(module, unrolled.steps, placed=False))


@dataclass(eq=False)
class _Template:
    """A call of the loop body, which is cloned for each microbatch.

    Attributes:
        op: the call, which has the mesh of the last clone, and all other attributes but its microbatch.
        key: the kind, the stage and the slice.
        is_copy: whether it returns its operands.
        name: the name of the callee.
        function: the callee.
        operands: its operands in the loop body.
        varying: for each operand that differs between microbatches its index, its accumulator (or None), and the
            template and result index that make it for every microbatch (or None).
        results: the indices of its results.
        accumulators: the accumulators that the task updates, with the index of the result.
        mesh: the mesh of the last clone. Most stages have one mesh, so that the attribute is seldom rewritten.
        made: the results of the clones so far, by microbatch.
    """

    op: ir.Operation
    key: TemplateKey
    is_copy: bool
    name: str
    function: ir.Operation
    operands: Sequence[ir.Value]
    varying: "Sequence[tuple[int, Accumulator | None, tuple[_Template, int] | None]]"
    results: range
    accumulators: Sequence[tuple[Accumulator, int]]
    mesh: int = -1
    made: dict[int, Sequence[ir.Value]] = field(default_factory=dict[int, Any])


class _Unrolled:
    """The straight line that grows in front of the loop.

    Attributes:
        steps: the operations of `@main` so far; after `finish` all but the return.
        groups: the calls that run as one task.
    """

    def __init__(self, module: ir.Module, loop: MicrobatchLoop, schedule: schedules.Schedule) -> None:
        self._loop = loop
        self._placement = schedule.placement
        self._skipped = schedule.skipped
        self._planned = {(*_key(task), task.microbatch) for task in schedule if form_of(task.kind).optional}
        self._ip = ir.InsertionPoint(loop.op)
        self._meshes = [(at.i64(mesh), (mesh,)) for mesh in range(schedule.meshes)]
        self._numbers = [at.i64(number) for number in range(max(loop.length, loop.slices))]
        self._constants: dict[tuple[ir.Type, int], ir.Value] = {}
        self._position: dict[ir.Value, int] = {argument: number for number, argument in enumerate(loop.body.arguments)}
        self._yielded = list(terminator(loop.body).operands)
        self._initial = list(loop.op.operands)
        self._templates: dict[TemplateKey, _Template] = {}
        self._source: dict[ir.Value, tuple[_Template, int]] = {}
        self.groups: list[list[ir.Operation]] = []
        self._recomputes = False
        self._block = body_of(main_of(module))
        before = operations(self._block)
        self.steps = list(map(Step.of, before[: before.index(loop.op)]))
        by_name = functions(module)
        self._accumulators = find_accumulators(loop, by_name)
        steps = TrainLoopAttr.of(module)
        every = steps.plan if steps is not None else None
        self._has_orders = every is not None and not is_in_one_order(every)
        self._stands_for = {value: each for each in self._accumulators.values() for value in each.values}
        for op in operations(loop.body):
            if op.name == "func.call":
                name = callee(op)
                function = by_name[name]
                key = (*kind_and_stage(function), at.integer(op, at.SLICE) or 0)
                operands, results = list(op.operands), list(op.results)
                template = self._templates[key] = _Template(
                    op,
                    key,
                    form_of(key[0]).is_copy,
                    name,
                    function,
                    operands,
                    [self._varying(n, value) for n, value in enumerate(operands) if self._varies(value)],
                    range(len(results)),
                    [(self._stands_for[r], n) for n, r in enumerate(results) if r in self._stands_for],
                )
                self._recomputes |= key[0] == "recompute"
                self._note_accumulators(function, template)
                self._source.update((result, (template, number)) for number, result in enumerate(results))

    def _note_accumulators(self, function: ir.Operation, template: _Template) -> None:
        """Writes, on a weight gradient that only adds to sums, the index of each sum among its arguments."""
        adds = {number: accumulator for accumulator, number in template.accumulators}
        if kind_and_stage(function)[0] != "weight_grad" or len(adds) < len(template.results):
            return
        numbers = {self._stands_for[value]: n for n, value in enumerate(template.operands) if value in self._stands_for}
        function.attributes[at.SUMS] = at.i64s(numbers[adds[n]] for n in template.results)

    def _varying(self, number: int, value: ir.Value) -> "tuple[int, Accumulator | None, tuple[_Template, int] | None]":
        source = self._source.get(value)
        return number, self._stands_for.get(value), None if source is None or source[0].is_copy else source

    def _varies(self, value: ir.Value) -> bool:
        """Returns whether `value` is defined in the loop body, so that it differs between microbatches."""
        return block_of(value) == self._loop.body

    def check(self, schedule: schedules.Schedule) -> None:
        """Raises PassError unless `schedule` runs each task of the loop once per microbatch, or leaves it out."""
        planned = Counter(map(_key, chain(schedule, schedule.skipped)))
        for kind, stage, part in self._templates:
            if form_of(kind).optional or part == self._loop.slices:
                continue
            times = planned[kind, stage, part] + (planned["backward", stage, part] if kind in HALVES else 0)
            if times != self._loop.length:
                raise PassError(
                    f"the loop has a {kind} of stage {stage}, the schedule runs it {times} times for "
                    f"{self._loop.length} microbatches",
                    location=self._loop.op.location,
                    hint=f"the schedule has: {', '.join(sorted({kind for kind, *_ in planned}))}",
                )

    def emit(self, mesh: int, tasks: Sequence[schedules.Task]) -> None:
        """Appends the calls of tasks that run as one. A task for which the loop has no function is skipped."""
        made = [self._emit(mesh, task, key) for task in tasks for key in self._keys(task)]
        if len(made) > 1:
            self.groups.append([each.op for each in made])
        for task in tasks if self._loop.slices > 1 else ():
            if (key := (task.kind, task.stage, task.slice + 1)) in self._templates and key[2] == self._loop.slices:
                self._emit(mesh, task, key)

    def _keys(self, task: schedules.Task) -> list[TemplateKey]:
        """Returns the templates of a task: usually one, none without a function, or the two halves of a backward.

        A forward comes with its recompute if the schedule runs no recompute for that microbatch.
        """
        key = _key(task)
        if task.kind == "forward" and self._recomputes:
            again = ("recompute", task.stage, task.slice)
            unplanned = again in self._templates and (*again, task.microbatch) not in self._planned
            return [each for each in (key, again) if each in self._templates and (each is key or unplanned)]
        if key in self._templates:
            return [key]
        halves = [(kind, task.stage, task.slice) for kind in HALVES] if task.kind == "backward" else []
        return [half for half in halves if half in self._templates]

    def _emit(self, mesh: int, task: schedules.Task, key: TemplateKey) -> Step:
        template = self._templates[key]
        attribute, meshes = self._meshes[mesh]
        operands = list(template.operands)
        for n, accumulator, source in template.varying:
            if accumulator is not None:
                operands[n] = self._value_so_far(accumulator, self._part(accumulator, mesh, task))
            elif source is not None and task.microbatch in source[0].made:
                operands[n] = source[0].made[task.microbatch][source[1]]
            else:
                operands[n] = self._value(operands[n], task.microbatch, task)
        if template.mesh != mesh:
            template.mesh, template.op.attributes[at.MESH] = mesh, attribute
        op = template.op.clone(self._ip).operation  # takes half as long as creating a call
        attributes, places, found = op.attributes, op.operands, op.results
        attributes[at.MICROBATCH] = self._numbers[task.microbatch]
        if self._loop.slices > 1:
            attributes[at.SLICE] = self._numbers[task.slice]
        for n, _, _ in template.varying:
            places[n] = operands[n]
        # indexing is faster: jaxlib's iterator over results ends with a C++ exception
        results = template.made[task.microbatch] = [found[n] for n in template.results]
        for accumulator, n in template.accumulators:
            accumulator.update(self._part(accumulator, mesh, task), task.microbatch, results[n])
        one = (task.stage, task.microbatch, task.slice, mesh)
        made = Step(op, "func.call", operands, results, template.name, template.function, key[0], meshes, one)
        self.steps.append(made)
        return made

    def _part(self, accumulator: Accumulator, mesh: int, task: schedules.Task) -> Part:
        """Returns the key of the accumulator's part that a task updates."""
        return mesh, task.stage if self._has_orders and accumulator.rows is None else None

    def _value_so_far(self, accumulator: Accumulator, part: Part) -> ir.Value:
        if part not in accumulator.parts:
            zeros = accumulator.start(part, self._ip)
            self.steps += [] if zeros is None else [Step.of(zeros)]
        return accumulator.parts[part]

    def _value(self, value: ir.Value, microbatch: int, task: schedules.Task | None) -> ir.Value:
        """Returns `value` of the loop body in iteration `microbatch`, for `task`; None stands for the loop's result."""
        while (source := self._source.get(value)) is None and (position := self._position.get(value)) is not None:
            if position in self._loop.indices:
                return self._index(position, microbatch)
            if microbatch == 0:
                return self._initial[position]
            value, microbatch = self._yielded[position], microbatch - 1
        if source is None:
            if self._varies(value):
                raise PassError("a value of the loop body that no task hands on", location=self._loop.op.location)
            return value
        template, number = source
        # Residuals that the schedule does not copy for this microbatch stay where they are.
        while template.is_copy and (*template.key, microbatch) not in self._planned:
            template, number = self._source[template.operands[number]]
        made = template.made.get(microbatch)
        if made is None:
            key = template.key
            maker = schedules.Task(key[0], key[1], microbatch, key[2])
            user = _called(task) if task else "the result of the loop"
            if maker in self._skipped:
                raise PassError(
                    f"{user} needs a value of {_called(maker)}, which the schedule leaves out",
                    location=self._loop.op.location,
                    hint="only sums (Add), maxima (Max) and stacks (Concat) may lack what a microbatch adds",
                )
            raise PassError(
                f"{user} needs a value of {_called(maker)}, which the schedule runs later",
                location=self._loop.op.location,
                hint=_hint(maker, task),
            )
        return made[number]

    def _index(self, position: int, microbatch: int) -> ir.Value:
        which = self._loop.indices.index(position)
        number = wrapped(self._loop.starts[which] + self._loop.steps[which] * microbatch)
        type_ = self._initial[position].type
        if (type_, number) not in self._constants:
            made = constant(type_, number, ip=self._ip, loc=self._loop.op.location)
            self._constants[type_, number] = made
            self.steps.append(Step.of(ir.OpResult(made).owner.operation))
        return self._constants[type_, number]

    def finish(self) -> None:
        """Replaces the results of the loop and erases it."""
        count = len(self.steps)
        for position, result in enumerate(self._loop.op.results):
            if position in self._loop.indices:
                result.replace_all_uses_with(self._index(position, self._loop.length))
            elif position in self._accumulators:
                total = self._accumulators[position].total(self._placement.homes, self._ip)
                result.replace_all_uses_with(total)
            else:
                final = self._value(self._yielded[position], self._loop.length - 1, None)
                result.replace_all_uses_with(final)
        self._loop.op.erase()
        del self.steps[count:]  # read again below, with all other operations after the last call
        behind = following(self.steps[-1].op) if self.steps else operations(self._block)
        self.steps += map(Step.of, list(behind)[:-1])


def _hint(maker: schedules.Task, task: schedules.Task | None) -> str:
    """Returns a hint for a `task` that needs a value of `maker`, which the schedule runs later."""
    if task is not None and task.microbatch == maker.microbatch and task.slice > maker.slice:
        return (
            "what one slice hands on to the next must be made and used by one stage; a jax.checkpoint around the "
            "function of a slice may not stand inside of another"
        )
    if task is not None and task.microbatch == maker.microbatch:
        return f"put the {task.kind} behind it"
    kinds = {"backward" if each.kind in HALVES else each.kind for each in (maker, task) if each is not None}
    if task is not None and maker.stage == task.stage and len(kinds) == 1:
        return (
            "a stage must run the microbatches in ascending order, since one hands a value on to the next; "
            "only sums (Add), maxima (Max) and stacks (Concat) may be taken in any order"
        )
    return "what one microbatch hands on to the next must be made and used by one stage"


def _key(task: schedules.Task) -> TemplateKey:
    return task.kind, task.stage, task.slice


def _called(task: schedules.Task) -> str:
    part = f", slice {task.slice}" if task.slice else ""
    return f"the {task.kind} of stage {task.stage} for microbatch {task.microbatch}{part}"
