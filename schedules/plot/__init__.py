"""Pictures of a simulated run: a row of tasks for each mesh, and below these rows a memory curve for each mesh.

    S.draw(S.simulate(schedule, costs), "step.svg")

Time runs to the right. The colour of a task shows its kind; its shade and number show its microbatch. `s3` is stage 3,
a grey interval is a bubble, and a frame encloses a fused group.
If the shortest task is narrower than about four pixels, all tasks have the plain colours of their kinds, without
shades. A task that is too narrow for its number has none.

Matplotlib draws SVG and PNG. HTML is a page of one file that a browser draws, at any size: it zooms, names what each
task waited for, and has the cause of each bubble, the critical path and the bytes between meshes (`plot.page`).
"""

from __future__ import annotations

import html
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.plot.pages import report_page
from jaxpp.schedules.plot.scene import Scene

if TYPE_CHECKING:
    from jaxpp.schedules.search.found import Found

Drawn: TypeAlias = Report | Schedule

SUFFIXES = (".svg", ".png", ".html")


def draw(run: Drawn | Sequence[Drawn], path: str | Path, *, memory: bool = True) -> None:
    """Writes a picture of a simulated run as SVG, PNG or HTML; the suffix of the path selects the format.

    A schedule is drawn as `simulate` runs it without costs. Several runs are drawn one below the other, on one scale of
    time. Without `memory` there are no memory curves.

    Raises:
        ScheduleError: when the path has another suffix, or matplotlib is not installed.
        OSError: when the file cannot be written.
    """
    Path(path).write_bytes(picture(run, path, memory=memory))


def picture(run: Drawn | Sequence[Drawn], path: str | Path, *, memory: bool = True) -> bytes:
    """Returns the bytes that `draw` writes.

    Raises:
        ScheduleError: in the same cases as `draw`.
    """
    suffix = _suffix(path, SUFFIXES)
    runs = [run] if isinstance(run, Report | Schedule) else run
    reports = [each if isinstance(each, Report) else simulate(each) for each in runs]
    if suffix == ".html":
        return report_page(reports, memory)
    with _installed():
        from jaxpp.schedules.plot.chart import chart

        return chart([Scene(each) for each in reports], suffix[1:], memory)


def in_a_frame(page: bytes, height: int = 560) -> str:
    """Returns HTML that shows a page inside of another one, such as a notebook."""
    text = html.escape(page.decode())
    return f'<iframe srcdoc="{text}" style="width: 100%; height: {height}px; border: 0"></iframe>'


def draw_history(found: Found, path: str | Path) -> None:
    """Writes a picture of a search as SVG or PNG: the best value and the lower bound over the time of the search.

    Raises:
        ScheduleError: when the path has another suffix, or matplotlib is not installed.
        OSError: when the file cannot be written.
    """
    Path(path).write_bytes(history_pen(path)(found))


def history_pen(path: str | Path) -> Callable[[Found], bytes]:
    """Returns the function that draws a finished search as the bytes of a picture.

    Called before the search, `history_pen` reports a wrong suffix or a missing library before any time is spent.

    Raises:
        ScheduleError: in the same cases as `draw_history`.
    """
    suffix = _suffix(path, SUFFIXES[:2])
    with _installed():
        from jaxpp.schedules.plot.history import history_chart

    return lambda found: history_chart(found.history, suffix[1:])


def _suffix(path: str | Path, known: Sequence[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        ends = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ScheduleError(f"a picture's name must end in {ends}, found {str(path)!r}")
    return suffix


@contextmanager
def _installed() -> Generator[None]:
    """Turns the `ModuleNotFoundError` of a missing library into a `ScheduleError` that names the package to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        raise ScheduleError(f"drawing needs {library}: pip install 'jaxpp[plot]'") from None


def _in_notebook(run: Drawn) -> str:
    return in_a_frame(picture(run, "notebook.html"))


# A schedule does not know pictures, which are made of it.
Schedule.shown = Report.shown = staticmethod(_in_notebook)
