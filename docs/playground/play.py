"""The part of the playground that runs in the browser's Python: from a visitor's choices to a page, or to an error.

The page speaks JSON. It has no NumPy, so `jaxpp.schedules` is here without its searches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.given import library_options, resolve
from jaxpp.schedules.library import LIBRARY, options_of
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.plot.pages import report_page

TIMES: Final = ("forward", "input_grad", "weight_grad")
"""The costs that may differ between stages."""


def choices() -> str:
    """Returns the names of the schedules of the library, each with the names of its options."""
    known = library_options()
    return json.dumps({name: [option for option in options_of(name) if option in known] for name in LIBRARY})


def play(text: str) -> str:
    """Simulates a schedule, by its name or by its grid if that is edited, with the given costs.

    Returns the grid and the page, or an error and the part of the form (costs, schedule or grid) that has to change.
    """
    chosen: dict[str, str] = json.loads(text)
    given = "grid" if "grid" in chosen else "schedule"
    part = "costs"
    try:
        costs = Costs(**{name: _cost(chosen[name]) for name in TIMES}, hop=_read(float, chosen["hop"]))
        part = given
        schedule = Schedule.parse(chosen["grid"]) if given == "grid" else _named(chosen, costs)
        part = "costs"
        found = {"grid": str(schedule), "page": report_page([simulate(schedule, costs)]).decode()}
    except ScheduleError as error:
        found = {"part": part, "error": str(error)}
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        found = {
            "part": part,
            "error": f"{chosen['schedule']} needs {module}, which this page lacks. On your machine, "
            f"`jaxpp-schedule plot {chosen['schedule']} -o page.html` draws it.",
        }
    return json.dumps(found)


def _named(chosen: dict[str, str], costs: Costs) -> Schedule:
    """Returns the schedule of the library that was chosen, with its options."""
    name, words = chosen["schedule"], chosen["options"].strip()
    meshes, microbatches = (_read(int, chosen[what]) for what in ("meshes", "microbatches"))
    options: dict[str, object] = {"costs": costs} if "costs" in options_of(name) else {}
    return resolve(f"{name}{{{words}}}" if words else name, meshes=meshes, microbatches=microbatches, **options)


def _cost(text: str) -> Any:
    """Returns a number, or a list of one number per stage."""
    words = text.replace(",", " ").split()
    return _read(float, text) if len(words) < 2 else [_read(float, word) for word in words]


def _read(kind: Callable[[str], object], text: str) -> Any:
    """Returns a number; a text that is none stays a text, which the library refuses by name."""
    try:
        return kind(text)
    except ValueError:
        return text
