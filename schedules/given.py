"""The forms in which a schedule may be given, the same in Python and on every command line.

1f1b                       a schedule of the library or a plug-in, for a number of meshes and microbatches
gis{chunks=4 group=2}      the same, with options
mine.txt, ./1f1b           a file of any name: a grid, or one of PyTorch's tables (.csv); `1f1b` is always the library's
schedule: mine ...         the text of a grid
Std1F1B(4)                 an object with `build(microbatches)`, or a Schedule
auto                       the step chooses the schedule while it runs, from its measurements; only a step accepts it
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final

from jaxpp.schedules.engine.read_trace import is_trace
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.library import LIBRARY, check_name, function_of, is_known, make, options_of
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement

AUTO: Final = "auto"
"""The name of the schedule that a step chooses while it runs."""

Value = int | bool | Placement

_NOT_HERE: Final = (
    f"{AUTO}: a step that runs chooses this schedule, from what it measures; "
    "give one by name, such as 1f1b, or the cuts and the schedule that jaxpp.tune found"
)
_NAME: Final = re.compile(r"(?P<name>[^{}\n]+)(?:\{(?P<options>[^{}\n]*)\})?")
_TYPES: Final[dict[str, type[Value]]] = {"int": int, "bool": bool, "Placement": Placement}
_WANTED: Final = {int: "a whole number", bool: "true or false", Placement: "the mesh of each stage, such as 0,1,1,0"}


class WordsError(ScheduleError):
    """An error in the text that names a schedule: it cannot be read, or has a wrong value of an option."""


class FileError(ScheduleError):
    """An error of a file that cannot be read, or holds no schedule.

    Attributes:
        path: the path of the file.
        reason: the reason, in words.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


@dataclass(frozen=True)
class LibraryOption:
    """An option of schedules of the library, besides the numbers of meshes and microbatches.

    Attributes:
        name: the name of the parameter.
        type: int, bool or Placement.
        about: its meaning.
        schedules: the names of the schedules that have it.
    """

    name: str
    type: type[Value]
    about: str
    schedules: list[str] = field(default_factory=list[str])

    def convert(self, text: str) -> Value:
        """Returns the value that `text` stands for.

        Raises:
            WordsError: when the text is no value of this type.
        """
        try:
            if self.type is Placement:
                return Placement.of(*(tuple(map(int, word.split("+"))) for word in re.split("[, ]+", text.strip())))
            return {"true": True, "false": False}[text] if self.type is bool else int(text)
        except (ValueError, KeyError):
            raise WordsError(f"{self.name} must be {_WANTED[self.type]}, found {text!r}") from None


@cache
def library_options() -> Mapping[str, LibraryOption]:
    """Returns the options of the whole library by name, read from the signatures and docstrings of its functions."""
    found: dict[str, LibraryOption] = {}
    for name in LIBRARY:
        for option in _options(name):
            if option.about:
                found.setdefault(option.name, option).schedules.append(name)
    return found


def _options(name: str) -> Iterator[LibraryOption]:
    """Yields the options of a schedule whose types a text can tell."""
    doc = inspect.getdoc(function_of(name)) or ""
    for option, parameter in options_of(name).items():
        first = inspect.formatannotation(parameter.annotation).strip("'").partition(" ")[0]  # Placement | None
        kind = _TYPES.get(first.rpartition(".")[2])
        about = re.search(rf"\n *{option}: ([^,;.]*)", doc)
        if kind is not None:
            yield LibraryOption(option, kind, about[1] if about else "")


def library_name(given: object) -> str | None:
    """Returns the name in a text such as `gis{chunks=4}`; None if neither the library nor a plug-in has it."""
    match = _NAME.fullmatch(given) if isinstance(given, str) else None
    return match["name"] if match and is_known(match["name"]) else None


def resolve(
    given: object, *, meshes: int | None = None, microbatches: int | None = None, **options: object
) -> Schedule:
    """Returns the schedule for a name, a file, a text or an object (see the module's docstring).

    Args:
        given: a text, a path, a Schedule, or an object with `build(microbatches)`.
        meshes: the number of meshes, for a schedule by name.
        microbatches: their number, for a schedule by name or an object that builds one.
        options: options of a schedule by name; options in braces after the name override them.

    Raises:
        FileError: when the file cannot be read, or holds no schedule.
        WordsError: when an option has a wrong value, or the name is "auto", which only a running step can resolve.
        ScheduleError: when there is no such schedule, or not for these numbers.
        TypeError: when `given` is a class, or an object of another type.
    """
    if isinstance(given, type):
        raise TypeError(
            f"schedule={given.__name__} is a class; give an instance: schedule={given.__name__}(number of stages)"
        )
    if isinstance(given, Schedule):
        return given
    if isinstance(given, os.PathLike):
        return _read(os.fspath(given))
    if isinstance(given, str):
        return Schedule.parse(given) if "\n" in given else _from_words(given, meshes, microbatches, options)
    build: Any = getattr(given, "build", None)
    if build is None:
        expected = "an object such as jaxpp.schedules.Std1F1B(4), a name, a file or a text"
        raise TypeError(f"schedule: expected {expected}, found {type(given).__name__}")
    if microbatches is None:
        raise ScheduleError(f"{type(given).__name__} builds a schedule for a number of microbatches: give it")
    return build(microbatches)


