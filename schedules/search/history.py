"""The history of a search: its best value and its lower bound over time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.search.effort import Effort

ProgressCallback: TypeAlias = Callable[[float, float, float], None]
"""A function that is called now and then with the share of the time that is spent, the best value and the lower
bound."""


def proven_gap(value: float, bound: float) -> float:
    """Returns the share by which `value` is above the lower bound: 0 is proven optimal, infinity says nothing."""
    return max(0.0, value / bound - 1) if bound else math.inf


@dataclass(frozen=True)
class Moment:
    """A moment when the value or the bound improved.

    Attributes:
        seconds: the effort spent since the beginning of the search.
        value: the best value so far.
        bound: the lower bound.
    """

    seconds: float
    value: float
    bound: float


class History:
    """The moments of a search.

    Args:
        effort: the budget; each spending adds a moment if something improved.
        now: returns the best value and the lower bound.
        progress: is called at each spending.

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
        """Adds a moment if the value or the bound has changed, and calls `progress`."""
        value, bound = self.now()
        if not self.moments or (value, bound) != (self.moments[-1].value, self.moments[-1].bound):
            self.moments.append(Moment(min(self.effort.spent, self.effort.seconds), value, bound))
        if self.progress:
            self.progress(1 - self.effort.left / self.effort.seconds, value, bound)

    def end(self) -> tuple[Moment, ...]:
        """Returns all moments, with the end of the search as the last one."""
        value, bound = self.now()
        return (*self.moments, Moment(min(self.effort.spent, self.effort.seconds), value, bound))
