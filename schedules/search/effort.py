"""The budget of a search. Work is counted, not timed, so that a seed gives the same schedule on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_PER_SECOND: Final = 1.6e7
"""The units that an average core completes in a second. A unit is one type of task of one state of a beam."""

_PER_STEP: Final = 12_000
"""The units that each step costs in addition."""


def seconds_of(steps: int, units: float) -> float:
    """Returns the seconds that `steps` steps of `units` units each cost."""
    return steps * (units + _PER_STEP) / _PER_SECOND


class Effort:
    """A budget.

    Attributes:
        seconds: the budget, in seconds of an average core.
        spent: the seconds spent so far.
        watch: a function that is called whenever something is spent.
        whole: the budget that this budget is a part of, which also pays for all that is spent here.
    """

    def __init__(self, seconds: float, whole: Effort | None = None) -> None:
        self.seconds, self.spent, self.whole = seconds, 0.0, whole
        self.watch: Callable[[], None] | None = None

    def spend(self, units: float) -> bool:
        """Spends a step of `units` units, and returns whether the budget was enough."""
        self.spent += seconds_of(1, units)
        if self.whole:
            self.whole.spend(units)
        if self.watch:
            self.watch()
        return self.spent <= self.seconds

    def part(self, seconds: float) -> Effort:
        """Returns a budget for a part of the work."""
        return Effort(seconds, self)

    @property
    def left(self) -> float:
        """The seconds that have not been spent."""
        return max(0.0, self.seconds - self.spent)
