"""Sums over the microbatches: of what a loop hands on, and of what a line of calls of tasks returns."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir.kinds import HALVES
from jaxpp.ir.linear_terms import Axes, Part, Parts, Scales, WrongSum, add_scales, parts_with, terms
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.program import TaskName
from jaxpp.ir.task_terms import LoopTerms, OwnTerm, TaskTerms
from jaxpp.ir.values import defining_op


class Sum(NamedTuple):
    """A sum of one term over the microbatches.

    Attributes:
        scale: the factor of each microbatch's term; 0 where it is not known, as one of its factors is no constant.
        axes: the axes over which devices add the term.
        microbatches: the number of microbatches; 0 where the schedule may leave some out.
        stage: the stage that makes the term; -1 where it is not known, or where there are slices.
        is_inside: whether passes may take apart the operation that makes the term, or reads the sum.
    """

    scale: float
    axes: Axes
    microbatches: int
    stage: int = -1
    is_inside: bool = False


Sums: TypeAlias = frozenset[Sum]
NO_SUMS: Final[Sums] = frozenset()

UNKNOWN: Final = Sum(0.0, ("unknown",), 0)
"""Stands for a sum that the loop does not only add to, in a way that a line of calls does not show."""


class State(NamedTuple):
    """A value around the loop.

    Attributes:
        terms: the factors of the results that it sums, of tasks or of the loop.
        own: the sums that it reads element by element.
        whole: the sums that it reads through a scalar.
        has_cut: whether it has some rows of a result only.
    """

    terms: Mapping[ir.Value, Scales] = {}
    own: Sums = NO_SUMS
    whole: Sums = NO_SUMS
    has_cut: bool = False

    @property
    def parts(self) -> list[Part]:
        """The same terms as summands."""
        return [part for value, scales in self.terms.items() for part in parts_with(value, scales)]


EMPTY = State()


class LoopSums:
    """The sums of a module that has its loop.

    Attributes:
        wrong: none, as a loop adds the same for all microbatches.
    """

    wrong: Sequence[WrongSum] = ()

    def __init__(self, loop: MicrobatchLoop, made: LoopTerms) -> None:
        self._loop, self._made = loop, made
        self._terms = dict[int, int]()

    @property
    def terms(self) -> int:
        """How many terms each microbatch adds to the sums that were read so far."""
        return sum(self._terms.values())

    def of(self, state: State, location: ir.Location) -> Sums:
        """Returns what a sum of the loop's results is made of."""
        sums = set[Sum]()
        for part in state.parts:
            assert isinstance(part.value, ir.Value)
            number = ir.OpResult(part.value).result_number
            if number in self._loop.indices:
                continue
            added = self._made.added(number)
            self._terms[number] = len(added or ())
            if self._made.is_of_others(number):
                sums.add(UNKNOWN)
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
    """The sums of a module that has a line of calls.

    Attributes:
        wrong: the sums that are not over all microbatches alike.
    """

    def __init__(self, made: TaskTerms, states: Mapping[ir.Value, State]) -> None:
        self._made, self._states, self.wrong = made, states, list[WrongSum]()
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

    def of(self, state: State, location: ir.Location) -> Sums:
        """Returns what a sum of the results of tasks is made of; notes what is wrong with it."""
        key = frozenset(state.parts)
        if key not in self._known:
            found = terms(None, lambda each: state.parts if each is None else self._parts(each))
            self._known[key] = NO_SUMS if _CHANGED in found else self._grouped(found, location)
        return self._known[key]

    def _parts(self, value: Hashable) -> Parts:
        """Returns the summands of a value of the line of calls."""
        if not isinstance(value, ir.Value):
            return None
        task = self._tasks.get(value)
        if task is None:
            return self._states.get(value, EMPTY).parts
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
        made = (self._tasks.get(each) for each in self._states.get(value, EMPTY).terms)
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
            self.wrong.append(WrongSum(f"a sum over {len(there)} microbatches {what}", location, _HINT))
            return
        usual = max(found.values(), key=[*found.values()].count)
        if any(not scale for each in found.values() for _, scale in each):
            return
        odd = min((number for number, each in found.items() if each != usual), default=None)
        if odd is not None:
            what = f"{TaskName(kind, stage, odd, part)}, {_times(found[odd])}, and others {_times(usual)}"
            self.wrong.append(WrongSum(f"a sum adds what the {what}", location, _HINT))


def _rounded(scale: float) -> float:
    """Rounds a factor to six digits: passes may multiply numbers in another order."""
    return float(f"{scale:.6g}")


def _times(scales: Iterable[tuple[Axes, float]]) -> str:
    texts = (f"{scale:g} times" + (f" over {' and '.join(axes)}" if axes else "") for axes, scale in sorted(scales))
    return " and ".join(texts)
