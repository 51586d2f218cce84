"""The sums over the microbatches in each result of a step: their stages, axes and factors.

A task adds its own terms to its arguments. So a value of the line of calls is a sum of terms, each of one task and one
microbatch (`jaxpp.ir.linear_terms`). The walk goes from what leaves the step, or enters an operation that is not
linear, back through the tasks. Each microbatch of which a stage has tasks must have a term, and all
terms must have one factor.

Data and tensor parallelism inside of a task are XLA's own: a value is whole along an axis that shards it. Only explicit
collectives of a `shard_map`, and sums that `delay-reductions` keeps apart, have axes here.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import (
    body_of,
    callee,
    functions,
    kind_and_stage,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.kinds import AROUND
from jaxpp.ir.linear_terms import APART, TAKEN_APART, Linear, Part, Scales, WrongSum, add_scales
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.mesh_functions import mesh_functions, tasks_of_call
from jaxpp.ir.microbatch_sums import EMPTY, NO_SUMS, MicrobatchSums, State, Sums, counted_sums
from jaxpp.ir.ops import shape_of
from jaxpp.ir.task_terms import LoopTerms, TaskTerms
from jaxpp.ir.values import defining_op, viewed

_CUTS = tuple(f"stablehlo.{name}" for name in ("dynamic_slice", "gather", "pad", "slice"))
_JOINS = ("stablehlo.concatenate", "stablehlo.dynamic_update_slice")
_SEND, _RECEIVE = "stablehlo.send", "stablehlo.recv"


class StepSums(NamedTuple):
    """The sums of a step.

    Attributes:
        results: by the number of each result of the step, the sums that it is, or reads element by element: those of
            its gradients, for a weight. Sums that it reads through a scalar, such as a norm, are not among them.
        wrong: the sums that are not over all microbatches alike.
    """

    results: Mapping[int, Sums]
    wrong: Sequence[WrongSum]


def step_sums(module: ir.Module) -> StepSums:
    """Returns the sums of a step of phases 2 to 6. Raises PassError for a module that breaks their promises."""
    reader = _StepReader(module)
    main = functions(module).get("main")
    if main is not None:
        reader.visit(operations(body_of(main)))
        reader.leave(terminator(body_of(main)), [(n, 0) for n in range(len(at.result_attributes(main)))])
        return reader.result()
    lines = mesh_functions(module)
    reader.visit_meshes([operations(body_of(line)) for line in lines])
    for line in lines:
        reader.leave(terminator(body_of(line)), [_number(entry) for entry in at.result_attributes(line)])
    return reader.result()


def _number(entry: Mapping[str, ir.Attribute]) -> tuple[int, int]:
    """Returns the result of the step that a result of a mesh is, and which block of it."""
    number = at.plain(entry.get(at.NUMBER))
    return (number[0], number[1]) if isinstance(number, list) else (number, 0)


class _StepReader:
    """Reads the operations around the tasks in their order, and the tasks where a sum leads to them."""

    def __init__(self, module: ir.Module) -> None:
        self._results = defaultdict[int, dict[int, Sums]](dict)
        self._module, self._functions = module, functions(module)
        self._linear = Linear(module)
        self._tasks = TaskTerms(self._functions, self._linear)
        self._parts = dict[str, Sequence[int]]()
        self._states, self._sent = dict[ir.Value, State](), dict[int, ir.Value]()
        self._sums = MicrobatchSums(self._tasks, self._states)

    def result(self) -> StepSums:
        """Returns the sums of all results, after the last visit."""
        results = {n: counted_sums(chain.from_iterable(found.values())) for n, found in self._results.items()}
        return StepSums(results, self._sums.wrong)

    def visit(self, ops: Iterable[ir.Operation]) -> None:
        """Visits the operations of a function that is no task."""
        for op in ops:
            self._visit(op)

    def visit_meshes(self, lines: Sequence[Sequence[ir.Operation]]) -> None:
        """Visits the operations of all meshes, each receive after its send."""
        rest = [list(reversed(line)) for line in lines]
        moved = True
        while moved:
            moved = False
            for line in rest:
                while line and (line[-1].name != _RECEIVE or _channel(line[-1]) in self._sent):
                    self._visit(line.pop())
                    moved = True

    def leave(self, end: ir.Operation, numbers: Sequence[tuple[int, int]]) -> None:
        """Notes the sums of the values that leave the step, as these blocks of the results with these numbers."""
        for value, (number, block) in zip(end.operands, numbers, strict=True):
            state, op = self._states.get(value, EMPTY), defining_op(value)
            sums = state.own | self._sums.of(state, end.location if op is None else op.location)
            self._results[number][block] = self._results[number].get(block, NO_SUMS) | sums

    def _visit(self, op: ir.Operation) -> None:
        if op.name == "func.call":
            self._visit_call(op)
        elif at.LOOP in op.attributes:
            self._sums.loop = LoopTerms(MicrobatchLoop.of(self._module), self._tasks, self._linear)
            self._begin(op)
        elif op.name == at.SHARD_MAP:
            self._visit_inside(op, body_of(op))
        elif op.name == _SEND:
            self._sent[_channel(op)] = op.operands[0]
        elif op.name == _RECEIVE:
            self._states[op.results[0]] = self._states.get(self._sent[_channel(op)], EMPTY)
        else:
            states = {value: each for value in operands_with_captures(op) if (each := self._states.get(value))}
            self._states.update((result, self._made(op, result, states)) for result in op.results if states)

    def _begin(self, op: ir.Operation) -> None:
        self._states.update((result, State({result: {(): 1.0}})) for result in op.results)

    def _visit_call(self, op: ir.Operation) -> None:
        function = self._functions[callee(op)]
        kind, _ = kind_and_stage(function)
        tasks = tasks_of_call(op, kind) if kind and kind not in AROUND else ()
        if not tasks:
            self._visit_inside(op, body_of(function))
            return
        self._begin(op)
        if callee(op) not in self._parts:
            self._parts[callee(op)] = [at.plain(each.get(at.TASK)) or 0 for each in at.result_attributes(function)]
        self._sums.add_call(op, tasks, self._parts[callee(op)])

    def _visit_inside(self, op: ir.Operation, body: ir.Block) -> None:
        """Visits a function that is no task, or the body of a `shard_map`."""
        for argument, value in zip(body.arguments, op.operands, strict=True):
            self._states[argument] = self._states.get(value, EMPTY)
        *ops, end = operations(body)
        self.visit(ops)
        for result, value in zip(op.results, end.operands, strict=True):
            self._states[result] = self._states.get(value, EMPTY)

    def _is_sum(self, value: ir.Value) -> bool:
        return self._sums.is_sum(self._states.get(value, EMPTY))

    def _made(self, op: ir.Operation, result: ir.Value, states: Mapping[ir.Value, State]) -> State:
        """Returns the state of the result of an operation around the loop. states: those of its operands."""
        parts = self._linear.around(result, self._is_sum) or ()
        total, own = _total(op, parts, states), NO_SUMS
        summed = set[Hashable]() if total is None else {part.value for part in parts}
        marks = (APART,) if op.name in TAKEN_APART or (total is None and parts) else ()
        for value, state in states.items():
            read = NO_SUMS if value in summed or not state.terms else self._sums.of(state, op.location)
            # A scalar of arrays, such as a norm, is made of all gradients, and so is an array that it scales.
            if bool(_rank(result)) == bool(_rank(viewed(value))):
                own |= state.own | {each._replace(axes=(*each.axes, *marks), terms=0) for each in read}
        has_cut = op.name in _CUTS or any(state.has_cut for state in states.values())
        return State(total or {}, own, has_cut)


def _total(
    op: ir.Operation, parts: Sequence[Part], states: Mapping[ir.Value, State]
) -> Mapping[ir.Value, Scales] | None:
    """Returns the terms of the result of a linear operation; None where rows of one term have different factors.

    An operation that joins rows leaves the factors as they are. One that adds different rows of a term to one another
    would need a factor for each row.
    """
    total, joins = dict[ir.Value, Scales](), op.name in _JOINS
    for part in parts:
        assert isinstance(part.value, ir.Value)
        state = states.get(part.value, EMPTY)
        for value, scales in state.terms.items():
            made = Scales()
            add_scales(made, scales, part)
            if value in total and (total[value] != made if joins else state.has_cut):
                return None
            if value not in total or not joins:
                add_scales(total.setdefault(value, {}), made, Part(None))
    return total


def _rank(value: ir.Value) -> int:
    return len(shape_of(value)) if isinstance(value.type, ir.RankedTensorType) else 0


def _channel(op: ir.Operation) -> int:
    return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle
