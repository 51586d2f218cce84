"""Schedules of the library, as published or reordered for given costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, cast

from jaxpp.schedules import library
from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.search.improve import improve

_FORWARDS_FIRST: Final = ("gpipe", "looped-bfs")


def make(name: str, *, meshes: int, microbatches: int, **options: object) -> Schedule:
    """Builds a schedule of the library: `make("1f1b", meshes=4, microbatches=8)`.

    Published orders are made for certain times of tasks and hops. For other `costs`, another order of the same tasks
    may be faster by a tenth or more. `improve` searches for that order, in which no mesh keeps more activations than
    before. The automatic schedules of Zero Bubble take `costs` themselves, as published.

    Args:
        name: one of `names()`.
        meshes: number of meshes.
        microbatches: number of microbatches.
        options: the schedule's own options, e.g. `chunks=2`; `costs`, for which the order is made (None: the published
            order); and `seconds`, the effort for that order, counted as in `search` (by default 1). Schedules that take
            `costs` themselves have no `seconds`.

    Raises:
        ScheduleError: the name or an option is unknown, or the schedule does not exist for these numbers. With `costs`
            also if all forwards of a stage come first, because another order would mix them with backwards.
    """
    costs = options.get("costs")
    if costs is None or name not in library.LIBRARY or "costs" in library.options_of(name):
        given = {each: value for each, value in options.items() if each != "costs" or value is not None}
        return library.make(name, meshes=meshes, microbatches=microbatches, **given)
    costs = given_costs(cast("Costs", costs))
    seconds = cast("float", options.pop("seconds", 1.0))
    del options["costs"]
    made = library.make(name, meshes=meshes, microbatches=microbatches, **options)
    if name in _FORWARDS_FIRST:
        raise ScheduleError(
            f"{name}: costs would mix forwards and backwards, and here all forwards come first: leave them out, "
            "or take 1f1b"
        )
    costs = costs.merged(made.stages)
    report = simulate(made, costs)
    hosts = [peak or math.inf for peak in report.peak_host_bytes()]
    limits = report.peak_activations("W")
    return replace(improve(made, costs, limits, host_bytes=hosts, seconds=seconds), name=made.name)
