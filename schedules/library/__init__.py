"""Published schedules by name. A new one is a function in a file of this folder and one line in the table here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Final

from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.library.classic import gpipe, one_f_one_b
from jaxpp.schedules.schedule import Schedule

_LIBRARY: Final[dict[str, Callable[..., Schedule]]] = dict(
    (
        ("gpipe", gpipe),
        ("1f1b", one_f_one_b),
    )
)


def names() -> tuple[str, ...]:
    """The names that `make` knows."""
    return tuple(_LIBRARY)


def make(name: str, *, meshes: int, microbatches: int, **options: object) -> Schedule:
    """Build a schedule of the library: `make("1f1b", meshes=4, microbatches=8)`.

    Args:
        name: one of `names()`.
        meshes: number of meshes.
        microbatches: number of microbatches.
        options: what else that schedule takes, e.g. `chunks=2`.

    Raises:
        ScheduleError: the name or an option is unknown, or the schedule does not exist for these numbers.
    """
    if name not in _LIBRARY:
        nearest = difflib.get_close_matches(name.lower(), _LIBRARY, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ScheduleError(f"no schedule is named {name!r}: there are {', '.join(_LIBRARY)}{hint}")
    known = list(inspect.signature(_LIBRARY[name]).parameters)[2:]
    for option in options:
        if option not in known:
            raise ScheduleError(f"schedule {name!r} has no option {option!r}: it takes {', '.join(known) or 'none'}")
    return _LIBRARY[name](meshes, microbatches, **options)
