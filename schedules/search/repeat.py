"""More microbatches for a schedule: a window of its steady state is repeated.

A *window* is a contiguous part of a mesh's order that holds each of the mesh's types equally often. After a window the
mesh is in the same state as before, some microbatches later, so a repeated window keeps the same memory. Each mesh
chooses its own window, near one common moment. A search schedules few microbatches well in little time, and the middle
of a long run is periodic.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from jaxpp.schedules.engine.problem import Orders, Problem
from jaxpp.schedules.search.effort import Effort

_LONGEST: Final = 10
"""The most microbatches in a window."""

_MOMENTS: Final = 24
"""The number of moments at which windows are tried, for each length."""

_UNITS: Final = 16
"""The units of effort to run a task."""


def repeat(problem: Problem, orders: Orders, microbatches: int, effort: Effort) -> list[list[int]] | None:
    """Returns the best orders for more microbatches that repeat a window; None if no window exists.

    Args:
        problem: the problem that `orders` solve, for fewer microbatches.
        orders: the orders whose windows are repeated, one window on each mesh.
        microbatches: the number of microbatches to reach.
        effort: the budget.
    """
    ends = problem.run(orders)
    extra, longer = microbatches - problem.microbatches, problem.with_microbatches(microbatches)
    best, least = None, math.inf
    for length in range(1, _LONGEST + 1):
        windows = [_windows(order, len(types), length) for order, types in zip(orders, problem.types_of, strict=True)]
        if ends is None or extra % length or not all(windows):
            continue
        times = [[row[start] for start in starts] for row, starts in zip(ends, windows, strict=True)]
        for moment in times[0][:: 1 + len(times[0]) // _MOMENTS]:
            if not effort.spend(longer.types * microbatches * _UNITS):
                return best
            made: list[list[int]] = []
            for order, starts, at, types in zip(orders, windows, times, problem.types_of, strict=True):
                start = starts[min(bisect_left(at, moment), len(starts) - 1)]
                stop = start + length * len(types)
                made.append([*order[:start], *list(order[start:stop]) * (extra // length), *order[start:]])
            value = longer.value(made)
            if value < least:
                best, least = made, value
    return best


def _windows(order: Sequence[int], types: int, length: int) -> list[int]:
    """Returns the first positions of the windows of an order that hold each of its types `length` times."""
    size = types * length
    counts = dict.fromkeys(order, 0)
    right = 0
    found: list[int] = []
    for position, each in enumerate(order):
        counts[each] += 1
        right += (counts[each] == length) - (counts[each] == length + 1)
        if position >= size:
            gone = order[position - size]
            counts[gone] -= 1
            right += (counts[gone] == length) - (counts[gone] == length - 1)
        if position >= size - 1 and right == types:
            found.append(position - size + 1)
    return found
