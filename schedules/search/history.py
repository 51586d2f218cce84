"""What a search has found by when."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.search.effort import Effort

ProgressCallback: TypeAlias = Callable[[float, float, float], None]
"""Called now and then with the share of the time that is spent, the best value and the lower bound."""


def proven_gap(value: float, bound: float) -> float:
    """Returns the share by which `value` is above the lower bound: 0 is proven optimal, infinity says nothing."""
    return max(0.0, value / bound - 1) if bound else math.inf


@dataclass(frozen=True)
class Moment:
    """When a value or a bound became better.

    Attributes:
        seconds: counted, from the beginning of the search.
        value: the best so far.
        bound: nothing is better.
    """

    seconds: float
    value: float
    bound: float


class History:
    """The moments of a search.

    Args:
        effort: of which each step is watched.
        now: gives the best value and the lower bound.
        progress: is told of each step.

    Raises:
        ScheduleError: `progress` can't be called.
    """

    def __init__(
        self, effort: Effort, now: Callable[[], tuple[float, float]], progress: ProgressCallback | None
    ) -> None:
        if progress is not None and not callable(progress):
            found = f"found {progress!r}"
            raise ScheduleError(f"progress must be a function of the share spent, the value and the bound, {found}")
        self.effort, self.now, self.progress = effort, now, progress
        self.moments: list[Moment] = []
        effort.watch = self.look

    def look(self) -> None:
        """Note what is better now."""
        value, bound = self.now()
        if not self.moments or (value, bound) != (self.moments[-1].value, self.moments[-1].bound):
            self.moments.append(Moment(min(self.effort.spent, self.effort.seconds), value, bound))
        if self.progress:
            self.progress(1 - self.effort.left / self.effort.seconds, value, bound)

    def end(self) -> tuple[Moment, ...]:
        """All moments, the last one when the search ended."""
        value, bound = self.now()
        return (*self.moments, Moment(min(self.effort.spent, self.effort.seconds), value, bound))
