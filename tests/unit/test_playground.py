"""The playground of the site: its Python runs in a browser, without NumPy, and says what is wrong with a choice."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import asdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from unit.browser import Browser, browser
from unit.schedules.pages import place

from jaxpp.schedules.library import LIBRARY
from jaxpp.schedules.model.schedule import Schedule

FOLDER = Path(__file__).parents[2] / "docs" / "playground"
CHOSEN = {
    "schedule": "1f1b",
    "options": "",
    "meshes": "4",
    "microbatches": "8",
    "forward": "1",
    "input_grad": "1",
    "weight_grad": "1",
    "hop": "0",
}

MAKESPAN = "document.querySelector('.facts b')?.textContent"
GRID = "document.getElementById('form').elements.grid.value"
ERROR = "document.querySelector('.error:not([hidden])')?.textContent"


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"playground_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_schedule_is_simulated_without_packages(tmp_path: Path) -> None:
    assemble = loaded("assemble")
    assemble.complete(tmp_path)
    zipfile.ZipFile(tmp_path / "modules.zip").extractall(tmp_path)
    script = f"""
import json, play
for name in json.loads(play.choices()):
    found = json.loads(play.play(json.dumps({CHOSEN!r} | dict(schedule=name))))
    print(found.get("error") or (name in found["grid"] and "drawn"))
"""
    run = [sys.executable, "-S", "-c", script]
    done = subprocess.run(run, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = Counter(done.stdout.splitlines())
    assert found.pop("drawn") == len(LIBRARY) - 1
    (refused,) = found
    assert refused.startswith("bpipe needs numpy, which this page lacks. On your machine, `jaxpp-schedule plot bpipe ")


@pytest.mark.parametrize(
    ("change", "part", "error"),
    [
        ({"meshes": ""}, "schedule", "meshes must be a whole number of at least 1, found ''"),
        ({"options": "chnks=2"}, "schedule", "schedule '1f1b' has no option 'chnks': it takes chunks, placement"),
        ({"forward": "fast"}, "costs", "forward must be a positive number, found 'fast'"),
        ({"hop": "1 x"}, "costs", "hop must be 0 or more, found '1 x'"),
        ({"forward": "1 2"}, "costs", "forward: expected a number for each of 4 stages, found 2"),
        ({"grid": "schedule: mine\nplacement: 0\nmesh 0: 0F0 0X0"}, "grid", "line 3: cannot read '0X0'"),
        ({"grid": "1f1b"}, "grid", "line 1: expected 'schedule:'"),
        ({"grid": ""}, "grid", "the text of a schedule needs a line 'schedule: ...'"),
    ],
)
def test_an_error_is_the_library_s_and_has_its_place(change: dict[str, str], part: str, error: str) -> None:
    found = json.loads(loaded("play").play(json.dumps(CHOSEN | change)))
    assert found["part"] == part
    assert found["error"].startswith(error)


@pytest.mark.parametrize("part", [0, 1])
def test_a_move_keeps_fused_tasks_together(part: int) -> None:
    play = loaded("play").play
    chosen = CHOSEN | {"schedule": "interleaved-1f1b", "options": "fused=true", "meshes": "2", "microbatches": "4"}
    text = json.loads(play(json.dumps(chosen)))["grid"]
    schedule = Schedule.parse(text)
    cells = schedule.cells[0]
    place = next(place for place, cell in enumerate(cells) if len(cell) > 1)
    move = {"task": {"mesh": 0, **asdict(cells[place][part])}, "before": None}
    refused = json.loads(play(json.dumps(chosen | {"grid": text, "move": move})))
    reason = "mesh 0 position 9: B(stage 0, mb 2) needs F(stage 0, mb 2), which comes later on mesh 0"
    assert (refused["part"], refused["error"].splitlines()[0]) == ("grid", reason)
    move["before"] = {"mesh": 0, **asdict(cells[place + 2][0])}
    moved = Schedule.parse(json.loads(play(json.dumps(chosen | {"grid": text, "move": move})))["grid"])
    assert moved.cells[0] == (*cells[:place], cells[place + 1], cells[place], *cells[place + 2 :])
    assert moved.cells[1] == schedule.cells[1]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The address of a playground that is served with Pyodide. Without npm's package it is skipped, but not in CI."""
    assemble = loaded("assemble")
    try:
        assemble.fetch()
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"Pyodide can't be fetched: {error}")
    folder = tmp_path_factory.mktemp("site") / "playground"
    shutil.copytree(FOLDER, folder)
    assemble.complete(folder)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()
        thread.join()


def fill(page: Browser, name: str, value: str) -> None:
    place = f"document.getElementById('form').elements.{name}"
    page.evaluate(
        f"{place}.value = {json.dumps(value)}; {place}.dispatchEvent(new InputEvent('input', {{bubbles: true}}))"
    )


def choose(page: Browser, width: int = 1280, *, dark: bool = False) -> None:
    """Chooses 1F1B without edits, whatever was chosen before."""
    page.window(width, dark=dark)
    page.evaluate("document.querySelector('.facts b').replaceChildren()")  # what comes may be like what is shown
    page.evaluate(f"document.getElementById('form').elements.hop.value = {json.dumps(CHOSEN['hop'])}")
    fill(page, "schedule", CHOSEN["schedule"])
    assert page.until(f"{MAKESPAN} === '33 units' && !{ERROR}")
    page.evaluate("select(null); data.steps[0].canvas.scrollIntoView()")
    page.frame()


