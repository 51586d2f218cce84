"""Splits tasks of the first and the last stage into the task of a middle stage, and the rest."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.program.inclusion import Body, find
from jaxpp.hlo_passes.program.split_calls import Split
from jaxpp.ir import attributes as at
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import bytecode_of, has_side_effect, kind_and_stage, name_of
from jaxpp.ir.kinds import BACKWARDS
from jaxpp.ir.outlining import Outlined, outline
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import Step

_KINDS = ("forward", *BACKWARDS)


def split_tasks(module: ir.Module, steps: Iterable[Step], least: float, shardings: Shardings) -> dict[str, Split]:
    """Splits tasks whose products take at least `least` FLOPs on each device; returns the splits by their names."""
    divisions = _divisions(_large_tasks(module, steps, least), shardings)
    return {name: division.make(module, shardings) for name, division in divisions.items()}


@dataclass(frozen=True)
class _Division:
    """The split of a task into two functions.

    Attributes:
        large: the task.
        small: the other task, whose operations `large` contains.
        inputs: the values of `large` that correspond to the arguments of `small`.
        outputs: the values of `large` that correspond to the results of `small`.
        rest: the other operations of `large`.
        results: the values that the rest makes for the shared operations or for the results of `large`.
        rest_is_first: whether the rest runs before the shared operations, which may use its results; otherwise it runs
            after them.
    """

    large: Body
    small: Body
    inputs: Sequence[ir.Value]
    outputs: Sequence[ir.Value]
    rest: Sequence[int]
    results: Sequence[ir.Value]
    rest_is_first: bool

    @staticmethod
    def of(large: Body, small: Body, shardings: Shardings) -> "_Division | None":
        """Splits `large` into the operations of `small` and the rest.

        Returns None if two calls can't do its work, or if its arguments for `small` have other shardings. Also returns
        None if `small` has less than half of its operations, or not fewer than it.
        """
        if not small.work < large.work <= 2 * small.work:
            return None
        values = find(small, large)
        if values is None or any(shardings.of(values[each]) != shardings.of(each) for each in small.arguments):
            return None
        shared = {values[result] for number in small.working for result in small.results[number]}
        inputs, outputs = ([values[value] for value in found] for found in (small.arguments, small.returned))
        for_shared = [value for value in inputs if value in large.producers]
        results = list(dict.fromkeys([*for_shared, *(value for value in large.returned if value not in outputs)]))
        _, rest = large.part(results, dict.fromkeys(shared, ()))
        used = {value for number in rest for value in large.operands[number] if value in shared}
        if not used.issubset(outputs):
            return None  # the rest uses a value that `small` does not return
        if not shared.isdisjoint(results):
            return None  # the task returns a value that `small` does not return
        if used and for_shared:
            return None  # the rest would run both before and after the shared operations
        return _Division(large, small, inputs, outputs, rest, results, not used)

    def make(self, module: ir.Module, shardings: Shardings) -> Split:
        """Makes the functions of the rest and of the shared operations."""
        name = name_of(self.large.function)
        attributes = {key: self.large.function.attributes[key] for key in (at.KIND, at.STAGE)}
        shared = self.small.function.clone(ir.InsertionPoint(module.body)).operation
        shared.attributes["sym_name"] = ir.StringAttr.get(f"{name}_shared")
        shared.attributes[at.STAGE] = attributes[at.STAGE]
        members = [self.large.member(op, moves=True) for op in self.rest]
        own = outline(module, f"{name}_own", members, self.results, attributes, shardings)
        parts = [own, Outlined(shared, list(self.inputs), list(self.outputs))]
        return Split(self.large.function, self.large.returned, parts if self.rest_is_first else parts[::-1])


def _large_tasks(module: ir.Module, steps: Iterable[Step], least: float) -> list[list[ir.Operation]]:
    """Groups equal functions of tasks whose products take at least `least` FLOPs on each device."""
    functions = {step.callee: step.function for step in steps if step.function is not None and _is_task(step)}
    equal: defaultdict[bytes, list[ir.Operation]] = defaultdict(list)
    for function in functions.values():
        equal[bytecode_of(function)].append(function)
    counter = FlopCounter(module, products_only=True, per_device=True)
    return [each for each in equal.values() if not least or counter.inside(each[0]) >= least]


def _divisions(tasks: Iterable[Sequence[ir.Operation]], shardings: Shardings) -> dict[str, _Division]:
    """Splits tasks; returns the divisions by the names of the tasks' functions.

    A task that is split serves as `small` for no other task. `tasks` holds functions, equal ones together.
    """
    by_kind: defaultdict[str, list[tuple[Body, Sequence[ir.Operation]]]] = defaultdict(list)
    for first, *others in tasks:
        kind, _ = kind_and_stage(first)
        gathers = any(at.PER_RUN in entry for entry in at.result_attributes(first))
        if kind in _KINDS and at.SUMS not in first.attributes and not gathers and not has_side_effect(first):
            by_kind[kind].append((Body(first), others))
    found: dict[str, _Division] = {}
    for bodies in by_kind.values():
        whole: list[Body] = []  # in ascending order of work
        for body, others in sorted(bodies, key=lambda each: each[0].work):
            division = _division(body, whole, shardings)
            if division is None:
                whole.append(body)
                continue
            found[name_of(body.function)] = division
            for other in others:
                again = _Division.of(Body(other), division.small, shardings)
                if again is not None:
                    found[name_of(other)] = again
    return found


def _division(body: Body, whole: Sequence[Body], shardings: Shardings) -> _Division | None:
    """Splits a task by the largest task of `whole` that works; returns None if no task does."""
    divisions = (_Division.of(body, each, shardings) for each in reversed(whole))
    return next((each for each in divisions if each is not None), None)


def _is_task(step: Step) -> bool:
    """Returns whether a call is a single task on one mesh."""
    if step.task is not None:
        return True
    return all(at.integer(step.op, name) is not None for name in (at.STAGE, at.MICROBATCH, at.MESH))
