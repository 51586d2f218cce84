"""Sums over the microbatches: of what a loop hands on, and of what a line of calls of tasks returns."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.kinds import HALVES
from jaxpp.ir.linear_terms import APART, FACTOR, Axes, Part, Parts, Scales, WrongSum, parts_with, terms
from jaxpp.ir.program import TaskName
from jaxpp.ir.task_terms import OTHERS, LoopTerms, OwnTerm, TaskTerms
from jaxpp.ir.values import defining_op


class Sum(NamedTuple):
    """A sum of one term over the microbatches.

    Attributes:
        scale: the factor of each microbatch's term, besides those that are no constants.
        axes: the axes over which devices add the term, and what else is known of it (`jaxpp.ir.linear_terms.Axes`).
        microbatches: the number of microbatches; 0 where the schedule may leave some out.
        stage: the stage that makes the term; -1 where it is not known, or where there are slices.
        terms: how many such terms each microbatch adds: several for a weight that is used twice, or for layers; 0 for a
            sum that an operation reads, as a pass may split the operation.
    """

    scale: float
    axes: Axes
    microbatches: int
    stage: int = -1
    terms: int = 1

    @property
    def mesh_axes(self) -> Sequence[str]:
        """The axes over which devices add the term."""
        return [axis for axis in self.axes if axis not in (APART, FACTOR)]


Sums: TypeAlias = frozenset[Sum]
NO_SUMS: Final[Sums] = frozenset()

UNKNOWN: Final = Sum(0.0, ("unknown",), 0)
"""Stands for a sum that the loop does not only add to, in a way that a line of calls does not show."""


def counted_sums(sums: Iterable[Sum]) -> Sums:
    """Returns sums with their terms added up where they are equal otherwise."""
    counts = Counter[Sum]()
    for each in sums:
        counts[each._replace(terms=1)] += each.terms
    return frozenset(each._replace(terms=terms) for each, terms in counts.items())


class State(NamedTuple):
    """A value around the loop.

    Attributes:
        terms: the factors of the results that it sums, of tasks or of the loop.
        own: the sums that it reads element by element.
        has_cut: whether it has some rows of a result only.
    """

    terms: Mapping[ir.Value, Scales] = {}
    own: Sums = NO_SUMS
    has_cut: bool = False

    @property
    def parts(self) -> list[Part]:
        """The same terms as summands."""
        return [part for value, scales in self.terms.items() for part in parts_with(value, scales)]


EMPTY = State()


_Group: TypeAlias = tuple[str, int, int]
"""A kind (`backward` also for its halves), a stage and a slice."""

_Factors: TypeAlias = Counter[tuple[Axes, float]]
"""How many terms have these axes and this factor."""

_HINT = "a pass before this one dropped a term of the sum, or added it in another way"

_CHANGED = "changed"
"""The term of a value to which an earlier microbatch does not only add, such as a moving average."""


class MicrobatchSums:
    """The sums of a module that has its loop, or a line of calls.

    Attributes:
        loop: the terms of the loop, if the module has one.
        wrong: the sums that are not over all microbatches alike. A loop adds the same for all.
    """

    def __init__(self, made: TaskTerms, states: Mapping[ir.Value, State]) -> None:
        self.loop: LoopTerms | None = None
        self._made, self._states, self.wrong = made, states, list[WrongSum]()
        self._tasks = dict[ir.Value, TaskName]()
        self._microbatches = defaultdict[_Group, set[int]](set)
        self._known = dict[Hashable, Sums]()
        self._has_slices = False

    def add_call(self, op: ir.Operation, tasks: Sequence[TaskName], parts: Sequence[int]) -> None:
        """Adds a call of tasks. parts: for each result the index of its task."""
        self._tasks.update((result, tasks[part]) for result, part in zip(op.results, parts, strict=True))
        for task in tasks:
            self._microbatches[task.kind, task.stage, task.slice].add(task.microbatch)
            self._has_slices |= task.slice > 0

    def of(self, state: State, location: ir.Location) -> Sums:
        """Returns the sums in a value that adds results of tasks, or of the loop, and notes each fault."""
        key = frozenset(state.parts)
        if key not in self._known:
            found = self._terms(state)
            self._known[key] = NO_SUMS if _CHANGED in found else self._grouped(found, location)
        return self._known[key]

    def is_sum(self, state: State) -> bool:
        """Whether a sum of results has terms of microbatches, which need not be all of them."""
        return bool(state.terms) and any(not isinstance(term, ir.Value) for term in self._terms(state))

    def _terms(self, state: State) -> Mapping[Hashable, Scales]:
        return terms(None, lambda each: state.parts if each is None else self._parts(each))

    def _parts(self, value: Hashable) -> Parts:
        """Returns the summands of a value around the tasks."""
        if not isinstance(value, ir.Value):
            return None
        task, op = self._tasks.get(value), defining_op(value)
        if task is None or op is None:
            is_of_loop = self.loop is not None and op is not None and at.LOOP in op.attributes
            return self.loop.parts(value) if self.loop and is_of_loop else self._states.get(value, EMPTY).parts
        arguments, own = self._made.parts(value)
        if any(scales != {(): 1.0} and self._is_of_another(op.operands[n], task) for n, scales in arguments):
            return [Part(_CHANGED)]
        return [part for n, scales in arguments for part in parts_with(op.operands[n], scales)] + own

    def _is_of_another(self, value: ir.Value, task: TaskName) -> bool:
        """Whether a task of another microbatch has a part in a value."""
        made = (self._tasks.get(each) for each in self._states.get(value, EMPTY).terms)
        return any(each is not None and each.microbatch != task.microbatch for each in made)

    def _grouped(self, found: Mapping[Hashable, Scales], location: ir.Location) -> Sums:
        groups = defaultdict[_Group, dict[int, _Factors]](lambda: defaultdict(Counter))
        kinds, sums = defaultdict[_Group, set[str]](set), list[Sum]()
        for term, scales in found.items():
            if term == OTHERS:
                sums.append(UNKNOWN)
            elif isinstance(term, OwnTerm):
                every = [(axes, _rounded(scale)) for axes, scale in scales.items()]
                if self.loop is not None:
                    sums += [Sum(scale, axes, self.loop.length, term.stage) for axes, scale in every]
                    continue
                kind, stage, microbatch, part = self._tasks[term.result]
                group = "backward" if kind in HALVES else kind, stage, part
                kinds[group].add(kind)
                groups[group][microbatch].update(every)
        for group, terms_of in groups.items():
            if len(terms_of) > 1:  # otherwise it may be a value of one microbatch, such as the last one
                self._check(group, kinds[group], terms_of, location)
            stage, most = -1 if self._has_slices else group[1], _Factors()
            for each in terms_of.values():
                most |= each
            sums += [Sum(scale, axes, len(terms_of), stage, count) for (axes, scale), count in most.items()]
        return counted_sums(sums)

    def _check(
        self,
        group: _Group,
        kinds: Iterable[str],
        found: Mapping[int, _Factors],
        location: ir.Location,
    ) -> None:
        """Notes the microbatches whose tasks add no term, and those whose terms differ from the others."""
        kind, stage, part = group
        there = set[int]().union(*(self._microbatches[each, stage, part] for each in kinds))
        if missing := sorted(there - found.keys()):
            what = f"lacks what the {kind} of stage {stage} adds for microbatch {', '.join(map(str, missing))}"
            self.wrong.append(WrongSum(f"a sum over {len(there)} microbatches {what}", location, _HINT))
            return
        usual = max(found.values(), key=[*found.values()].count)
        further = Counter(chain.from_iterable(each - usual for each in found.values()))
        # A further term of one microbatch may be its value, such as the last one.
        strange = ((n, usual - each or any(further[term] > 1 for term in each - usual)) for n, each in found.items())
        odd = min((number for number, is_strange in strange if is_strange), default=None)
        if odd is not None:
            what = f"{TaskName(kind, stage, odd, part)}, {_times(found[odd])}, and others {_times(usual)}"
            self.wrong.append(WrongSum(f"a sum adds what the {what}", location, _HINT))


def _rounded(scale: float) -> float:
    """Rounds a factor to six digits: passes may multiply numbers in another order."""
    return float(f"{scale:.6g}")


def _times(factors: _Factors) -> str:
    every = sorted(factors.elements())
    return " and ".join(f"{scale:g} times" + (f" over {' and '.join(axes)}" if axes else "") for axes, scale in every)