@pytest.fixture(scope="module")
def opened(address: str) -> Iterator[Browser]:
    """The playground in a browser, opened once, as Python takes long to start there."""
    with browser() as page:
        page.open(address)
        assert page.until(MAKESPAN) == "33 units"
        yield page
        assert page.errors == []


def test_a_browser_simulates_what_is_chosen(opened: Browser) -> None:
    page = opened
    assert page.until("document.querySelectorAll('canvas').length === 2")
    page.evaluate("hidden.add('forward')")
    fill(page, "schedule", "zb-h1")
    assert page.until(f"{MAKESPAN} === '27 units'")
    assert page.evaluate("document.querySelector('.toggle[data-kind=forward]').ariaPressed") == "false"
    page.evaluate("hidden.delete('forward')")
    fill(page, "hop", "1")
    assert page.until(f"{MAKESPAN} !== '27 units' && {MAKESPAN}").endswith("units")
    text = page.evaluate(GRID)
    assert text.startswith("schedule: zb-h1\n")
    fill(page, "grid", text.replace("3W7", "3W6"))
    assert "mesh 3" in page.until(ERROR)
    assert page.evaluate("document.querySelector('.error:not([hidden])').dataset.part") == "grid"
    page.evaluate("document.getElementById('undo').click()")
    assert page.until(f"!{ERROR}")
    assert page.evaluate(GRID) == text


def row(page: Browser, mesh: int) -> list[str]:
    """The tasks of a mesh in the grid of the page."""
    return [cell for cell in page.evaluate(GRID).splitlines()[2 + mesh].split(":")[1].split() if cell != "."]


def held(page: Browser, mesh: int, *times: float) -> tuple[float, float]:
    """Takes the task of a mesh at the first time to the other times; returns the last place."""
    places = [place(page, 0, time, mesh) for time in times]
    page.drag(*places)
    return places[-1]


def test_a_task_is_dragged_to_another_place(opened: Browser) -> None:
    page = opened
    choose(page)
    order = row(page, 0)
    assert order[:5] == ["0F0", "0F1", "0F2", "0F3", "0B0"]
    page.release(*held(page, 0, 3.5, 6.0, 3.8))
    assert row(page, 0) == order, "it was let go in its own place"

    here = held(page, 0, 3.5, 8.0, 11.5)
    assert page.until("held?.words.startsWith('a step') && held.words") == "a step of 36 units"
    assert page.evaluate(MAKESPAN) == "33 units", "a task that is held is only tried"
    page.release(*here)
    assert page.until(f"{MAKESPAN} === '36 units'")
    assert row(page, 0)[:5] == ["0F0", "0F1", "0F2", "0B0", "0F3"]


def test_a_gap_is_dragged_with_the_task_after_it(opened: Browser) -> None:
    page = opened
    choose(page)
    grid, order = page.evaluate(GRID), row(page, 0)
    here = held(page, 0, 7.0, 8.0, 13.2)  # from the gap before 0B0, beyond 0F4
    makespan = page.until("held?.words.startsWith('a step') && held.words").removeprefix("a step of ")
    page.release(*here)
    assert page.until(f"{MAKESPAN} === '{makespan}' && {GRID} !== {json.dumps(grid)}")
    assert row(page, 0) == [*order[:4], "0F4", "0B0", *order[6:]]

    choose(page)
    held(page, 3, 32.0, 20.0)
    assert page.evaluate("held") is None, "no task is after the last gap"
    page.release(0, 0)


def test_a_move_that_cannot_be_is_not_made(opened: Browser) -> None:
    page = opened
    choose(page)
    grid = page.evaluate(GRID)
    here = held(page, 2, 7.0, 3.0, 0.5)  # the first backward of stage 2, before its forward
    assert page.until("held?.failed && held.words").startswith("mesh 2 position 0: B(stage 2, mb 0) needs F(")
    page.release(*here)
    assert page.until(ERROR).startswith("The task stays in its place. mesh 2 position 0: ")
    assert (page.evaluate(GRID), page.evaluate(MAKESPAN)) == (grid, "33 units")

    held(page, 0, 3.5, 8.0, 11.5)
    page.evaluate("data.steps[0].canvas.onkeydown(new KeyboardEvent('keydown', {key: 'Escape'}))")
    page.release(0, 0)
    assert page.evaluate("held") is None
    assert page.evaluate(GRID) == grid, "Escape lets a task go in its own place"


def test_buttons_move_the_selected_task(opened: Browser) -> None:
    page = opened
    choose(page, 390)
    page.click(*place(page, 0, 0.5, 0))
    assert page.evaluate("[...detail.querySelectorAll('.actions button')].map((each) => each.id)") == ["later"]
    page.evaluate("document.getElementById('later').click()")
    assert page.until("document.getElementById('earlier') !== null"), "the task stays selected"
    assert row(page, 0)[:2] == ["0F1", "0F0"]
    page.evaluate("document.getElementById('undo').click()")
    assert page.until("document.getElementById('earlier') === null")
    assert row(page, 0)[:2] == ["0F0", "0F1"]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_playground_fits_its_window(opened: Browser, width: int, dark: bool) -> None:
    choose(opened, width, dark=dark)
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    paper = "rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)"
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == paper
