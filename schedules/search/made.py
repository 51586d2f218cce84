"""Schedules of the library, as published or in an order for given costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, cast

from jaxpp.schedules import library
from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.search.improve import improve
from jaxpp.schedules.simulate import simulate

_FORWARDS_FIRST: Final = ("gpipe", "looped-bfs")


def make(name: str, *, meshes: int, microbatches: int, **options: object) -> Schedule:
    """Build a schedule of the library: `make("1f1b", meshes=4, microbatches=8)`.

    Published orders are for tasks and hops of certain times. With other `costs` they can be worse by a tenth and more
    than another order of the same tasks on the same meshes, in which no mesh keeps more activations than before:
    `improve` looks for one. The automatic schedules of Zero Bubble are made for the costs in any case, as published.

    Args:
        name: one of `names()`.
        meshes: number of meshes.
        microbatches: number of microbatches.
        options: what else that schedule takes, e.g. `chunks=2`; and `costs`, what its order is for (None: the published
            one), with `seconds`, what to spend on that, counted as in `search` (by default 1; schedules that are made
            for the costs in any case have none).

    Raises:
        ScheduleError: the name or an option is unknown, the schedule does not exist for these numbers, or it has no
            order for given costs, as all forwards of a stage come first.
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
    costs = replace(costs.merged(made.stages), contention=False)
    report = simulate(made, costs)
    hosts = [peak or math.inf for peak in report.peak_host_bytes()]
    limits = report.peak_activations("W")
    return replace(improve(made, costs, limits, host_bytes=hosts, seconds=seconds), name=made.name)
