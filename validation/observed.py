"""Values that two runs of a step make, and the first one that differs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from jaxpp.ir.program import TaskName
from jaxpp.validation.compare import Expected, HostArray, Tolerance, compare

Unit: TypeAlias = tuple[int, int]
"""A microbatch, and a slice of its sequence."""


RESULT = "result"
"""The first word of the place of a result of a task."""
CARRIED = "carried value"
"""The first word of the place of a value that a loop carries to its next trip."""


@dataclass(frozen=True)
class Observed:
    """A value that a run made.

    Attributes:
        place: the identity of the value within its task: the location, name and type of its operation, or the position
            and types of the results of its task.
        task: the task that makes it; None outside of tasks, and while a module has none.
        unit: the microbatch and the slice of the value; None outside of the loop.
        value: the numbers.
        behind: the microbatches and slices from which the value was computed.
        operation: the operation that makes it, or "".
        line: the user's line of this operation, or "".
        words: the task in a report.
        operands: the indices, in the run, of the values that the operation reads; -1 where they are unknown.
        noise: how far rounding moves it.
    """

    place: tuple[Any, ...]
    task: TaskName | None
    unit: Unit | None
    value: HostArray
    behind: frozenset[Unit] = frozenset()
    operation: str = ""
    line: str = ""
    words: str = ""
    operands: tuple[int, ...] = ()
    noise: float = 0.0

    @property
    def expected(self) -> Expected:
        """The value and its noise, to compare others with."""
        return Expected(self.value, self.noise)


@dataclass(frozen=True)
class WrongValue:
    """The first value that differs.

    Attributes:
        task: the task that makes it, in words.
        operation: its operation, or the position among the results of its task.
        problem: the difference in words.
        line: the user's line, or "".
    """

    task: str
    operation: str
    problem: str
    line: str

    def __str__(self) -> str:
        return f"{self.operation} {self.problem}"


def with_noise(values: Sequence[Observed], moved: Sequence[Observed]) -> list[Observed]:
    """Returns the values with their noise. `moved` are those of a run with changed last bits of its inputs."""
    if [each.place for each in values] != [each.place for each in moved]:  # the run depends on its data
        return list(values)
    pairs = zip(values, moved, strict=True)
    return [replace(each, noise=Expected.of(each.value, other.value).noise) for each, other in pairs]


def first_wrong(right: Sequence[Observed], found: Sequence[Observed], tolerance: Tolerance) -> WrongValue | None:
    """Returns the first value of `found` in place of which `right` has another value; None if they can't be matched.

    Values match by their place, microbatch and slice, and by their stage, if both runs know stages. Several values may
    match, such as the copies of an unrolled loop. A value is wrong if it equals none of its matches, and one of these
    is missing in `found`. A sum over microbatches matches only a sum of the same microbatches, as schedules differ in
    their order.
    """
    return _ValuePairs(right, found, tolerance).first()


_Key: TypeAlias = tuple[Any, ...]


class _ValuePairs:
    """The values of two runs by their keys."""

    def __init__(self, right: Sequence[Observed], found: Sequence[Observed], tolerance: Tolerance) -> None:
        self._run, self._found, self._tolerance = right, found, tolerance
        self._has_stages = all(any(each.task for each in run) for run in (right, found))
        self._right, self._others = self._by_key(right), self._by_key(found)
        self._sums = _sums(right) & _sums(found)

    def first(self) -> WrongValue | None:
        """Returns the first wrong value."""
        for each in self._found:
            matches = self._matches(each, self._right)
            if not matches or any(self._agree(match, each) for match in matches):
                continue
            others = self._matches(each, self._others)
            missing = [match for match in matches if not any(self._agree(match, other) for other in others)]
            if missing:
                return self._wrong(*self._lost(missing[0], each))
        return None

    def _lost(self, match: Observed, each: Observed) -> tuple[Observed, Observed]:
        """Returns the operand with which another value came, if its own operation is gone; otherwise the values."""
        for number, other in zip(match.operands, each.operands, strict=False):
            if min(number, other) >= 0 and self._key(self._run[number]) not in self._others:
                right, found = self._run[number], self._found[other]
                if right.value.shape == found.value.shape and not self._agree(right, found):
                    return right, found
        return match, each

    def _wrong(self, match: Observed, each: Observed) -> WrongValue:
        _, problem = compare(match.expected, each.value, self._tolerance)
        kind, number, *_ = each.place
        operation = match.operation or each.operation
        if kind != "operation":
            operation = f"{kind} {number}" + (f", {operation}" if operation else "")
        words = match.words if match.task or not each.task else each.words
        return WrongValue(words, operation, problem, match.line or each.line)

    def _by_key(self, values: Sequence[Observed]) -> Mapping[_Key, list[Observed]]:
        found: defaultdict[_Key, list[Observed]] = defaultdict(list)
        for each in values:
            found[self._key(each)].append(each)
        return found

    def _key(self, each: Observed) -> _Key:
        # A loop may carry a value that no task makes any more.
        has_stage = self._has_stages and each.task and each.place[0] != CARRIED
        return each.place, each.unit, each.task.stage if has_stage and each.task else None

    def _matches(self, each: Observed, values: Mapping[_Key, list[Observed]]) -> list[Observed]:
        matches = values.get(self._key(each), [])
        if each.place in self._sums:
            return [match for match in matches if match.behind == each.behind]
        return matches

    def _agree(self, right: Observed, other: Observed) -> bool:
        expected = right.expected
        return not expected.is_compared(self._tolerance) or not compare(expected, other.value, self._tolerance)[1]


def _sums(values: Sequence[Observed]) -> set[tuple[Any, ...]]:
    """Returns the places whose values come from more than one microbatch or slice."""
    return {each.place for each in values if each.unit and not each.behind <= {each.unit}}
