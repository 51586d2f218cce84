"""`jaxpp-schedule`: list, show, simulate, compare, find, convert and draw schedules.

The result goes to stdout (or `-o FILE`), everything else to stderr. Exit codes: 0; 1 for bad input, with one message
and nothing on stdout; 2 for bad usage; 70 for a bug. `jaxpp-schedule COMMAND --help` has an example of each command.
"""

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from rich.console import RenderableType

from jaxpp import schedules as S
from jaxpp._system import write_file
from jaxpp.schedules.formats.picture import history_pen, picture
from jaxpp.schedules.given import library_name
from jaxpp.tools import schedule_tables as tables
from jaxpp.tools import streams
from jaxpp.tools.schedule_arguments import make_parser
from jaxpp.tools.schedule_input import UsageError, check_options, load_costs, load_schedule
from jaxpp.tools.search_progress import progress_of

OK, BAD_INPUT, BAD_USAGE, INTERNAL_ERROR = 0, 1, 2, 70


@dataclass(frozen=True)
class _Invocation:
    """The arguments of one invocation, and the streams that a command may read and report to."""

    options: argparse.Namespace
    stdin: TextIO
    stderr: TextIO

    def schedule(self, name: str) -> S.Schedule:
        return load_schedule(name, self.options, self.stdin)

    def report(self, name: str) -> S.Report:
        return S.simulate(self.schedule(name), load_costs(self.options))


