"""The input of `jaxpp-schedule`: schedules by name or from files, their options, and costs."""

import argparse
import dataclasses
import os
from typing import Any, Final

from jaxpp import schedules as S
from jaxpp.schedules.engine.read_trace import ReadTrace, is_trace, read_chrome_trace
from jaxpp.schedules.given import FileError, WordsError, library_name, library_options, parse_file
from jaxpp.schedules.library import options_of
from jaxpp.tools import streams

COSTS: Final = ("forward", "input_grad", "weight_grad", "hop")
"""The costs that have a flag each."""


class UsageError(Exception):
    """The command line makes no sense. The message is one line."""


def check_options(options: argparse.Namespace) -> None:
    """Refuses flags that no schedule named on the command line takes.

    Raises:
        UsageError: such a flag is given; the message names it.
    """
    given = vars(options)
    names = [library_name(name) for name in given.get("names", [given.get("name")]) if name]
    for option in library_options().values() if names else ():
        if given[option.name] is not None and not any(name and option.name in options_of(name) for name in names):
            flag = option.name.replace("_", "-")
            raise UsageError(f"no schedule here takes --{flag}, which is for {', '.join(option.schedules)}")


def load_schedule(text: str, options: argparse.Namespace) -> S.Schedule:
    """Returns the schedule that `jaxpp.schedules.resolve` makes of `text` and the flags; for `-`, that in stdin.

    Raises:
        UsageError: the numbers of meshes and microbatches are not given, or an option is wrong.
        InputError: the file cannot be read, or holds no schedule.
        ScheduleError: the library has no such schedule.
    """
    name = library_name(text)
    if name is not None and None in (options.meshes, options.microbatches):
        raise UsageError(f"{name} is a schedule of the library: give --meshes and --microbatches")
    try:
        if text == "-":
            schedule = parse_file(streams.read(text, "a schedule: a grid or a table"), text)
        else:
            flags: dict[str, Any] = _flags_for(name, options)
            schedule = S.resolve(text, meshes=options.meshes, microbatches=options.microbatches, **flags)
    except WordsError as error:
        raise UsageError(str(error)) from None
    except FileError as error:
        raise streams.refused(streams.display_name(error.path), error.reason) from None
    for what in ("meshes", "microbatches") if name is None else ():
        given, found = getattr(options, what), getattr(schedule, what)
        if given not in (None, found):
            raise streams.refused(streams.display_name(text), f"the schedule has {found} {what}, not {given}")
    return schedule


def load_trace(path: str, options: argparse.Namespace) -> ReadTrace | None:
    """Returns the trace in a file whose name ends in `.json`; None for other names, and for other files.

    Raises:
        UsageError: options for schedules are given with a trace.
        InputError: the file cannot be read, or is a damaged trace.
    """
    if os.path.splitext(path)[1].lower() != ".json":
        return None
    data = streams.read(path, "a trace of a step, or a schedule").decode(errors="replace")
    if not is_trace(data):
        return None
    given = [name for name in ("meshes", "microbatches", "costs", *COSTS) if getattr(options, name) is not None]
    if given:
        name, option = streams.display_name(path), given[0].replace("_", "-")
        raise UsageError(f"{name} is a trace, which has its own times: leave out --{option}")
    try:
        return read_chrome_trace(data)
    except S.ScheduleError as error:
        raise streams.refused(streams.display_name(path), str(error)) from None


def _flags_for(name: str | None, options: argparse.Namespace) -> dict[str, object]:
    """Returns the flags as options of a schedule of the library."""
    values: dict[str, object] = {
        option.name: getattr(options, option.name)
        for option in library_options().values()
        if name and option.name in options_of(name) and getattr(options, option.name) is not None
    }
    if name is not None and "costs" in options_of(name):
        values["costs"] = load_costs(options)
    return values


def load_costs(options: argparse.Namespace) -> S.Costs:
    """Returns the costs of `--costs FILE`; flags for single costs replace those of the file.

    Raises:
        InputError: the file cannot be read.
        ScheduleError: it holds no costs, or one is not a number that makes sense.
    """
    path = options.costs
    try:
        costs = S.Costs() if path is None else S.Costs.load(path)
    except OSError as error:
        raise streams.refused(options.costs, f"cannot read: {error.strerror}") from None
    given = {name: getattr(options, name) for name in COSTS}
    return dataclasses.replace(costs, **{name: value for name, value in given.items() if value is not None})
