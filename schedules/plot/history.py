"""A picture of a search, drawn by matplotlib: the best value and the lower bound over its time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from jaxpp.schedules.plot.chart import saved
from jaxpp.schedules.search.history import Moment, proven_gap


def history_chart(moments: Sequence[Moment], suffix: str) -> bytes:
    """Returns the bytes of a chart of the moments of a search; `suffix` is "svg" or "png"."""
    return saved(lambda: _figure(moments), suffix)


def _figure(moments: Sequence[Moment]) -> Figure:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    seconds = [each.seconds for each in moments]
    values, bounds = [each.value for each in moments], [each.bound for each in moments]
    axes.step(seconds, values, where="post", color="#1f77b4", label=f"best value: {values[-1]:.6g}")
    axes.step(seconds, bounds, where="post", color="#7f7f7f", label=f"lower bound: {bounds[-1]:.6g}")
    axes.fill_between(seconds, bounds, values, step="post", color="#1f77b4", alpha=0.12, linewidth=0)
    # The first value of a search may be many times the last one. The axis is limited to values near the last.
    gap = max(values[-1] - bounds[-1], 0.02 * values[-1])
    axes.set_ylim(bounds[-1] - gap, min(max(filter(math.isfinite, values)), values[-1] + 5 * gap) + gap / 2)
    axes.set_xlim(0, seconds[-1] or None)
    axes.set_xlabel("seconds of counted work")
    axes.set_title(f"gap {proven_gap(values[-1], bounds[-1]):.1%}", fontsize="medium")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure
