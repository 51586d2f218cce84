"""The budget of a search: work is counted, not timed, so that a seed gives the same schedule on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_PER_SECOND: Final = 1.6e7
"""Units that an average core gets through in a second; a unit is one type of task of one state of a beam."""

_PER_STEP: Final = 12_000
"""Units that a step costs beside those that it is asked for."""


def seconds_of(steps: int, units: float) -> float:
    """What so many steps of so many units each cost."""
    return steps * (units + _PER_STEP) / _PER_SECOND


class Effort:
    """A budget.

    Attributes:
        seconds: of an average core, that may be spent.
        spent: so far.
        watch: called whenever something is spent.
        whole: the budget that this one is a part of: what is spent here is spent there too.
    """

    def __init__(self, seconds: float, whole: Effort | None = None) -> None:
        self.seconds, self.spent, self.whole = seconds, 0.0, whole
        self.watch: Callable[[], None] | None = None

    def spend(self, units: float) -> bool:
        """Spend a step of so many units; whether there was enough left."""
        self.spent += seconds_of(1, units)
        if self.whole:
            self.whole.spend(units)
        if self.watch:
            self.watch()
        return self.spent <= self.seconds

    def part(self, seconds: float) -> Effort:
        """A budget of its own for a part of the work."""
        return Effort(seconds, self)

    @property
    def left(self) -> float:
        """What has not been spent."""
        return max(0.0, self.seconds - self.spent)
