"""The one exception of this package, the guards of arguments, and words of messages."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import SupportsIndex, cast

import numpy as np


class ScheduleError(ValueError):
    """A schedule, its text, or a parameter is wrong; the message says so in the schedule's own terms.

    Attributes:
        where: (mesh, position) of the cell to blame, both counted from 0, where one cell is to blame.
    """

    def __init__(self, message: str, where: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.where = where


def whole_number(value: object, what: str, *, least: int) -> int:
    """`value` as an int of at least `least`; NumPy integers pass, floats and bools do not.

    Raises:
        ScheduleError: what was found and what was expected.
    """
    try:
        if not isinstance(value, bool):
            number = operator.index(cast("SupportsIndex", value))
            if number >= least:
                return number
    except TypeError:
        pass
    raise ScheduleError(f"{what} must be a whole number of at least {least}, found {value!r}")


def instance_of(kind: type, value: object, what: str, how: str = "") -> None:
    """Guard: `value` is an instance of `kind`; `how` says how to get one."""
    if not isinstance(value, kind):
        raise ScheduleError(f"{what} must be a {kind.__name__}{how}, found {reprlib.repr(value)}")


def one_of(words: Sequence[str], value: object, what: str) -> None:
    """Guard: `value` is one of these words."""
    if not isinstance(value, str) or value not in words:
        raise ScheduleError(f"{what} must be one of {', '.join(words)}, found {value!r}")


def true_or_false(value: object, what: str) -> bool:
    """`value` as a bool; those of NumPy pass, numbers do not.

    Raises:
        ScheduleError: what was found.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ScheduleError(f"{what} must be true or false, found {value!r}")
    return bool(value)


def multiple_of(divisor: int, value: int, what: str, reason: str) -> None:
    """Guard: `value` is a multiple of `divisor`.

    Raises:
        ScheduleError: it is not; `reason` says why it has to be.
    """
    if value % divisor:
        raise ScheduleError(f"{what} must be a multiple of {divisor}, found {value}: {reason}")


def counted(number: float, word: str, ending: str = "s") -> str:
    """`3 meshes`, `1 mesh`: a number of things; `ending` makes the word plural."""
    return f"{number if isinstance(number, int) else format(number, 'g')} {word}{ending * (number != 1)}"


def marked(label: str, words: Sequence[str], index: int) -> str:
    """Two lines: the row `label words...` around the word at `index`, and a mark below that word."""
    first, last = max(0, index - 8), index + 8
    short = [word if len(word) <= 40 else f"{word[:37]}..." for word in words[first:last]]
    before = " ".join([f"  {label}", *(["..."] if first else []), *short[: index - first], ""])
    after = " ..." if last < len(words) else ""
    return f"{before}{' '.join(short[index - first :])}{after}\n{' ' * len(before)}{'^' * len(short[index - first])}"
