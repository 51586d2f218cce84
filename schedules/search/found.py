"""The limits of a search, and its result: a schedule with a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.memory import KEPT, MemoryLimits, Release
from jaxpp.schedules.errors import ScheduleError, one_of
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.values import is_list, positive
from jaxpp.schedules.search.history import History, Moment, proven_gap


@dataclass(frozen=True, eq=False)
class Found(Schedule):
    """The best schedule that a search has found; equal to any schedule with the same tasks, placement and name.

    Attributes:
        value: the value of the objective, in the unit of the costs.
        lower_bound: no schedule on the placements that were tried, within the memory limit, is better.
        history: when each value and bound became known; `plot.draw_history` draws it.
    """

    value: float = math.inf
    lower_bound: float = 0.0
    history: tuple[Moment, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Whether the schedules are equal; values and bounds are not compared."""
        if not isinstance(other, Schedule):
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(Schedule))

    __hash__ = Schedule.__hash__

    @property
    def gap(self) -> float:
        """The share by which `value` exceeds the lower bound: 0 is proven optimal, infinity says nothing."""
        return proven_gap(self.value, self.lower_bound)


def found_by(schedule: Schedule, history: History) -> Found:
    """Returns the schedule that a search has found, checked, with the value and the bound at the end of its history."""
    own = {each.name: getattr(schedule, each.name) for each in fields(Schedule)}
    moments = history.end()
    found = Found(**own, value=moments[-1].value, lower_bound=moments[-1].bound, history=moments)
    check(found)
    return found


def memory_limits(
    meshes: int,
    limit: object,
    in_bytes: object,
    released_at: Release,
    costs: Costs,
    bytes_name: str = "memory_bytes",
    resident: Sequence[float] = (),
) -> MemoryLimits:
    """Returns the limits, one per mesh. Messages call limits in bytes `bytes_name`.

    Raises:
        ScheduleError: a limit is not a number above 0, the limits are not one per mesh, or both kinds are given. Also
            if there are limits in bytes, but neither the costs nor `resident` have any bytes.
    """
    one_of(list(KEPT), released_at, "released_at")
    limit, in_bytes = (math.inf if each is None else each for each in (limit, in_bytes))
    by_number, by_bytes = (is_list(each) or each != math.inf for each in (limit, in_bytes))
    if by_number and by_bytes:
        raise ScheduleError("memory_limit and memory_bytes are two ways to say one thing: give one of them")
    what, given = (bytes_name, in_bytes) if by_bytes else ("memory_limit", limit)
    each = list(cast("Sequence[object]", given)) if is_list(given) else [given] * meshes
    if len(each) != meshes:
        raise ScheduleError(f"{what} must be a number, or one for each of {meshes} meshes, found {len(each)}")
    limits = tuple(positive(number, what, infinite=True) for number in each)
    sizes = (costs.activation_bytes, costs.weight_grad_bytes or 0.0, resident)
    if by_bytes and min(limits) < math.inf and not any(map(np.any, sizes)):
        raise ScheduleError(f"{what} limits nothing, as the costs give no bytes: give them activation_bytes")
    return MemoryLimits(limits, released_at if what == "memory_limit" else None)
