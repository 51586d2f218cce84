"""Gathers sharded weights once per run of a stage's tasks."""

from collections.abc import Sequence
from itertools import chain

from jaxlib.mlir import ir

from jaxpp.hlo_passes.program.runs import find_runs, replace_values
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, create, functions, name_of, operations, set_results, terminator
from jaxpp.ir.kinds import FORMS
from jaxpp.ir.numbered import Member
from jaxpp.ir.outlining import Outlined, clone_body, outline
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import Step
from jaxpp.ir.values import defining_op


class Gathers:
    """The functions that gather, and their calls.

    Attributes:
        before: for the first task of a run the call that gathers its weights.
    """

    def __init__(self, module: ir.Module, gathers: Sequence[ir.Operation], ahead: bool) -> None:
        self._module, self._gathers, self._ahead = module, gathers, ahead
        self._number = {op.results[0]: number for number, op in enumerate(gathers)}
        self._shardings = Shardings(module)
        self._functions: dict[tuple[int, ...], Outlined] = {}
        self._hosts: dict[tuple[str, str], ir.Operation] = {}
        self._replaced: list[tuple[ir.Operation, ir.Operation]] = []
        self.before: dict[Step, Step] = {}

    def call(self, mesh: int, tasks: Sequence[Step]) -> None:
        """Gathers the weights of each run among `tasks`, all tasks of `mesh`."""
        users: dict[int, list[int]] = {}
        for position, task in enumerate(tasks):
            for number in {self._number[value] for value in task.operands if value in self._number}:
                users.setdefault(number, []).append(position)
        begun: dict[int, dict[int, list[int]]] = {}
        for number in sorted(users):
            for run in find_runs(tasks, users[number]):
                begun.setdefault(run[0], {})[number] = run
        # In ascending order: a task that gathers for the next run already uses its own gathered weights.
        for position, runs in sorted(begun.items()):
            gather = self._function(tuple(runs))
            is_beside = self._ahead and position and _may_gather(tasks[position - 1])
            made = (
                self._call_beside(tasks[position - 1], gather)
                if is_beside
                else self._call_before(tasks[position], gather, mesh)
            )
            for (number, run), result in zip(runs.items(), made, strict=True):
                for each in run:
                    for n, value in enumerate(tasks[each].operands):
                        if value == self._gathers[number].results[0]:
                            tasks[each].use(n, result)

    def rename(self, steps: Sequence[Step]) -> None:
        """Replaces, in all `steps`, the results of calls to which `call` added a gather by those of the new calls.

        Erases the replaced calls, and the functions that only they called.
        """
        both = [zip(old.results, new.results, strict=False) for old, new in self._replaced]
        replace_values(steps, dict(chain.from_iterable(both)))
        for before, _ in reversed(self._replaced):
            before.erase()
        by_name = functions(self._module) if self._hosts else {}
        for name in {name for name, _ in self._hosts} - {step.callee for step in steps}:
            by_name[name].erase()

    def _call_before(self, task: Step, gather: Outlined, mesh: int) -> Sequence[ir.Value]:
        made = gather.call({}, {at.MESH: at.i64(mesh)}, task.op)
        self.before[task] = Step.of(made)
        return list(made.results)

    def _call_beside(self, task: Step, gather: Outlined) -> Sequence[ir.Value]:
        """Makes a task also run `gather`; returns the gathered values."""
        assert task.function is not None
        key = task.callee, name_of(gather.function)
        if key not in self._hosts:
            self._hosts[key] = _both(self._module, task.function, gather.function)
        function, before, count = self._hosts[key], task.op, len(task.results)
        attributes = {name: before.attributes[name] for name in before.attributes if name != "callee"}
        operands = [*task.operands, *gather.inputs]
        made = call(function, operands, attributes, ir.InsertionPoint(before), before.location)
        self._replaced.append((before, made))
        task.op, task.operands, task.results = made, operands, list(made.results)
        task.callee, task.function = name_of(function), function
        return task.results[count:]

    def _function(self, numbers: tuple[int, ...]) -> Outlined:
        """Returns the function that runs the gathers with these indices."""
        if numbers not in self._functions:
            gathers = [self._gathers[number] for number in numbers]
            rows = [op for each in gathers if (op := defining_op(each.operands[0])) and at.PER_RUN in op.attributes]
            name = f"gather_{len(self._functions)}"
            kind = {at.KIND: ir.StringAttr.get("gather")}
            outputs = [each.results[0] for each in gathers]
            found = outline(self._module, name, map(Member.of, [*rows, *gathers]), outputs, kind, self._shardings)
            for op in operations(body_of(found.function))[:-1]:
                del op.attributes[at.PER_RUN]
            self._functions[numbers] = found
        return self._functions[numbers]


def _both(module: ir.Module, task: ir.Operation, gather: ir.Operation) -> ir.Operation:
    """Returns a function that runs a task and a gather.

    The results of the gather come last and carry `jaxpp.per_run`.
    """
    parts = [task, gather]
    inputs = [argument.type for part in parts for argument in body_of(part).arguments]
    results = [value.type for part in parts for value in terminator(body_of(part)).operands]
    kept = {name: task.attributes[name] for name in (at.KIND, at.STAGE) if name in task.attributes}
    both = create(module, f"{name_of(task)}_{name_of(gather)}", inputs, results, kept)
    own, other = ((at.argument_attributes(part), at.result_attributes(part)) for part in parts)
    of_task: dict[str, ir.Attribute] = {at.TASK: at.i64(0)} if at.STAGE not in kept else {}
    gathered: dict[str, ir.Attribute] = {at.PER_RUN: ir.UnitAttr.get()}
    at.set_tables(
        both,
        [*own[0], *(each | of_task for each in other[0])],
        [*own[1], *(each | of_task | gathered for each in other[1])],
    )
    block, count = body_of(both), len(own[0])
    made = clone_body(block, task, block.arguments[:count])
    set_results(both, made + clone_body(block, gather, block.arguments[count:]))
    return both


def _may_gather(task: Step) -> bool:
    """Returns whether a task is compiled, and always runs."""
    assert task.function is not None
    return at.SUMS not in task.function.attributes and all(kind in FORMS for kind in task.kind.split("+"))
