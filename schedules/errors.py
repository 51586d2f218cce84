"""The exception of this package, checks of arguments, and helpers for messages."""

from __future__ import annotations

import math
import operator
import reprlib
import sys
from collections.abc import Sequence
from typing import Final, SupportsIndex, cast

_MOST: Final = 10_000_000
"""The largest product of stages, microbatches and slices of a schedule. A larger one would run out of memory."""

_MOST_OF_ONE: Final = 1_000
"""The largest number of meshes, chunks, slices, layers, steps or parts. The time to make some schedules grows with its
square."""


class ScheduleError(ValueError):
    """An error in a schedule, its text, or a parameter; the message uses the terms of schedules.

    Attributes:
        where: (mesh, position) of the wrong cell, both counted from 0; None where no single cell is wrong.
    """

    def __init__(self, message: str, where: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.where = where


def whole_number(value: object, what: str, *, least: int) -> int:
    """Returns `value` as an int of at least `least`. It accepts NumPy integers, but no floats and bools.

    Raises:
        ScheduleError: when the value is no integer, or is less than `least`; `what` names it in the message.
    """
    try:
        if not isinstance(value, bool):
            number = operator.index(cast("SupportsIndex", value))
            if number >= least:
                return number
    except TypeError:
        pass
    raise ScheduleError(f"{what} must be a whole number of at least {least}, found {value!r}")


def check_size(what: str, **sizes: int) -> None:
    """Checks that `what`, a schedule or a placement, is not too large to be made in some seconds or minutes.

    Raises:
        ScheduleError: when the product of the sizes is too large, or one of them, besides stages and microbatches.
    """
    if len(sizes) > 1 and math.prod(sizes.values()) > _MOST:
        found = ", ".join(f"{value} {name}" for name, value in sizes.items())
        raise ScheduleError(f"{what}: {found} are too many: their product may be at most {_MOST:,}")
    for name, value in sizes.items():
        if value > _MOST_OF_ONE and name not in ("stages", "microbatches"):
            raise ScheduleError(f"{what}: {name} must be at most {_MOST_OF_ONE:,}, found {value}")


def instance_of(kind: type, value: object, what: str, how: str = "") -> None:
    """Checks that `value` is an instance of `kind`.

    Raises:
        ScheduleError: when it is not; `how` tells the reader how to get an instance.
    """
    if not isinstance(value, kind):
        raise ScheduleError(f"{what} must be a {kind.__name__}{how}, found {reprlib.repr(value)}")


def one_of(words: Sequence[str], value: object, what: str) -> None:
    """Checks that `value` is one of these words.

    Raises:
        ScheduleError: when it is not.
    """
    if not isinstance(value, str) or value not in words:
        raise ScheduleError(f"{what} must be one of {', '.join(words)}, found {value!r}")


def is_bool(value: object) -> bool:
    """Whether a value is a bool of Python or of NumPy. NumPy is not imported: only its user can have its bools."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


def true_or_false(value: object, what: str) -> bool:
    """Returns `value` as a bool. It accepts NumPy bools, but no numbers.

    Raises:
        ScheduleError: when the value is no bool.
    """
    if not is_bool(value):
        raise ScheduleError(f"{what} must be true or false, found {value!r}")
    return bool(value)


def multiple_of(divisor: int, value: int, what: str, reason: str) -> None:
    """Checks that `value` is a multiple of `divisor`.

    Raises:
        ScheduleError: when it is not; `reason` explains why it must be.
    """
    if value % divisor:
        raise ScheduleError(f"{what} must be a multiple of {divisor}, found {value}: {reason}")


def counted(number: float, word: str, ending: str = "s") -> str:
    """Returns a number of things as words, such as `3 meshes` or `1 mesh`; `ending` makes the word plural."""
    return f"{number if isinstance(number, int) else format(number, 'g')} {word}{ending * (number != 1)}"


def marked(label: str, words: Sequence[str], index: int) -> str:
    """Returns two lines: the row `label words...` around the word at `index`, and a mark below that word."""
    first, last = max(0, index - 8), index + 8
    short = [word if len(word) <= 40 else f"{word[:37]}..." for word in words[first:last]]
    before = " ".join([f"  {label}", *(["..."] if first else []), *short[: index - first], ""])
    after = " ..." if last < len(words) else ""
    return f"{before}{' '.join(short[index - first :])}{after}\n{' ' * len(before)}{'^' * len(short[index - first])}"
