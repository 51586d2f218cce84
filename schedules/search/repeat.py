"""More microbatches for a schedule: a stretch of its steady state is run again and again.

A mesh runs a *window* of its order again where that holds each of its types equally often: behind it the mesh is where
it was before, a few microbatches on, so that memory stays what it was. Meshes choose windows of their own around one
moment. Few microbatches are scheduled well in little time, and the middle of a long run repeats itself anyway.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from jaxpp.schedules.problem import Orders, Problem
from jaxpp.schedules.search.effort import Effort

_LONGEST: Final = 10
"""Microbatches in a window."""

_MOMENTS: Final = 24
"""At which windows are looked for, for each length."""

_UNITS: Final = 16
"""What it costs to run a task."""


def repeat(problem: Problem, orders: Orders, microbatches: int, effort: Effort) -> list[list[int]] | None:
    """The best orders for more microbatches that come of repeating a window; None where there is none.

    Args:
        problem: what `orders` solve, for fewer microbatches.
        orders: of which a window on each mesh is repeated.
        microbatches: to come to.
        effort: what it may cost.
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
    """Where the windows of an order start that hold each of its types `length` times."""
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
