"""What each result of a step sums over the microbatches: of which stages, over which axes, by what factor.

A task adds its own terms to what it takes. So a value of the line of calls is a sum of terms, each of one task and one
microbatch (`jaxpp.ir.linear_terms`). The walk goes from what leaves the step, or enters an operation that is not
linear, back through the tasks. There must be a term for each microbatch of which a stage has tasks, and all of them
must have one factor.

Data and tensor parallelism inside of a task are XLA's own: a value is whole along an axis that shards it. Only explicit
collectives of a `shard_map`, and sums that `delay-reductions` keeps apart, have axes here.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

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
from jaxpp.ir.kinds import AROUND, HALVES
from jaxpp.ir.linear_terms import Axes, Linear, Part, Parts, Scales, WrongSum, add_scales, parts_with, terms
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.mesh_functions import mesh_functions, tasks_of_call
from jaxpp.ir.ops import shape_of
from jaxpp.ir.program import TaskName
from jaxpp.ir.task_terms import LoopTerms, OwnTerm, TaskTerms
from jaxpp.ir.values import defining_op, viewed

_SEND, _RECEIVE = "stablehlo.send", "stablehlo.recv"


class Sum(NamedTuple):
    """A sum of one term over the microbatches.

    Attributes:
        scale: the factor of each microbatch's term.
        axes: the axes over which devices add the term.
        microbatches: the number of microbatches; 0 where the schedule may leave some out.
        stage: the stage that makes the term; -1 where it is not known, or where there are slices.
        is_inside: whether a loop over layers, or a conditional, of the microbatch loop makes the term.
    """

    scale: float
    axes: Axes
    microbatches: int
    stage: int = -1
    is_inside: bool = False


Sums: TypeAlias = frozenset[Sum]
_NONE: Final[Sums] = frozenset()


class ResultSums(NamedTuple):
    """The sums on which a result of the step depends.

    Attributes:
        own: those that it is, or reads element by element: of gradients, for a weight.
        whole: those that it reads through a scalar, such as the norm of all gradients.
        location: where the result is made.
    """

    own: Sums
    whole: Sums
    location: ir.Location


@dataclass
class StepSums:
    """The sums of a step.

    Attributes:
        results: by the number of each result of the step.
        wrong: the sums that are not over all microbatches alike.
        is_plain: whether no value that is read after the loop is a sum of other values that the loop carries. If one
            is, such as the sum before the last microbatch, the user may mean an incomplete sum.
        terms: how many terms each microbatch adds to sums that are read.
    """

    results: dict[int, ResultSums] = field(default_factory=dict[int, ResultSums])
    wrong: list[WrongSum] = field(default_factory=list[WrongSum])
    is_plain: bool = True
    terms: int = 0


def step_sums(module: ir.Module) -> StepSums:
    """Returns the sums of a step of phases 2 to 6. Raises PassError for a module that breaks their promises."""
    reader = _Reader(module)
    main = functions(module).get("main")
    if main is not None:
        reader.visit(operations(body_of(main)))
        reader.leave(terminator(body_of(main)), [[n] for n in range(len(at.result_attributes(main)))])
        return reader.result()
    lines = mesh_functions(module)
    reader.visit_meshes([operations(body_of(line)) for line in lines])
    for line in lines:
        reader.leave(terminator(body_of(line)), [_numbers(entry) for entry in at.result_attributes(line)])
    return reader.result()


def _numbers(entry: Mapping[str, ir.Attribute]) -> list[int]:
    """Returns the result of the step that a result of a mesh is, or of which it is a block."""
    number = at.plain(entry.get(at.NUMBER))
    return number[:1] if isinstance(number, list) else [number]


class _State(NamedTuple):
    """A value around the loop: the factors of the results that it sums, of tasks or the loop, and the sums it reads."""

    terms: Mapping[ir.Value, Scales] = {}
    own: Sums = _NONE
    whole: Sums = _NONE

    @property
    def parts(self) -> list[Part]:
        return [part for value, scales in self.terms.items() for part in parts_with(value, scales)]


_EMPTY = _State()


class _Reader:
    """Reads the operations around the tasks in their order, and the tasks where a sum leads to them."""

    def __init__(self, module: ir.Module) -> None:
        self.found, self._module, self._functions = StepSums(), module, functions(module)
        self._linear = Linear(module)
        self._tasks = TaskTerms(self._functions, self._linear)
        self._parts = dict[str, Sequence[int]]()
        self._states, self._sent = dict[ir.Value, _State](), dict[int, ir.Value]()
        self._sums: LoopSums | LineSums = LineSums(self._tasks, self._states, self.found.wrong)

    def result(self) -> StepSums:
        """Returns what was found, after the last visit."""
        self.found.terms = self._sums.terms
        return self.found

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

    def leave(self, end: ir.Operation, numbers: Sequence[Sequence[int]]) -> None:
        """Notes the sums of the values that leave the step as the results with these numbers."""
        for value, owners in zip(end.operands, numbers, strict=True):
            state, op = self._states.get(value, _EMPTY), defining_op(value)
            location = end.location if op is None else op.location
            own = state.own | self._sums.of(state, location)
            for number in owners:
                known = self.found.results.get(number, ResultSums(_NONE, _NONE, location))
                self.found.results[number] = ResultSums(known.own | own, known.whole | state.whole, known.location)

    def _visit(self, op: ir.Operation) -> None:
        if op.name == "func.call":
            self._visit_call(op)
        elif at.LOOP in op.attributes:
            loop = MicrobatchLoop.of(self._module)
            self._sums = LoopSums(loop, LoopTerms(loop, self._tasks, self._linear), self.found)
            self._begin(op)
        elif op.name == at.SHARD_MAP:
            self._visit_inside(op, body_of(op))
        elif op.name == _SEND:
            self._sent[_channel(op)] = op.operands[0]
        elif op.name == _RECEIVE:
            self._states[op.results[0]] = self._states.get(self._sent[_channel(op)], _EMPTY)
        else:
            states = {value: each for value in operands_with_captures(op) if (each := self._states.get(value))}
            self._states.update((result, self._made(op, result, states)) for result in op.results if states)

    def _begin(self, op: ir.Operation) -> None:
        self._states.update((result, _State({result: {(): 1.0}})) for result in op.results)

    def _visit_call(self, op: ir.Operation) -> None:
        function = self._functions[callee(op)]
        kind, _ = kind_and_stage(function)
        tasks = tasks_of_call(op, kind) if kind and kind not in AROUND else ()
        if not tasks:
            self._visit_inside(op, body_of(function))
            return
        assert isinstance(self._sums, LineSums)
        self._begin(op)
        if callee(op) not in self._parts:
            self._parts[callee(op)] = [at.plain(each.get(at.TASK)) or 0 for each in at.result_attributes(function)]
        self._sums.add_call(op, tasks, self._parts[callee(op)])

    def _visit_inside(self, op: ir.Operation, body: ir.Block) -> None:
        """Visits a function that is no task, or the body of a `shard_map`."""
        for argument, value in zip(body.arguments, op.operands, strict=True):
            self._states[argument] = self._states.get(value, _EMPTY)
        *ops, end = operations(body)
        self.visit(ops)
        for result, value in zip(op.results, end.operands, strict=True):
            self._states[result] = self._states.get(value, _EMPTY)

    def _made(self, op: ir.Operation, result: ir.Value, states: Mapping[ir.Value, _State]) -> _State:
        """Returns the state of the result of an operation around the loop. states: those of its operands."""
        own = _NONE.union(*(state.own for state in states.values()))
        whole = _NONE.union(*(state.whole for state in states.values()))
        total, parts = dict[ir.Value, Scales](), self._linear.around(result) or ()
        for part in parts:
            assert isinstance(part.value, ir.Value)
            for value, scales in states.get(part.value, _EMPTY).terms.items():
                add_scales(total.setdefault(value, {}), scales, part)
        summed, is_array = {part.value for part in parts}, _rank(result) > 0
        for value, state in states.items():
            if value not in summed and state.terms:
                read = self._sums.of(state, op.location)
                own, whole = (own, whole | read) if is_array and not _rank(viewed(value)) else (own | read, whole)
        if not is_array and any(map(_rank, states)):
            own, whole = _NONE, own | whole
        return _State(total, own, whole)


class LoopSums:
    """The sums of a module that has its loop."""

    def __init__(self, loop: MicrobatchLoop, made: LoopTerms, found: StepSums) -> None:
        self._loop, self._made, self._found = loop, made, found
        self._terms = dict[int, int]()

    @property
    def terms(self) -> int:
        """How many terms each microbatch adds to the sums that were read so far."""
        return sum(self._terms.values())

    def of(self, state: _State, location: ir.Location) -> Sums:
        """Returns what a sum of the loop's results is made of."""
        sums = set[Sum]()
        for part in state.parts:
            assert isinstance(part.value, ir.Value)
            number = ir.OpResult(part.value).result_number
            if number in self._loop.indices:
                continue
            added = self._made.added(number)
            self._terms[number] = len(added or ())
            self._found.is_plain &= not self._made.is_of_others(number)
            # A schedule may leave out tasks, and their terms.
            microbatches = 0 if "skipped:" in self._loop.schedule else self._loop.length
            for term in added or ():
                total = Scales()
                add_scales(total, term.scales, part)
                sums |= {
                    Sum(_rounded(scale), axes, microbatches, term.stage, term.is_inside)
                    for axes, scale in total.items()
                }
        return frozenset(sums)


