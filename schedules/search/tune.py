"""A comparison of the whole library with the best schedule of a search, on given costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.engine.memory import Release
from jaxpp.schedules.engine.problem import Limits, Objective
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.library import LIBRARY, make, options_of
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement
from jaxpp.schedules.search.changes import Kept
from jaxpp.schedules.search.found import memory_limits
from jaxpp.schedules.search.history import ProgressCallback
from jaxpp.schedules.search.search import search


@dataclass(frozen=True)
class Ranked:
    """A schedule on the costs.

    Attributes:
        name: the name of the schedule with its options, such as `hanayo chunks=4`.
        schedule: None if it does not exist for these numbers.
        report: the report of its simulation.
        value: the value of the objective; infinite without a report.
        peak: the most that any mesh keeps, in microbatches.
        fits: whether every mesh is within the memory limit.
        why: the reason if there is no report.
    """

    name: str
    schedule: Schedule | None = None
    report: Report | None = None
    value: float = math.inf
    peak: float = math.inf
    fits: bool = False
    why: str = ""


@dataclass(frozen=True)
class Tuned:
    """The ranked schedules: those that fit the memory by their value, then those that do not fit, then impossible ones.

    Attributes:
        rows: one for each schedule.
        objective: the objective that ranks them.
    """

    rows: tuple[Ranked, ...]
    objective: Objective

    @property
    def best(self) -> Ranked:
        """The best schedule that fits. The search always finds one."""
        return self.rows[0]

    def __str__(self) -> str:
        """Returns a table in plain text.

        Schedules that are impossible for the same reason share a line below the table.
        """
        titles = ("", "schedule", "makespan", "longest stage", "bubble", "peak", "")
        absent: dict[str, list[str]] = {}
        for row in self.rows:
            if row.report is None:
                absent.setdefault(row.why, []).append(row.name)
        together = {why: names for why, names in absent.items() if len(names) > 1}
        lines = [titles, *(_cells(rank, row) for rank, row in enumerate(self.rows, 1) if row.why not in together)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        left = {1, len(titles) - 1}
        table = [
            "  ".join(
                cell.ljust(width) if column in left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*table, *(f"{', '.join(names)}: {why}" for why, names in together.items())])


def tune(
    costs: Costs,
    *,
    meshes: int,
    microbatches: int,
    memory_limit: Limits = None,
    released_at: Release = "W",
    memory_bytes: Limits = None,
    objective: Objective = "makespan",
    seconds: float = 5.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Tuned:
    """Compares every schedule of the library, and the best one that a search finds on any placement.

    Args:
        costs: the costs of tasks and hops. If they are lists for more stages than a schedule has, neighbours are added
            up.
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        memory_limit: how many microbatches' activations a mesh may keep; a number, or one per mesh.
        released_at: when activations are released: "W", "B" or "half".
        memory_bytes: the limit in the bytes of the costs instead; a number, or one per mesh.
        objective: "makespan" or "longest_stage".
        seconds: of the search.
        seed: of the search.
        progress: of the search.

    Raises:
        ScheduleError: an argument is wrong, or no schedule fits the memory.
    """
    costs = given_costs(costs)
    found = search(
        meshes,
        microbatches,
        costs,
        memory_limit,
        placement="any",
        released_at=released_at,
        memory_bytes=memory_bytes,
        objective=objective,
        seconds=seconds,
        seed=seed,
        progress=progress,
    )
    kept = Kept(memory_limits(meshes, memory_limit, memory_bytes, released_at, costs))

    def row(name: str, made: Schedule | ScheduleError) -> Ranked:
        if isinstance(made, ScheduleError):
            return Ranked(name, why=str(made))
        try:
            report = simulate(made, costs.merged(made.stages))
        except ScheduleError as error:
            return Ranked(name, made, why=str(error))
        peaks = report.peak_activations(released_at)
        return Ranked(name, made, report, getattr(report, objective), max(peaks), not kept.excess(report))

    rows = [row(f"search: {_shape(found)}", found)]
    rows += [row(name, made) for name, made in _library(meshes, microbatches, costs)]
    rows.sort(key=lambda each: (not each.fits, each.value))
    return Tuned(tuple(rows), objective)


def _library(meshes: int, microbatches: int, costs: Costs) -> Iterator[tuple[str, Schedule | ScheduleError]]:
    """Yields each schedule of the library, or the error that says why it does not exist.

    A schedule with several stages per mesh is tried with 2, 3 and 4 of them, as far as the stages of the costs divide.
    """
    stages = costs.stages or 4 * meshes
    for name in LIBRARY:
        parameters = options_of(name)
        options: dict[str, object] = {"costs": costs.merged(meshes)} if "costs" in parameters else {}
        usual = parameters["chunks"].default if "chunks" in parameters else 1
        several = [each for each in (2, 3, 4) if stages % (each * meshes) == 0] or [usual]
        for chunks in [1] if usual == 1 else several:
            label = name if usual == 1 else f"{name} chunks={chunks}"
            if usual != 1:
                options["chunks"] = chunks
            try:
                made = make(name, meshes=meshes, microbatches=microbatches, **options)
            except ScheduleError as error:
                without = {option: value for option, value in options.items() if option != "costs"}
                if "costs" not in options or not _is_of_other_stages(name, meshes, microbatches, without):
                    yield label, error
            else:
                if not made.placement.after:  # graphs of stages are for other models
                    yield label, made


def _is_of_other_stages(name: str, meshes: int, microbatches: int, options: dict[str, object]) -> bool:
    """Whether a schedule that does not accept the costs is a graph of stages, which is for other models."""
    try:
        return bool(make(name, meshes=meshes, microbatches=microbatches, **options).placement.after)
    except ScheduleError:
        return False


def _shape(found: Schedule) -> str:
    """Returns the placement in words: its name if it has one, and its stages per mesh."""
    placement, meshes = found.placement, found.meshes
    chunks = found.stages // meshes
    if placement == Placement.looped(meshes, chunks):
        return "linear" if chunks == 1 else f"looped chunks={chunks}"
    if placement == Placement.waves(meshes, chunks):
        return "v" if chunks == 2 else f"waves chunks={chunks}"
    return f"placement {placement}"


def _cells(rank: int, row: Ranked) -> tuple[str, ...]:
    if row.report is None:
        return ("", row.name, "", "", "", "", row.why)
    report = row.report
    times = (f"{report.makespan:.6g}", f"{report.longest_stage:.6g}", f"{report.bubble:.1%}", f"{row.peak:.3g}")
    twice = row.schedule and any(len(homes) > 1 for homes in row.schedule.placement.homes)
    note = "" if row.fits else "does not fit the memory"
    return (str(rank) if row.fits else "", row.name, *times, note or ("keeps weights twice" if twice else ""))