def main(
    argv: Sequence[str] | None = None,
    *,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Runs the tool, in this process, and returns its exit code.

    Args:
        argv: the arguments after the program's name; None: those of this process.
        stdin: the stream that is read for the file `-`.
        stdout: the stream for the result.
        stderr: the stream for messages and progress.
    """
    stdin, stdout, stderr = streams.standard(stdin, stdout, stderr)
    parser = make_parser(__doc__ or "", _COMMANDS)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            options = parser.parse_args(argv)
    except SystemExit as stop:  # argparse exits with 0 after --help, 2 after an error
        return stop.code if isinstance(stop.code, int) else BAD_USAGE
    try:
        check_options(options)
        result = options.command(_Invocation(options, stdin, stderr))
        _write(result, getattr(options, "output", "-"), stdout)
    except UsageError as error:
        print(f"{options.usage.format_usage()}{options.usage.prog}: error: {error}", file=stderr)
        return BAD_USAGE
    except streams.InputError as error:
        print(error, file=stderr)
        return BAD_INPUT
    except S.ScheduleError as error:
        print(f"jaxpp-schedule: error: {error}", file=stderr)
        return BAD_INPUT
    except BrokenPipeError:
        raise
    except (MemoryError, OverflowError):
        print("jaxpp-schedule: error: the numbers are too large for this computer", file=stderr)
        return BAD_INPUT
    except Exception as error:  # the boundary of the tool: no traceback reaches its user
        print(f"jaxpp-schedule: error: internal error: {type(error).__name__}: {error}", file=stderr)
        return INTERNAL_ERROR
    return OK


def _list(call: _Invocation) -> RenderableType:
    """List the schedules of the library, with their papers and options.

    example: jaxpp-schedule list
    """
    return tables.library()


def _show(call: _Invocation) -> RenderableType:
    """Print the grid of a schedule, in colour on a terminal.

    example: jaxpp-schedule show interleaved-1f1b --meshes 4 --microbatches 8 --chunks 2
    """
    return tables.grid(call.schedule(call.options.name))


def _simulate(call: _Invocation) -> RenderableType | str:
    """Print how long a schedule takes, its bubbles, and the memory of each mesh.

    example: jaxpp-schedule simulate zb-h1 --meshes 4 --microbatches 8 --weight-grad 0.7 --hop 0.1
    """
    report = call.report(call.options.name)
    return f"{json.dumps(tables.numbers(report), indent=2)}\n" if call.options.json else tables.summary(report)


def _compare(call: _Invocation) -> RenderableType:
    """Compare schedules, the shortest makespan first.

    example: jaxpp-schedule compare 1f1b zb-v gis{chunks=4} mine.txt --meshes 4 --microbatches 8 --costs costs.toml
    """
    costs = load_costs(call.options)
    rows: list[tuple[str, S.Report | S.ScheduleError]] = []
    for name in call.options.names:
        try:
            made = call.schedule(name)
            # Costs of more stages than a schedule has are costs of parts of its stages.
            rows.append((name, S.simulate(made, costs.merged(made.stages))))
        except S.ScheduleError as error:
            if library_name(name) is None:
                raise
            rows.append((name, error))
    return tables.comparison(rows)


def _search(call: _Invocation) -> RenderableType:
    """Find a schedule that is short for given costs and within given memory, and print its grid.

    example: jaxpp-schedule search --meshes 4 --microbatches 8 --placement v --memory-limit 4 --seconds 5 -o best.txt
    """
    options = call.options
    costs, placement = load_costs(options), options.placement
    if options.after:
        if not isinstance(placement, S.Placement):
            raise S.ScheduleError(f"--after goes with --placement MESHES, such as 0,1,2, found {placement}")
        placement = replace(placement, after=tuple(map(tuple, options.after)))
    return _looked_for(
        call,
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


def _improve(call: _Invocation) -> RenderableType:
    """Find a better order for the tasks of a schedule, of any kinds, and print its grid.

    example: jaxpp-schedule improve mine.txt --costs costs.toml --memory-limit 4 --seconds 5 -o better.txt
    """
    options, costs = call.options, load_costs(call.options)
    schedule = call.schedule(options.name)
    wanted = {name: each for name, each in _wanted(options).items() if name not in ("meshes", "microbatches")}
    return _looked_for(call, partial(S.improve, schedule, costs, change=options.change, **wanted), costs)


def _looked_for(call: _Invocation, look: Callable[..., S.Found], costs: S.Costs) -> RenderableType:
    """Looks for a schedule, reports on the search, and returns the grid."""
    path = call.options.history
    draw = history_pen(path) if path else None  # raises for a bad name before the search, which may be long
    for written in (path, call.options.output):
        folder = Path(written or "-").parent
        if written and written != "-" and not os.access(folder, os.W_OK):
            reason = "Permission denied" if folder.is_dir() else "No such file or directory"
            raise streams.InputError(f"{written}: error: cannot write: {reason}")
    with progress_of(call.stderr) as progress:
        found = look(progress=progress)
    print(tables.found(found, call.options.objective, costs.unit), file=call.stderr)
    if draw:
        _write(draw(found), path, call.stderr)
    return tables.grid(found)


def _tune(call: _Invocation) -> str:
    """Rank all schedules of the library and what a search finds, for given costs and within given memory.

    example: jaxpp-schedule tune --meshes 4 --microbatches 8 --costs costs.toml --memory-limit 4
    """
    costs = load_costs(call.options)
    with progress_of(call.stderr) as progress:
        return f"{S.tune(costs, **_wanted(call.options), progress=progress)}\n"


def _convert(call: _Invocation) -> str:
    """Print a schedule as a grid, as one of PyTorch's tables, or simulated as a trace for Perfetto.

    example: jaxpp-schedule convert 1f1b --meshes 4 --microbatches 8 --to csv -o 1f1b.csv
    """
    name, form = call.options.name, call.options.to
    if form == "trace":
        return call.report(name).to_chrome_trace()
    schedule = call.schedule(name)
    return schedule.to_csv(call.options.communicate) if form == "csv" else f"{schedule}\n"


def _plot(call: _Invocation) -> bytes:
    """Draw a simulated schedule: SVG, PNG, or an HTML page that zooms.

    example: jaxpp-schedule plot zb-v --meshes 4 --microbatches 8 -o zb-v.html
    """
    return picture(call.report(call.options.name), call.options.output)


_COMMANDS: Final[Mapping[str, Callable[[_Invocation], RenderableType | str | bytes]]] = {
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


def _write(result: RenderableType | str | bytes, path: str, stdout: TextIO) -> None:
    try:
        if path != "-" or isinstance(result, bytes):
            write_file(path, result if isinstance(result, bytes) else str(result).encode())
        else:
            stdout.write(result if isinstance(result, str) else tables.render(result, stdout))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise streams.InputError(f"{path}: error: cannot write: {error.strerror}") from None


def cli() -> None:
    """Runs the command `jaxpp-schedule`."""
    streams.finish(main)


if __name__ == "__main__":
    cli()
