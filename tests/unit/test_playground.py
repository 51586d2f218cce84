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
from collections.abc import Generator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from unit.browser import Browser, browser

from jaxpp.schedules.library import LIBRARY

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


@pytest.fixture
def address(tmp_path: Path) -> Generator[str]:
    """The address of a playground that is served with Pyodide. Without npm's package it is skipped, but not in CI."""
    assemble = loaded("assemble")
    try:
        assemble.fetch()
    except (OSError, subprocess.SubprocessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"Pyodide can't be fetched: {error}")
    folder = tmp_path / "playground"
    shutil.copytree(FOLDER, folder)
    assemble.complete(folder)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()
        thread.join()


def awaited(page: Browser, condition: str) -> Any:
    """Returns the value of a condition of JavaScript as soon as it is true; fails after a minute."""
    script = f"""new Promise((done) => {{
        const until = Date.now() + 60000;
        const look = () => {{
            const found = {condition};
            if (found || Date.now() > until) done(found);
            else setTimeout(look, 20);
        }};
        look();
    }})"""
    found = page.evaluate(script)
    assert found, (condition, page.evaluate("document.body.innerText"), page.errors)
    return found


def fill(page: Browser, name: str, value: str) -> None:
    place = f"document.getElementById('form').elements.{name}"
    page.evaluate(
        f"{place}.value = {json.dumps(value)}; {place}.dispatchEvent(new InputEvent('input', {{bubbles: true}}))"
    )


def test_a_browser_simulates_what_is_chosen(address: str) -> None:
    makespan, error = (
        "document.querySelector('.facts b')?.textContent",
        "document.querySelector('.error:not([hidden])')",
    )
    grid, drawn = (
        "document.getElementById('form').elements.grid.value",
        "document.querySelectorAll('canvas').length === 2",
    )
    with browser() as page:
        page.open(address)
        assert awaited(page, makespan) == "33 units"
        assert awaited(page, drawn)
        page.evaluate("hidden.add('forward')")
        fill(page, "schedule", "zb-h1")
        assert awaited(page, f"{makespan} === '27 units'")
        assert page.evaluate("document.querySelector('.toggle[data-kind=forward]').ariaPressed") == "false"
        fill(page, "hop", "1")
        assert awaited(page, f"{makespan} !== '27 units' && {makespan}").endswith("units")
        text = page.evaluate(grid)
        assert text.startswith("schedule: zb-h1\n")
        fill(page, "grid", text.replace("3W7", "3W6"))
        message = awaited(page, f"{error}?.textContent")
        assert "mesh 3" in message
        assert page.evaluate(f"{error}.dataset.part") == "grid"
        page.evaluate("document.getElementById('undo').click()")
        assert awaited(page, f"!{error}")
        assert page.evaluate(grid) == text
        assert page.errors == []
