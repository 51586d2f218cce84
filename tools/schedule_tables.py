"""The output of `jaxpp-schedule`: coloured grids and tables on a terminal, plain text in a pipe."""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jaxpp import schedules as S
from jaxpp._plugins import plug_ins
from jaxpp.schedules.engine.memory import Release
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.library import LIBRARY, PLUG_INS, function_of, names, options_of
from jaxpp.schedules.search import Found

_RELEASES: Final[tuple[Release, ...]] = ("W", "B", "half")
_COLOURS: Final = {"F": "bright_blue", "B": "red", "I": "yellow", "W": "green", "[a-z_]+": "magenta"}
_PAPER: Final = re.compile(r" \((?P<paper>(?:[^()]* )?(?:arXiv|ICML) [^()]*|[^()]*; [^()]*)\)")


def render(content: RenderableType) -> str:
    """Returns the text for stdout: with colours, and as wide as the window, if it is a terminal."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000
    with console.capture() as capture:
        is_grid = isinstance(content, Text)
        console.print(content, soft_wrap=is_grid, end="" if is_grid else "\n")
    text = capture.get()
    if not console.is_terminal:
        text = "\n".join(map(str.rstrip, text.split("\n")))
    # Characters that the stream's encoding lacks (in the name of a file) are escaped.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def grid(schedule: S.Schedule) -> Text:
    """Returns the schedule's text, with a colour for each kind of task."""
    text = Text(f"{schedule}\n")
    for kind, colour in _COLOURS.items():
        text.highlight_regex(rf"(?<![^\s+])\d+{kind}\d+(\.\d+)?(?![^\s+])", colour)
    text.highlight_regex(r"(?<=\s)\.(?=\s)", "dim")
    return text


def library() -> Table:
    """Makes a table of the schedules of the library and of plug-ins: their descriptions, papers and options."""
    table = _table("name", "what", "from", "options")
    for name in names():
        try:
            summary = (inspect.getdoc(function_of(name)) or "").partition("\n")[0].removesuffix(".")
        except S.ScheduleError as error:
            table.add_row(name, str(error), "", "")
            continue
        paper = _PAPER.search(summary)
        options = [
            f"{option}={parameter.default}" if parameter.default not in (None, parameter.empty) else option
            for option, parameter in options_of(name).items()
        ]
        table.add_row(name, _PAPER.sub("", summary), paper["paper"] if paper else "", " ".join(options).lower())
    for name, plug_in in plug_ins(PLUG_INS, LIBRARY).items():
        if name in LIBRARY:
            table.add_row(name, str(plug_in.taken("jaxpp")), "", "")
    return table


def summary(report: Report) -> RenderableType:
    """Makes a table of the times of a run, and of the memory of each mesh."""
    schedule, unit = report.schedule, report.costs.unit
    times = _table("", "time", "bubble")
    times.add_row("makespan", _time(report.makespan, unit), _share(report.bubble))
    times.add_row("longest stage", _time(report.longest_stage, unit), _share(report.bubble_of_longest_stage))
    peaks = {release: report.peak_activations(release) for release in _RELEASES}
    in_bytes = report.peak_bytes() if report.memory.unit == "bytes" else []
    memory = _table("mesh", *(f"released at {release}" for release in _RELEASES), *["peak bytes"] * bool(in_bytes))
    for mesh in range(schedule.meshes):
        row = [f"{peaks[release][mesh]:.6g}" for release in _RELEASES]
        memory.add_row(str(mesh), *row, *(f"{each:.6g}" for each in in_bytes[mesh : mesh + 1]))
    size = f"{schedule.meshes} meshes, {schedule.stages} stages, {schedule.microbatches} microbatches"
    return Group(
        Text(f"{schedule.name}: {size}\n"), times, Text("\npeak activations, in microbatches of a mesh\n"), memory
    )


def numbers(report: Report) -> Mapping[str, object]:
    """Returns the numbers of `summary`, for scripts."""
    schedule = report.schedule
    return {
        "schedule": schedule.name,
        "meshes": schedule.meshes,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "unit": report.costs.unit,
        "makespan": report.makespan,
        "longest_stage": report.longest_stage,
        "bubble": report.bubble,
        "bubble_of_longest_stage": report.bubble_of_longest_stage,
        "peak_activations": {release: report.peak_activations(release) for release in _RELEASES},
        "peak_bytes": report.peak_bytes() if report.memory.unit == "bytes" else None,
    }


def comparison(rows: Sequence[tuple[str, Report | S.ScheduleError]]) -> Table:
    """Makes a table with a row per schedule, the shortest makespan first; schedules that do not exist have an error."""
    reports = [(name, found) for name, found in rows if isinstance(found, Report)]
    errors = [(name, found) for name, found in rows if isinstance(found, S.ScheduleError)]
    in_bytes = any(report.memory.unit == "bytes" for _, report in reports)
    columns = ["makespan", "longest stage", "bubble", "peak activations", *["peak bytes"] * in_bytes]
    table = _table("schedule", *columns, *["why not"] * bool(errors))
    for name, report in sorted(reports, key=lambda row: row[1].makespan):
        cells = [_time(time, report.costs.unit) for time in (report.makespan, report.longest_stage)]
        cells += [_share(report.bubble), f"{max(report.peak_activations()):.6g}"]
        cells += [f"{max(report.peak_bytes()):.6g}"] * in_bytes
        table.add_row(name, *cells)
    for name, error in errors:
        table.add_row(name, *["-"] * len(columns), str(error))
    return table


def found(schedule: Found, objective: str, unit: str) -> str:
    """Describes in one line how good the schedule of a search is."""
    words = f"{objective.replace('_', ' ')} {_time(schedule.value, unit)}"
    return f"{words}; at least {_time(schedule.lower_bound, unit)}, gap {_share(schedule.gap)}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _time(time: float, unit: str) -> str:
    return f"{time:.6g} {unit}"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
