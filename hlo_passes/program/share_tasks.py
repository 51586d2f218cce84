"""`share-tasks`: the first and the last stage call functions of a middle stage, so that XLA compiles fewer programs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.inclusion import Body, BodyOp, find
from jaxpp.ir import attributes as at
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import bytecode_of, has_side_effect, kind_and_stage, name_of
from jaxpp.ir.outlining import Outlined, outline_members
from jaxpp.ir.phases import main_line, main_of_phase
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import Step, leave

_LEAST_FLOPS = {"never": math.inf, "always": 0.0, "auto": 1e7}
_KINDS = ("forward", "backward", "input_grad", "weight_grad")


@dataclass(frozen=True)
class ShareTasks(Pass):
    """Splits a task that contains all operations of a task of another stage: into that task, and the rest.

    In a transformer the first stage also has the embedding, and the last stage the head and the loss; the layers are
    equal. XLA would compile these layers anew for each program. This pass splits the task of the first or last stage
    into two functions. One has the same text as the task of a middle stage, and the other one does the rest.
    `deduplicate-functions` then merges the equal functions, so that they are compiled once. Both calls belong to the
    task. The cost is one more call for each task of these stages, and XLA fuses nothing across the two.

    A task is split if at least half of its operations, counting those in loops, are also in the other task. The rest
    must come entirely before or entirely after them. Operations are matched by their kind, if both tasks have equally
    many of it, and by their operands. Fused tasks and tasks that gather weights stay whole. So do tasks whose layers
    read values with other shardings than in the other task.

    Options:
        when: `never`; `always`, for every task that can be split; or a number such as `1e11`. That is how many FLOPs
            both tasks must take on each device, in matrix products and convolutions. `auto` is `1e7`: from there on,
            one more call takes at most about a hundredth of a task's time on CPUs.

    Preconditions: `infer-placement` ran.

    ```mlir
    %y:2 = call @forward_0(%tokens, %table, %w0)   ==>   %e = call @forward_0_own(%tokens, %table)
                                                         %y:2 = call @forward_0_shared(%e, %w0)
    %z:2 = call @forward_1(%y#0, %w1)                    %z:2 = call @forward_1(%y#0, %w1)
    ```
    """

    when: str = "auto"

    def __post_init__(self) -> None:
        if not self._least_flops >= 0:
            raise ValueError(
                f"share_tasks is {self.when!r}, expected auto, never, always, or a number of FLOPs such as 1e7"
            )

    @property
    def _least_flops(self) -> float:
        """The least FLOPs on each device of tasks that are split; nan if `when` is invalid."""
        try:
            return _LEAST_FLOPS[self.when] if self.when in _LEAST_FLOPS else float(self.when)
        except (ValueError, TypeError):
            return math.nan

    def run(self, module: ir.Module) -> None:
        """Splits tasks of `module`. Raises PassError if an operation, argument or result is on no mesh."""
        line = main_of_phase(module, placed=True)
        shardings, least = Shardings(module), self._least_flops
        divisions = _divisions(_large_tasks(module, line.steps, least), shardings) if least < math.inf else {}
        if not divisions:
            leave(module, line)
            return
        steps = list[Step[ir.Value]]()
        functions = {each: division.make(module, shardings) for each, division in divisions.items()}
        instead: dict[ir.Value, ir.Value] = {}
        for step in line.steps:
            if not instead.keys().isdisjoint(step.operands):
                step.operands = [instead.get(value, value) for value in step.operands]
            if step.callee in functions:
                steps += map(Step.of, _calls(step, divisions[step.callee], functions[step.callee], instead))
                step.op.erase()
            else:
                steps.append(step)
        for division in divisions.values():
            division.large.function.erase()
        leave(module, main_line(module, steps, placed=True))


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
    rest: Sequence[BodyOp]
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
        shared = {
            result for each in small.ops if not each.is_constant for result in map(values.__getitem__, each.results)
        }
        inputs, outputs = ([values[value] for value in found] for found in (small.arguments, small.returned))
        for_shared = [value for value in inputs if value in large.makers]
        results = list(dict.fromkeys([*for_shared, *(value for value in large.returned if value not in outputs)]))
        rest = _making(large, results, shared)
        used = {value for each in rest for value in each.uses if value in shared}
        if not used.issubset(outputs):
            return None  # the rest uses a value that `small` does not return
        if not shared.isdisjoint(results):
            return None  # the task returns a value that `small` does not return
        if used and for_shared:
            return None  # the rest would run both before and after the shared operations
        return _Division(large, small, inputs, outputs, rest, results, not used)

    def make(self, module: ir.Module, shardings: Shardings) -> tuple[Outlined, Outlined]:
        """Makes the functions of the rest and of the shared operations; `large` has their inputs and outputs."""
        name = name_of(self.large.function)
        attributes = {key: self.large.function.attributes[key] for key in (at.KIND, at.STAGE)}
        shared = self.small.function.clone(ir.InsertionPoint(module.body)).operation
        shared.attributes["sym_name"] = ir.StringAttr.get(f"{name}_shared")
        shared.attributes[at.STAGE] = attributes[at.STAGE]
        members = [each.member(moves=True) for each in self.rest]
        own = outline_members(module, f"{name}_own", members, self.results, attributes, shardings)
        return own, Outlined(shared, list(self.inputs), list(self.outputs))


def _making(body: Body, results: Iterable[ir.Value], given: set[ir.Value]) -> list[BodyOp]:
    """Returns the operations, in order, that compute `results` from arguments and the `given` values."""
    needed = set(results)
    found: list[BodyOp] = []
    for each in reversed(body.ops):
        if not given.issuperset(each.results) and not needed.isdisjoint(each.results):
            found.append(each)
            needed.update(each.uses)
    return found[::-1]


def _large_tasks(module: ir.Module, steps: Iterable[Step[ir.Value]], least: float) -> list[list[ir.Operation]]:
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
        gathers = any(at.GATHER in entry for entry in at.result_attributes(first))
        if kind in _KINDS and at.SUMS not in first.attributes and not gathers and not has_side_effect(first):
            by_kind[kind].append((Body(first), others))
    found: dict[str, _Division] = {}
    for bodies in by_kind.values():
        whole: dict[object, Body] = {}  # one for each text, in ascending order of work
        for body, others in sorted(bodies, key=lambda each: each[0].work):
            if body.text in whole:
                continue
            division = _division(body, whole.values(), shardings)
            if division is None:
                whole[body.text] = body
                continue
            found[name_of(body.function)] = division
            for other in others:
                again = _Division.of(Body(other), division.small, shardings)
                if again is not None:
                    found[name_of(other)] = again
    return found


def _division(body: Body, whole: Iterable[Body], shardings: Shardings) -> _Division | None:
    """Splits a task by the largest task of `whole` that works; returns None if no task does."""
    divisions = (_Division.of(body, each, shardings) for each in reversed(list(whole)))
    return next((each for each in divisions if each is not None), None)


def _is_task(step: Step[ir.Value]) -> bool:
    """Returns whether a call is a single task on one mesh."""
    return all(name in step.attributes for name in (at.STAGE, at.MICROBATCH, at.MESH))


def _calls(
    step: Step[ir.Value],
    division: _Division,
    functions: tuple[Outlined, Outlined],
    instead: dict[ir.Value, ir.Value],
) -> list[ir.Operation]:
    """Replaces a call by two, and returns these. Adds to `instead` the new value of each result of the old call."""
    old = step.op
    attributes = {name: old.attributes[name] for name in old.attributes if name != "callee"}
    values: dict[ir.Value, ir.Value] = dict(zip(division.large.arguments, old.operands, strict=True))
    made: list[ir.Operation] = []
    for each in functions if division.rest_is_first else reversed(functions):
        new = each.call(values, attributes, old)
        values.update(zip(each.outputs, new.results, strict=True))
        made.append(new)
    for value, result in zip(division.large.returned, step.results, strict=True):
        instead[result] = values[value]
        result.replace_all_uses_with(values[value])
    return made
