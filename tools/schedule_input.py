"""What `jaxpp-schedule` is given: schedules by name or from files, their options, and costs."""

import argparse
import dataclasses
import inspect
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Final, TextIO

from jaxpp import schedules as S
from jaxpp.schedules.library import LIBRARY
from jaxpp.tools import streams
from jaxpp.tools.streams import InputError

Value = int | bool | S.Placement

COSTS: Final = ("forward", "input_grad", "weight_grad", "hop")
"""The costs that have a flag each."""

_NAME: Final = re.compile(r"(?P<name>[^{}]+)(?:\{(?P<options>[^{}]*)\})?")
_TYPES: Final[dict[str, type[Value]]] = {"int": int, "bool": bool, "Placement": S.Placement}
_WANTED: Final = {int: "a whole number", bool: "true or false", S.Placement: "the mesh of each stage, such as 0,1,1,0"}


class UsageError(Exception):
    """The command line makes no sense; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Option:
    """What schedules of the library take beside the numbers of meshes and microbatches.

    Attributes:
        name: of the parameter.
        type: int, bool or Placement.
        about: what it means.
        schedules: the names of those that take it.
    """

    name: str
    type: type[Value]
    about: str
    schedules: list[str] = dataclasses.field(default_factory=list[str])

    def convert(self, text: str) -> Value:
        """The value that `text` stands for.

        Raises:
            UsageError: it is none.
        """
        try:
            if self.type is S.Placement:
                return S.Placement.of(*(tuple(map(int, word.split("+"))) for word in re.split("[, ]+", text.strip())))
            return {"true": True, "false": False}[text] if self.type is bool else int(text)
        except (ValueError, KeyError):
            raise UsageError(f"{self.name} must be {_WANTED[self.type]}, found {text!r}") from None


@cache
def library_options() -> Mapping[str, Option]:
    """The options of the whole library by name, from the signatures and docstrings of its functions."""
    found: dict[str, Option] = {}
    for name, function in LIBRARY.items():
        for parameter in list(inspect.signature(function).parameters.values())[2:]:
            kind = _TYPES.get(parameter.annotation.partition(" ")[0])
            about = re.search(rf"\n *{parameter.name}: ([^,;.]*)", inspect.getdoc(function) or "")
            if kind is not None and about is not None:
                option = Option(parameter.name, kind, about[1])
                found.setdefault(parameter.name, option).schedules.append(name)
    return found


def check_options(options: argparse.Namespace) -> None:
    """Refuse flags that no schedule named on the command line takes.

    Raises:
        UsageError: there is one.
    """
    given = vars(options)
    names = [name.partition("{")[0] for name in given.get("names", [given.get("name")]) if name]
    for option in library_options().values() if names else ():
        if given[option.name] is not None and not any(name in option.schedules for name in names):
            flag = option.name.replace("_", "-")
            raise UsageError(f"no schedule here takes --{flag}, which is for {', '.join(option.schedules)}")


def load_schedule(text: str, options: argparse.Namespace, stdin: TextIO) -> S.Schedule:
    """The schedule `NAME`, `NAME{option=value ...}`, the file of that name, or what `stdin` holds for `-`.

    Raises:
        UsageError: the numbers of meshes and microbatches are not given, or an option is wrong.
        InputError: the file cannot be read, or holds no schedule.
        ScheduleError: the library has no such schedule.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise UsageError(f"expected a schedule such as gis or gis{{chunks=4 group=2}}, found {text!r}")
    name = match["name"]
    if name not in LIBRARY and (name == "-" or "." in name or os.sep in name or os.path.exists(name)):
        return _read_schedule(name, options, stdin)
    if name in LIBRARY and None in (options.meshes, options.microbatches):
        raise UsageError(f"{name} is a schedule of the library: give --meshes and --microbatches")
    values: dict[str, object] = {
        option.name: getattr(options, option.name)
        for option in library_options().values()
        if name in option.schedules and getattr(options, option.name) is not None
    }
    for word in (match["options"] or "").split():
        key, _, value = word.partition("=")
        option = library_options().get(key)
        values[key] = option.convert(value) if option else value
    if name in LIBRARY and "costs" in inspect.signature(LIBRARY[name]).parameters:
        values["costs"] = load_costs(options)
    return S.make(name, meshes=options.meshes, microbatches=options.microbatches, **values)


def _read_schedule(path: str, options: argparse.Namespace, stdin: TextIO) -> S.Schedule:
    name = streams.display_name(path)
    data = streams.read(path, stdin, "a schedule: a grid or a table")
    try:
        text = data.decode()
        # Standard input has no name to go by; but every line of a grid has a colon, and no cell of a table has one.
        is_table = path.endswith(".csv") or (path == "-" and ":" not in text)
        # A table has no name in it.
        title = re.sub("[^!-~]+", "_", os.path.basename(path).removesuffix(".csv")) if path != "-" else "csv"
        schedule = S.from_csv(text, title or "csv") if is_table else S.parse(text)
    except UnicodeDecodeError:
        raise InputError(f"{name}: error: neither a grid nor a table: not text in UTF-8") from None
    except S.ScheduleError as error:
        raise InputError(f"{name}: error: {error}") from None
    for what in ("meshes", "microbatches"):
        given, found = getattr(options, what), getattr(schedule, what)
        if given not in (None, found):
            raise InputError(f"{name}: error: the schedule has {found} {what}, not {given}")
    return schedule


def load_costs(options: argparse.Namespace) -> S.Costs:
    """The costs of `--costs FILE`, in which the flags for single ones replace theirs.

    Raises:
        InputError: the file cannot be read.
        ScheduleError: it holds no costs, or one is not a number that makes sense.
    """
    path = options.costs
    try:
        costs = S.Costs() if path is None else S.Costs.load(path)
    except OSError as error:
        raise InputError(f"{path}: error: cannot read: {error.strerror}") from None
    given = {name: getattr(options, name) for name in COSTS}
    return dataclasses.replace(costs, **{name: value for name, value in given.items() if value is not None})