_Group: TypeAlias = tuple[str, int, int]
"""A kind (`backward` also for its halves), a stage and a slice."""

_HINT = "a pass before this one dropped a term of the sum, or added it in another way"

_CHANGED = "changed"
"""The term of a value to which an earlier microbatch does not only add, such as a moving average."""


class LineSums:
    """The sums of a module that has a line of calls."""

    def __init__(self, made: TaskTerms, states: Mapping[ir.Value, _State], wrong: list[WrongSum]) -> None:
        self._made, self._states, self._wrong = made, states, wrong
        self._tasks = dict[ir.Value, TaskName]()
        self._microbatches = defaultdict[_Group, set[int]](set)
        self._known = dict[Hashable, Sums]()
        self._has_slices = False
        self._terms = defaultdict[int, set[OwnTerm]](set)

    @property
    def terms(self) -> int:
        """How many terms a microbatch adds to the sums that were read so far: that with most of them."""
        return max(map(len, self._terms.values()), default=0)

    def add_call(self, op: ir.Operation, tasks: Sequence[TaskName], parts: Sequence[int]) -> None:
        """Adds a call of tasks. parts: for each result the index of its task."""
        self._tasks.update((result, tasks[part]) for result, part in zip(op.results, parts, strict=True))
        for task in tasks:
            self._microbatches[task.kind, task.stage, task.slice].add(task.microbatch)
            self._has_slices |= task.slice > 0

    def of(self, state: _State, location: ir.Location) -> Sums:
        """Returns what a sum of the results of tasks is made of; notes what is wrong with it."""
        key = frozenset(state.parts)
        if key not in self._known:
            found = terms(None, lambda each: state.parts if each is None else self._parts(each))
            self._known[key] = _NONE if _CHANGED in found else self._grouped(found, location)
        return self._known[key]

    def _parts(self, value: Hashable) -> Parts:
        """Returns the summands of a value of the line of calls."""
        if not isinstance(value, ir.Value):
            return None
        task = self._tasks.get(value)
        if task is None:
            return self._states.get(value, _EMPTY).parts
        op, summary, found = defining_op(value), self._made.of_call(value), list[Part]()
        assert op is not None
        for number, scales in summary.arguments:
            operand = op.operands[number]
            if scales != {(): 1.0} and self._is_of_another(operand, task):
                return [Part(_CHANGED)]
            found += parts_with(operand, scales)
        return found + [part for n, scales in enumerate(summary.own) for part in parts_with(OwnTerm(value, n), scales)]

    def _is_of_another(self, value: ir.Value, task: TaskName) -> bool:
        """Whether a task of another microbatch has a part in a value."""
        made = (self._tasks.get(each) for each in self._states.get(value, _EMPTY).terms)
        return any(each is not None and each.microbatch != task.microbatch for each in made)

    def _grouped(self, found: Mapping[Hashable, Scales], location: ir.Location) -> Sums:
        groups = defaultdict[_Group, dict[int, set[tuple[Axes, float]]]](lambda: defaultdict(set))
        own = defaultdict[_Group, dict[int, set[OwnTerm]]](lambda: defaultdict(set))
        kinds, sums = defaultdict[_Group, set[str]](set), set[Sum]()
        for term, scales in found.items():
            if isinstance(term, OwnTerm):
                kind, stage, microbatch, part = self._tasks[term.result]
                group = "backward" if kind in HALVES else kind, stage, part
                kinds[group].add(kind)
                own[group][microbatch].add(term)
                groups[group][microbatch] |= {(axes, _rounded(scale)) for axes, scale in scales.items()}
        for group, terms_of in groups.items():
            if len(terms_of) > 1:  # otherwise it may be a value of one microbatch, such as the last one
                self._check(group, kinds[group], terms_of, location)
                for microbatch, each in own[group].items():
                    self._terms[microbatch] |= each
            stage = -1 if self._has_slices else group[1]
            every = set[tuple[Axes, float]]().union(*terms_of.values())
            sums |= {Sum(scale, axes, len(terms_of), stage) for axes, scale in every}
        return frozenset(sums)

    def _check(
        self,
        group: _Group,
        kinds: Iterable[str],
        found: Mapping[int, set[tuple[Axes, float]]],
        location: ir.Location,
    ) -> None:
        """Notes where the terms of a stage are not those of all microbatches of which it has such tasks, or differ."""
        kind, stage, part = group
        there = set[int]().union(*(self._microbatches[each, stage, part] for each in kinds))
        if missing := sorted(there - found.keys()):
            what = f"lacks what the {kind} of stage {stage} adds for microbatch {', '.join(map(str, missing))}"
            self._wrong.append(WrongSum(f"a sum over {len(there)} microbatches {what}", location, _HINT))
            return
        usual = max(found.values(), key=[*found.values()].count)
        odd = min((number for number, each in found.items() if each != usual), default=None)
        if odd is not None:
            what = f"{TaskName(kind, stage, odd, part)}, {_times(found[odd])}, and others {_times(usual)}"
            self._wrong.append(WrongSum(f"a sum adds what the {what}", location, _HINT))


def _rounded(scale: float) -> float:
    """Rounds a factor to six digits: passes may multiply numbers in another order."""
    return float(f"{scale:.6g}")


def _times(scales: Iterable[tuple[Axes, float]]) -> str:
    texts = (f"{scale:g} times" + (f" over {' and '.join(axes)}" if axes else "") for axes, scale in sorted(scales))
    return " and ".join(texts)


def _rank(value: ir.Value) -> int:
    return len(shape_of(value)) if isinstance(value.type, ir.RankedTensorType) else 0


def _channel(op: ir.Operation) -> int:
    return stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle
