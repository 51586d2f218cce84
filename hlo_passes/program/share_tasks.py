"""`share-tasks`: the first and the last stage call the programs of a middle one, so that fewer are compiled."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.inclusion import Body, BodyOp, find
from jaxpp.ir import attributes as at
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import bytecode_of, has_side_effect, kind_and_stage, name_of
from jaxpp.ir.outlining import Outlined, outline_members
from jaxpp.ir.phases import check_placed, main_line
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import Step, leave

_LEAST_FLOPS = {"never": math.inf, "always": 0.0, "auto": 1e7}
_KINDS = ("forward", "backward", "input_grad", "weight_grad")


@dataclass(frozen=True)
class ShareTasks(Pass):
    """Makes two calls of a task that does all that a task of another stage does, and more: that task, and the rest.

    The first stage of a transformer has the embedding, the last one the head and the loss; the layers are equal. XLA
    compiles them for each program anew. Here the task of the first stage becomes a function of the same text as that
    of a middle stage, which `deduplicate-functions` makes one, compiled once, and a function of the rest. Both calls
    are the task. The price is one more call for each task of these stages, and that XLA fuses nothing across.

    A task is divided where at least half of its operations, with those in loops, are those of the other task, and
    where the rest comes before or behind them as a whole. Which of its operations these are is found from the kinds of
    operations that are as frequent in both, and from what they use. Tasks that are one call with others stay whole, as
    do those that gather weights, and those whose layers read values that are sharded otherwise than in the other task.

    Options:
        when: `never`, `always` where it can be done, or where both tasks take at least so many FLOPs on each device,
            such as `1e11`, in matrix products and convolutions; `auto` is `1e7`, from which on a call more takes about
            a hundredth of a task on CPUs, or less.

    Preconditions: `infer-placement` ran.

    ```mlir
    %y:2 = call @forward_0(%tokens, %table, %w0)   ==>   %e = call @forward_0_own(%tokens, %table)
                                                         %y:2 = call @forward_0_shared(%e, %w0)
    %z:2 = call @forward_1(%y#0, %w1)                    %z:2 = call @forward_1(%y#0, %w1)
    ```
    """

    name: ClassVar[str] = "share-tasks"
    when: str = "auto"

    def __post_init__(self) -> None:
        if not self._least_flops >= 0:
            raise ValueError(
                f"share_tasks is {self.when!r}, expected auto, never, always, or a number of FLOPs such as 1e7"
            )

    @property
    def _least_flops(self) -> float:
        """The FLOPs on each device from which on tasks are divided; nan if `when` does not say it."""
        try:
            return _LEAST_FLOPS[self.when] if self.when in _LEAST_FLOPS else float(self.when)
        except (ValueError, TypeError):
            return math.nan

    def run(self, module: ir.Module) -> None:
        """Divide tasks of `module`. Raises PassError where something is on no mesh."""
        line = check_placed(module)
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
    """How a task is divided.

    Attributes:
        large: the task.
        small: the other task, whose operations are among its own.
        inputs: the values of `large` that are the arguments of `small`.
        outputs: those that are what `small` returns.
        rest: the other operations.
        results: what these make for the shared ones, and of what the task returns.
        rest_is_first: whether the rest runs before the shared operations, which may use what it makes; else it runs
            behind them.
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
        """Divide a task; None where that can't be done in two calls, or is not worth while."""
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
            return None  # the rest uses what the shared operations keep for themselves
        if not shared.isdisjoint(results):
            return None  # the task returns what they keep for themselves
        if used and for_shared:
            return None  # the rest would be before and behind them
        return _Division(large, small, inputs, outputs, rest, results, not used)

    def make(self, module: ir.Module, shardings: Shardings) -> tuple[Outlined, Outlined]:
        """Make the functions of the rest and of the shared operations; the values are those of `large`."""
        name = name_of(self.large.function)
        attributes = {key: self.large.function.attributes[key] for key in (at.KIND, at.STAGE)}
        shared = self.small.function.clone(ir.InsertionPoint(module.body)).operation
        shared.attributes["sym_name"] = ir.StringAttr.get(f"{name}_shared")
        shared.attributes[at.STAGE] = attributes[at.STAGE]
        members = [each.member(moves=True) for each in self.rest]
        own = outline_members(module, f"{name}_own", members, self.results, attributes, shardings)
        return own, Outlined(shared, list(self.inputs), list(self.outputs))


def _making(body: Body, results: Iterable[ir.Value], given: set[ir.Value]) -> list[BodyOp]:
    """The operations that make `results` of arguments and of what is `given`."""
    needed = set(results)
    found: list[BodyOp] = []
    for each in reversed(body.ops):
        if not given.issuperset(each.results) and not needed.isdisjoint(each.results):
            found.append(each)
            needed.update(each.uses)
    return found[::-1]


def _large_tasks(module: ir.Module, steps: Iterable[Step[ir.Value]], least: float) -> list[list[ir.Operation]]:
    """The functions of tasks whose products take at least so many FLOPs on each device; equal ones together."""
    functions = {step.callee: step.function for step in steps if step.function is not None and _is_task(step)}
    equal: defaultdict[bytes, list[ir.Operation]] = defaultdict(list)
    for function in functions.values():
        equal[bytecode_of(function)].append(function)
    counter = FlopCounter(module, products_only=True, per_device=True)
    return [each for each in equal.values() if not least or counter.inside(each[0]) >= least]


def _divisions(tasks: Iterable[Sequence[ir.Operation]], shardings: Shardings) -> dict[str, _Division]:
    """How tasks are divided, by the names of their functions; none by one that is divided itself.

    tasks: functions, equal ones together.
    """
    by_kind: defaultdict[str, list[tuple[Body, Sequence[ir.Operation]]]] = defaultdict(list)
    for first, *others in tasks:
        kind, _ = kind_and_stage(first)
        gathers = any(at.GATHER in entry for entry in at.result_attributes(first))
        if kind in _KINDS and at.SUMS not in first.attributes and not gathers and not has_side_effect(first):
            by_kind[kind].append((Body(first), others))
    found: dict[str, _Division] = {}
    for bodies in by_kind.values():
        whole: dict[object, Body] = {}  # one of each text, the smallest first
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
    """How a task is divided, by the largest of those that stay whole for which that can be done."""
    divisions = (_Division.of(body, each, shardings) for each in reversed(list(whole)))
    return next((each for each in divisions if each is not None), None)


def _is_task(step: Step[ir.Value]) -> bool:
    """Whether a call is one task, on one mesh."""
    return all(name in step.attributes for name in (at.STAGE, at.MICROBATCH, at.MESH))


def _calls(
    step: Step[ir.Value],
    division: _Division,
    functions: tuple[Outlined, Outlined],
    instead: dict[ir.Value, ir.Value],
) -> list[ir.Operation]:
    """The calls that take the place of one; `instead` gains what takes the place of its results."""
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
