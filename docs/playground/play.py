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
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Cell, Task
from jaxpp.schedules.plot.pages import report_page

TIMES: Final = ("forward", "input_grad", "weight_grad")
"""The costs that may differ between stages."""


def choices() -> str:
    """Returns the names of the schedules of the library, each with the names of its options."""
    known = library_options()
    return json.dumps({name: [option for option in options_of(name) if option in known] for name in LIBRARY})


def play(text: str) -> str:
    """Simulates a schedule, by its name or by its grid if that is edited, with the given costs.

    With `move`, a task first takes another place in the order of its mesh. Returns the grid and the page, or an error
    and the part of the form (costs, schedule or grid) that has to change.
    """
    chosen: dict[str, Any] = json.loads(text)
    given = "grid" if "grid" in chosen else "schedule"
    part = "costs"
    try:
        costs = Costs(**{name: _cost(chosen[name]) for name in TIMES}, hop=_read(float, chosen["hop"]))
        part = given
        schedule = Schedule.parse(chosen["grid"]) if given == "grid" else _named(chosen, costs)
        if "move" in chosen:
            schedule = _moved(schedule, **chosen["move"])
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


def _moved(schedule: Schedule, task: dict[str, Any], before: dict[str, Any] | None) -> Schedule:
    """Returns the schedule with a task before another one of its mesh, or at the end; fused tasks stay fused."""
    rows = [list(row) for row in schedule.cells]
    row = rows[task["mesh"]]
    cell = row.pop(_place(row, task))
    row.insert(len(row) if before is None else _place(row, before), cell)
    moved = Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds, schedule.skipped)
    check(moved)
    return moved


def _place(row: list[Cell], task: dict[str, Any]) -> int:
    """Returns the position of the cell that has a task."""
    wanted = Task(task["kind"], task["stage"], task["microbatch"], task["slice"])
    return next(place for place, cell in enumerate(row) if wanted in cell)


def _named(chosen: dict[str, Any], costs: Costs) -> Schedule:
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
