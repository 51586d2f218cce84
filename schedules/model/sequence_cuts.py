"""Cuts of a sequence into slices that take equal times."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from jaxpp.schedules.errors import ScheduleError, multiple_of, whole_number
from jaxpp.schedules.model.values import shares as checked


def equal_cuts(
    shares: Sequence[float] | Sequence[Sequence[float]], length: int, slices: int | None = None, multiple: int = 1
) -> list[int]:
    """Returns the lengths of slices of a sequence that take equal times (Seq1F1B, arXiv 2406.03488, section 3.2).

    The cost of a position is a constant, plus a part in proportion to the number of positions before it, to which it
    attends. Least squares fit both parts to the measured shares.

    Args:
        shares: the shares of slices of equal lengths in the time of a microbatch. `Costs.slices` has such shares, and
            `jaxpp.runtime.slice_shares` measures them. A list for each stage is averaged over the stages.
        length: the number of positions of the sequence.
        slices: the number of slices; by default the number of shares.
        multiple: a divisor of each length, such as the 128 of a TPU's tile.

    Returns:
        The lengths, for the `cuts` of `jaxpp.models.scan_slices`; their sum is `length`.

    Raises:
        ScheduleError: when the shares do not add up to 1, a number is wrong, or the length is not a multiple. Also when
            the sequence has fewer multiples than slices.
    """
    from scipy.optimize import nnls  # imported here, because it takes as long as importing all schedules

    rows = np.atleast_2d(np.array(checked(shares, "equal_cuts: shares"), float))
    if not rows.size:
        raise ScheduleError("equal_cuts: shares must be those of several slices, found none")
    given = cast("Sequence[float]", rows.mean(axis=0))
    count = len(given) if slices is None else whole_number(slices, "equal_cuts: slices", least=1)
    multiple = whole_number(multiple, "equal_cuts: multiple", least=1)
    what = f"equal_cuts: length, for {count} slices of multiples of {multiple},"
    length = whole_number(length, what, least=count * multiple)
    multiple_of(multiple, length, "equal_cuts: length", "each slice has a multiple of so many positions")
    number = np.arange(len(given))
    each, before = 1 / len(given), (2 * number + 1) / len(given) ** 2
    (flat, slope), _ = nnls(np.stack([np.full(len(given), each), before], axis=1), np.array(given))
    # The time up to x, a part of the sequence, is flat * x + slope * x**2.
    times = np.arange(1, count) / count * (flat + slope)
    ends = 2 * times / (flat + np.sqrt(flat**2 + 4 * slope * times))
    units = length // multiple
    bounds = [0]
    for position, end in enumerate(ends, 1):
        bounds.append(int(np.clip(round(end * units), bounds[-1] + 1, units - (count - position))))
    return [multiple * (last - first) for first, last in zip(bounds, [*bounds[1:], units], strict=True)]
