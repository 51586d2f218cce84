"""`jaxpp-schedule`: list, show, simulate, compare, find, convert and draw schedules.

The result goes to stdout (or `-o FILE`), everything else to stderr. Exit codes: 0; 1 for bad input, with one message
and nothing on stdout; 2 for bad usage; 70 for a bug. `jaxpp-schedule COMMAND --help` has an example of each command.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from jaxpp import schedules as S
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.given import library_name
from jaxpp.schedules.plot import history_pen, picture
from jaxpp.schedules.plot.pages import trace_page
from jaxpp.schedules.search import Found
from jaxpp.tools import schedule_tables as tables
from jaxpp.tools import streams
from jaxpp.tools.schedule_arguments import make_parser
from jaxpp.tools.schedule_input import UsageError, check_options, load_costs, load_schedule, load_trace
from jaxpp.tools.search_progress import progress_of

OK, BAD_INPUT, INTERNAL_ERROR = 0, 1, 70


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool, in this process, and returns its exit code. `argv` has the arguments after the program's name."""
    options = make_parser(__doc__ or "", _COMMANDS).parse_args(argv)
    try:
        check_options(options)
        result, path = options.command(options), getattr(options, "output", "-")
        if not isinstance(result, (str, bytes)):
            result = tables.render(result) if path == "-" else str(result)
        streams.write(path, result)
    except UsageError as error:
        options.usage.error(str(error))
    except streams.InputError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except S.ScheduleError as error:
        print(f"jaxpp-schedule: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        raise
    except (MemoryError, OverflowError):
        print("jaxpp-schedule: error: the numbers are too large for this computer", file=sys.stderr)
        return BAD_INPUT
    except Exception as error:  # the boundary of the tool: no traceback reaches its user
        print(f"jaxpp-schedule: error: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        return INTERNAL_ERROR
    return OK


def _report(options: argparse.Namespace) -> Report:
    return S.simulate(load_schedule(options.name, options), load_costs(options))


def _list(options: argparse.Namespace) -> RenderableType:
    """List the schedules of the library, with their papers and options.

    example: jaxpp-schedule list
    """
    return tables.library()


def _show(options: argparse.Namespace) -> RenderableType:
    """Print the grid of a schedule, in colour on a terminal.

    example: jaxpp-schedule show interleaved-1f1b --meshes 4 --microbatches 8 --chunks 2
    """
    return tables.grid(load_schedule(options.name, options))


def _simulate(options: argparse.Namespace) -> RenderableType | str:
    """Print how long a schedule takes, its bubbles, and the memory of each mesh.

    example: jaxpp-schedule simulate zb-h1 --meshes 4 --microbatches 8 --weight-grad 0.7 --hop 0.1
    """
    report = _report(options)
    return f"{json.dumps(tables.numbers(report), indent=2)}\n" if options.json else tables.summary(report)


def _compare(options: argparse.Namespace) -> RenderableType:
    """Compare schedules, the shortest makespan first.

    example: jaxpp-schedule compare 1f1b zb-v gis{chunks=4} mine.txt --meshes 4 --microbatches 8 --costs costs.toml
    """
    costs = load_costs(options)
    rows: list[tuple[str, Report | S.ScheduleError]] = []
    for name in options.names:
        try:
            made = load_schedule(name, options)
            # Costs of more stages than a schedule has are costs of parts of its stages.
            rows.append((name, S.simulate(made, costs.merged(made.stages))))
        except S.ScheduleError as error:
            if library_name(name) is None:
                raise
            rows.append((name, error))
    return tables.comparison(rows)


def _search(options: argparse.Namespace) -> RenderableType:
    """Find a schedule that is short for given costs and within given memory, and print its grid.

    example: jaxpp-schedule search --meshes 4 --microbatches 8 --placement v --memory-limit 4 --seconds 5 -o best.txt
    """
    costs, placement = load_costs(options), options.placement
    if options.after:
        if not isinstance(placement, S.Placement):
            raise S.ScheduleError(f"--after goes with --placement MESHES, such as 0,1,2, found {placement}")
        placement = replace(placement, after=tuple(map(tuple, options.after)))
    return _looked_for(
        options,
        partial(
            S.search,
            **_wanted(options),
            costs=costs,
            placement=placement,
            chunks=options.chunks,
            split_backward=options.split_backward,
        ),
        costs,
    )


def _improve(options: argparse.Namespace) -> RenderableType:
    """Find a better order for the tasks of a schedule, of any kinds, and print its grid.

    example: jaxpp-schedule improve mine.txt --costs costs.toml --memory-limit 4 --seconds 5 -o better.txt
    """
    costs = load_costs(options)
    schedule = load_schedule(options.name, options)
    wanted = {name: each for name, each in _wanted(options).items() if name not in ("meshes", "microbatches")}
    return _looked_for(options, partial(S.improve, schedule, costs, change=options.change, **wanted), costs)


def _looked_for(options: argparse.Namespace, look: Callable[..., Found], costs: S.Costs) -> RenderableType:
    """Looks for a schedule, reports on the search, and returns the grid."""
    path = options.history
    draw = history_pen(path) if path else None  # raises for a bad name before the search, which may be long
    for written in (path, options.output):
        folder = Path(written or "-").parent
        if written and written != "-" and not os.access(folder, os.W_OK):
            reason = "Permission denied" if folder.is_dir() else "No such file or directory"
            raise streams.refused(written, f"cannot write: {reason}")
    with progress_of(sys.stderr) as progress:
        found = look(progress=progress)
    print(tables.found(found, options.objective, costs.unit), file=sys.stderr)
    if draw:
        streams.write(path, draw(found))
    return tables.grid(found)


def _tune(options: argparse.Namespace) -> str:
    """Rank all schedules of the library and what a search finds, for given costs and within given memory.

    example: jaxpp-schedule tune --meshes 4 --microbatches 8 --costs costs.toml --memory-limit 4
    """
    costs = load_costs(options)
    with progress_of(sys.stderr) as progress:
        return f"{S.tune(costs, **_wanted(options), progress=progress)}\n"


def _convert(options: argparse.Namespace) -> str:
    """Print a schedule as a grid, as one of PyTorch's tables, or simulated as a trace for Perfetto.

    example: jaxpp-schedule convert 1f1b --meshes 4 --microbatches 8 --to csv -o 1f1b.csv
    """
    if options.to == "trace":
        return _report(options).to_chrome_trace()
    schedule = load_schedule(options.name, options)
    return schedule.to_csv(options.communicate) if options.to == "csv" else f"{schedule}\n"


def _plot(options: argparse.Namespace) -> bytes:
    """Draw a simulated schedule or a trace of a step: SVG, PNG, or an HTML page that zooms.

    example: jaxpp-schedule plot zb-v --meshes 4 --microbatches 8 -o zb-v.html
    """
    name, trace = options.name, load_trace(options.name, options)
    if trace is None:
        if options.output is None:
            raise UsageError("the following arguments are required: -o/--output")
        return picture(_report(options), options.output)
    path = options.output = options.output or f"{os.path.splitext(name)[0]}.html"
    if os.path.splitext(path)[1].lower() != ".html":
        raise streams.refused(path, "a trace is drawn as a page: expected a name that ends in .html")
    return trace_page(trace, os.path.basename(name))


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], RenderableType | str | bytes]]] = {
    "list": _list,
    "show": _show,
    "simulate": _simulate,
    "compare": _compare,
    "search": _search,
    "improve": _improve,
    "tune": _tune,
    "convert": _convert,
    "plot": _plot,
}


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the given options of `search`, `improve` and `tune`. Each command has its own default for the time."""
    limits = ("memory_limit", "memory_bytes", "host_bytes", "released_at")
    names = ("meshes", "microbatches", *limits, "objective", "seconds", "seed")
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def cli() -> None:
    """Runs the command `jaxpp-schedule`."""
    streams.finish(main)


if __name__ == "__main__":
    cli()
