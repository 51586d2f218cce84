"""Makes one call, and one compiled program, of the calls that the schedule runs as one task."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import (
    body_of,
    call,
    callee,
    create,
    functions,
    kind_and_stage,
    main_of,
    operations,
    set_results,
    terminator,
)
from jaxpp.ir.mesh_functions import TASK, tasks_of_call
from jaxpp.ir.outlining import clone_body
from jaxpp.ir.program import TaskName
from jaxpp.ir.values import defining_op

_WHOLE = {"weight_grad": ("input_grad", "backward"), "recompute": ("forward", "forward")}
"""For the kind of a task's second half: the kind of the first half, and the kind of both together."""

Operand: TypeAlias = int | tuple[int, int]
"""The source of an operand in a fused function: the index of an argument, or (call, result) for an inner value."""
Signature: TypeAlias = tuple[tuple[str, tuple[Operand, ...]], ...]


def fuse(module: ir.Module, groups: Iterable[list[ir.Operation]]) -> None:
    """Makes one call of each group of calls in `@main`, between which nothing reads their results.

    Erases the functions that nothing calls any more.
    """
    by_name = functions(module)
    fused: dict[Signature, _Fused] = {}
    for calls in groups:
        group = _read(calls)
        fused.setdefault(group.signature, _Fused(group.signature)).add(group)
    for each in fused.values():
        each.make(module, by_name)
    _drop_uncalled(main_of(module), by_name)


@dataclass(frozen=True, eq=False)
class _FusedCalls:
    """A group of calls that become one.

    Attributes:
        calls: the calls, in order.
        signature: the callee of each call, and the source of each operand.
        arguments: for each argument of the new function the index of a call and of its operand. The value itself is not
            kept: another fused call may replace it before this group's turn.
        used: the results that are used outside of the group, as (index of the call, index of its result).
    """

    calls: list[ir.Operation]
    signature: Signature
    arguments: list[tuple[int, int]]
    used: set[tuple[int, int]]


def _read(calls: list[ir.Operation]) -> _FusedCalls:
    inside: dict[ir.Value, tuple[int, int]] = {}
    shared: dict[ir.Value, int] = {}
    arguments: list[tuple[int, int]] = []
    signature: list[tuple[str, tuple[Operand, ...]]] = []
    for number, op in enumerate(calls):
        sources: list[Operand] = []
        for position, value in enumerate(op.operands):
            source: Operand | None = inside.get(value)
            if source is None:
                source = shared.get(value)
            if source is None:
                source = len(arguments)
                arguments.append((number, position))
                if _is_shared(value):
                    shared[value] = source
            sources.append(source)
        signature.append((callee(op), tuple(sources)))
        inside.update((result, (number, n)) for n, result in enumerate(op.results))
    used = {place for value, place in inside.items() if any(use.owner.operation not in calls for use in value.uses)}
    return _FusedCalls(calls, tuple(signature), arguments, used)


def _is_shared(value: ir.Value) -> bool:
    """Returns whether two operands that are both `value` are equal for every microbatch.

    Two sums may start from the same zeros: their operands are equal in the first microbatch only.
    """
    op = defining_op(value)
    return op is None or op.name == "func.call"


@dataclass(eq=False)
class _Fused:
    """A new function, for all groups of one signature."""

    signature: Signature
    groups: list[_FusedCalls] = field(default_factory=list[_FusedCalls])
    used: dict[tuple[int, int], None] = field(default_factory=dict[tuple[int, int], None])

    def add(self, group: _FusedCalls) -> None:
        """Adds a group that will call the function."""
        self.groups.append(group)
        self.used.update(dict.fromkeys(sorted(group.used)))

    def make(self, module: ir.Module, by_name: dict[str, ir.Operation]) -> None:
        """Makes the function, and replaces each group by a call of it."""
        parts = [by_name[name] for name, _ in self.signature]
        results = sorted(self.used)
        tasks, task_of_call = _tasks(self.groups[0].calls, by_name)
        base = "_".join(f"{task.kind}_{task.stage}" for task in tasks)
        name = next(n for number in count() if (n := f"{base}_{number}" if number else base) not in by_name)
        attributes: dict[str, ir.Attribute] = {at.KIND: ir.StringAttr.get("+".join(task.kind for task in tasks))}
        if len(tasks) == 1:
            attributes[at.STAGE] = at.i64(tasks[0].stage)
        arguments = [body_of(parts[i]).arguments[n].type for i, n in self.groups[0].arguments]
        types = [terminator(body_of(parts[i])).operands[n].type for i, n in results]
        function = by_name[name] = create(module, name, arguments, types, attributes)
        tables = [(at.argument_attributes(part), at.result_attributes(part)) for part in parts]
        marks: list[dict[str, ir.Attribute]] = [{at.TASK: at.i64(n)} if len(tasks) > 1 else {} for n in task_of_call]
        at.set_tables(
            function,
            [tables[i][0][n] | marks[i] for i, n in self.groups[0].arguments],
            [tables[i][1][n] | marks[i] for i, n in results],
        )
        self._fill(function, parts, results)
        for group in self.groups:
            _replace(group, function, results, _tasks(group.calls, by_name)[0])

    def _fill(self, function: ir.Operation, parts: Sequence[ir.Operation], results: Sequence[tuple[int, int]]) -> None:
        block, made = body_of(function), dict[tuple[int, int], ir.Value]()
        for number, (part, (_, sources)) in enumerate(zip(parts, self.signature, strict=True)):
            given = [block.arguments[source] if isinstance(source, int) else made[source] for source in sources]
            made.update(((number, n), value) for n, value in enumerate(clone_body(block, part, given)))
        set_results(function, [made[place] for place in results])


def _tasks(calls: Sequence[ir.Operation], by_name: dict[str, ir.Operation]) -> tuple[list[TaskName], list[int]]:
    """Returns the tasks of `calls`, and for each call the index of its task.

    The halves of a backward are one task; so are a recompute and the forward before it.
    """
    tasks: list[TaskName] = []
    numbers: list[int] = []
    for op in calls:
        (task,) = tasks_of_call(op, kind_and_stage(by_name[callee(op)])[0])
        first, whole = _WHOLE.get(task.kind, ("", ""))
        if tasks and tasks[-1] == task._replace(kind=first):
            task = tasks.pop()._replace(kind=whole)
        tasks.append(task)
        numbers.append(len(tasks) - 1)
    return tasks, numbers


def _replace(
    group: _FusedCalls, function: ir.Operation, results: Sequence[tuple[int, int]], tasks: Sequence[TaskName]
) -> None:
    last = group.calls[-1]
    attributes: dict[str, ir.Attribute] = {at.MESH: last.attributes[at.MESH]}
    numbers = zip(*(task[1:] for task in tasks), strict=True)
    named = [(name, at.one_or_several(each)) for name, each in zip(TASK, numbers, strict=True)]
    attributes |= {name: attribute for name, attribute in named if name in last.attributes}
    operands = [group.calls[number].operands[position] for number, position in group.arguments]
    made = call(function, operands, attributes, ir.InsertionPoint(last), last.location)
    for (number, n), result in zip(results, made.results, strict=True):
        group.calls[number].results[n].replace_all_uses_with(result)
    for op in reversed(group.calls):
        op.erase()


def _drop_uncalled(main: ir.Operation, by_name: dict[str, ir.Operation]) -> None:
    called = {callee(op) for op in operations(body_of(main)) if op.name == "func.call"}
    for name, function in by_name.items():
        if at.KIND in function.attributes and name not in called:
            function.erase()
