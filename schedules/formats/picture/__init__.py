"""Pictures of a simulated run: a row per mesh, time to the right, and below it what each mesh keeps in memory.

    S.draw(S.simulate(schedule, costs), "step.svg")

Colours are kinds of tasks, shades and numbers microbatches, `s3` is stage 3; grey is a bubble, a frame a fused group.
Tasks of less than four pixels have neither shades nor numbers.
SVG and PNG are drawn by matplotlib; HTML by Bokeh, a page in one file that zooms, pans and tells of each task what it
waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.formats.picture.scene import Scene
from jaxpp.schedules.report import Report
from jaxpp.schedules.search.found import Found

SUFFIXES = (".svg", ".png", ".html")


def draw(report: Report | Sequence[Report], path: str | Path) -> None:
    """Write a picture of a simulated run: SVG, PNG or HTML, as the name of the file ends.

    Several runs are drawn one below the other, on one scale of time.

    Raises:
        ScheduleError: the name ends in something else, or matplotlib or Bokeh is not installed.
        OSError: the file cannot be written.
    """
    Path(path).write_bytes(picture(report, path))


def picture(report: Report | Sequence[Report], path: str | Path) -> bytes:
    """Return the bytes that `draw` writes.

    Raises:
        ScheduleError: as `draw` does.
    """
    suffix = _suffix(path, SUFFIXES)
    scenes = [Scene(each) for each in ([report] if isinstance(report, Report) else report)]
    with _installed():
        if suffix == ".html":
            from jaxpp.schedules.formats.picture.page import page

            return page(scenes)
        from jaxpp.schedules.formats.picture.chart import chart

        return chart(scenes, suffix[1:])


def draw_history(found: Found, path: str | Path) -> None:
    """Write a picture of a search: the best value and the lower bound over its time, as SVG or PNG.

    Raises:
        ScheduleError: the name ends in something else, or matplotlib is not installed.
        OSError: the file cannot be written.
    """
    Path(path).write_bytes(history_pen(path)(found))


def history_pen(path: str | Path) -> Callable[[Found], bytes]:
    """What draws a search, once that is over: so that what is wrong is found before it begins.

    Raises:
        ScheduleError: as `draw_history` does.
    """
    suffix = _suffix(path, SUFFIXES[:2])
    with _installed():
        from jaxpp.schedules.formats.picture.history import history_chart

    return lambda found: history_chart(found.history, suffix[1:])


def _suffix(path: str | Path, known: Sequence[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise ScheduleError(f"{path}: a picture's name must end in {', '.join(known[:-1])} or {known[-1]}")
    return suffix


@contextmanager
def _installed() -> Generator[None]:
    """Says what to install where a library is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        raise ScheduleError(f"drawing needs {library}: pip install 'jaxpp[plot]'") from None