def as_text(given: object, *, microbatches: int, meshes: int | None = None, **options: object) -> str:
    """Returns the text of a schedule: a grid, or a name while `meshes` is None and the name is the library's or "auto".

    Raises: the errors of `resolve`, which reads the text.
    """
    is_name = given == AUTO or library_name(given) is not None
    if isinstance(given, str) and ("\n" in given or (meshes is None and is_name)):
        return given
    schedule = resolve(given, meshes=meshes, microbatches=microbatches, **options)
    text = str(schedule)
    _WRITTEN.clear()
    _WRITTEN[text] = schedule
    return text


@lru_cache(maxsize=1)
def of_text(text: str) -> Schedule:
    """Returns the schedule in the text of a grid, checked. It is cached, as several passes read the same long text.

    Raises:
        ScheduleError: when the text cannot be read, or the schedule is not valid.
    """
    schedule = _WRITTEN.pop(text, None)
    if not isinstance(schedule, Schedule):  # a user's `build` may return any object
        return Schedule.parse(text)
    check(schedule)
    return schedule


_WRITTEN: Final[dict[str, object]] = {}
"""The last text that `as_text` wrote, with its schedule. Reading a text takes several times as long as the check."""


def _from_words(words: str, meshes: int | None, microbatches: int | None, options: Mapping[str, object]) -> Schedule:
    match = _NAME.fullmatch(words)
    name = library_name(words)
    if match and match["name"] == AUTO:
        raise WordsError(_NOT_HERE if words == AUTO else f"{AUTO} has no options, found {words}: jaxpp.tune has some")
    if name is None and _is_file(words):
        return _read(words)
    if match is None:
        raise WordsError(f"expected a schedule such as gis or gis{{chunks=4 group=2}}, found {words[:80]!r}")
    values = dict(options)
    known = library_options() if name is None or name in LIBRARY else {each.name: each for each in _options(name)}
    for word in (match["options"] or "").split():
        key, _, value = word.partition("=")
        option = known.get(key)
        values[key] = option.convert(value) if option else value
    if name is not None and (meshes is None or microbatches is None):
        raise WordsError(f"{name} is a schedule of the library: it needs the numbers of meshes and microbatches")
    return make(
        match["name"],
        meshes=0 if meshes is None else meshes,
        microbatches=0 if microbatches is None else microbatches,
        **values,
    )


def check_words(given: str) -> None:
    """Checks that a text is a grid, names a file, or names a schedule of the library.

    Raises:
        ScheduleError: when it is neither a grid nor such a name.
    """
    if "\n" not in given and given != AUTO and library_name(given) is None and not _is_file(given):
        check_name(match["name"] if (match := _NAME.fullmatch(given)) else given)


def _is_file(words: str) -> bool:
    return os.path.exists(words) or "." in words or os.sep in words


def _read(path: str) -> Schedule:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileError(path, f"cannot read: {reason}") from None
    return parse_file(data, path)


def parse_file(data: bytes, path: str) -> Schedule:
    """Returns the schedule in a file: a table if the name ends in `.csv`, otherwise a grid.

    The path `-` is standard input, which may hold either.

    Raises:
        FileError: when the file holds neither.
    """
    try:
        text = data.decode()
        if not text.strip():
            raise ScheduleError("the file is empty; expected a schedule: a grid or a table")
        if is_trace(text):
            raise ScheduleError(
                "it is a trace, and no schedule: `jaxpp-schedule plot step.json` draws it, and Perfetto opens it "
                "(https://ui.perfetto.dev)"
            )
        # Standard input has no name, but every line of a grid has a colon, and no cell of a table has one.
        if not (path.endswith(".csv") or (path == "-" and ":" not in text)):
            return Schedule.parse(text)
        # A table does not contain the name of its schedule.
        title = re.sub("[^!-~]+", "_", os.path.basename(path).removesuffix(".csv")) if path != "-" else "csv"
        return Schedule.from_csv(text, title or "csv")
    except UnicodeDecodeError:
        raise FileError(path, "neither a grid nor a table: not text in UTF-8") from None
    except ScheduleError as error:
        raise FileError(path, str(error)) from None
