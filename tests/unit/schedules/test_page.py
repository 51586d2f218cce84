"""Pages: what their data say, how large they are, and what a browser shows."""

import io
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from unit.browser import Browser, browser
from unit.schedules.pages import data_of, place

from jaxpp import schedules as S
from jaxpp.schedules.engine.chrome_trace import Memory
from jaxpp.schedules.engine.read_trace import read_chrome_trace
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.engine.spans import COMPUTE, Label, Span
from jaxpp.schedules.plot import picture
from jaxpp.schedules.plot.page import PageStep, PageTable, make_page
from jaxpp.schedules.plot.pages import trace_page


def report(name: str = "1f1b", meshes: int = 4, microbatches: int = 8, **costs: Any) -> Report:
    return S.simulate(S.make(name, meshes=meshes, microbatches=microbatches), S.Costs(**costs))


def names(step: dict[str, Any]) -> list[str]:
    """The tasks of a step as `mesh: forward 0, 3`."""
    spans = step["spans"]
    rows = zip(spans["mesh"], spans["target"], spans["shape"], spans["microbatch"], strict=True)
    return [
        f"{mesh}: "
        + " + ".join(str(Label(kind, stage, base + mb, part)) for kind, stage, mb, part in step["shapes"][shape])
        for mesh, target, shape, base in rows
        if target < 0
    ]


@pytest.mark.parametrize("name", ["zb-v", "dualpipe", "seq1f1b-i"])
def test_a_page_has_all_tasks_and_loads_nothing(name: str) -> None:
    run = report(name, hop=0.5)
    page = picture(run, "a.html")
    assert not re.search(rb"""<(script|img|iframe|link)[^>]*(src|href)=|@import|url\(|https?://|fetch\(""", page)
    data = data_of(page)
    (step,) = data["steps"]
    expected = [
        f"{mesh}: " + " + ".join(str(Label(task.kind, task.stage, task.microbatch, task.slice)) for task in cell)
        for mesh, row in enumerate(run.schedule.cells)
        for cell in row
    ]
    assert Counter(names(step)) == Counter(expected)
    starts, total = [], 0
    for each in step["spans"]["start"]:
        starts.append(total := total + each)
    found = [at * data["quantum"] for at, target in zip(starts, step["spans"]["target"], strict=True) if target < 0]
    assert sorted(found) == pytest.approx(sorted(span.start for span in run.spans if span.target is None), abs=1e-4)
    for curve, (times, amounts) in zip(step["memory"]["curves"], run.memory.curves, strict=True):
        assert sum(curve["amounts"]) == pytest.approx(amounts[-1])
        assert len(curve["times"]) == len(times)


def test_tables_of_a_page() -> None:
    run = report("1f1b", 2, 2, hop=1, message_bytes=500_000, unit="ms")
    idle, transfers = data_of(picture(run, "a.html"))["tables"]
    assert idle["columns"] == ["mesh", "busy", "task of another mesh", "transfer", "end", "idle"]
    assert [row[:2] for row in idle["rows"]] == [["0", "6"], ["1", "6"]]
    assert transfers["rows"] == [["0 → 1", "2", "1 MB", "1 ms"], ["1 → 0", "2", "1 MB", "1 ms"]]


def test_a_page_of_a_trace_is_that_of_its_run() -> None:
    run = report("zb-h1", hop=0.5, activation_bytes=100, message_bytes=7, unit="ms")
    (own,) = data_of(picture(run, "a.html"))["steps"]
    (read,) = data_of(trace_page(read_chrome_trace(run.to_chrome_trace()), "step.json"))["steps"]
    assert Counter(names(read)) == Counter(names(own))
    for name in ("path", "bubbles"):
        assert len(read[name]) == len(own[name])
    assert read["bubbles"]["cause"] == own["bubbles"]["cause"]
    assert sum(read["spans"]["bytes"]) == sum(own["spans"]["bytes"])


def test_a_page_without_memory() -> None:
    (step,) = data_of(picture(report(), "a.html", memory=False))["steps"]
    assert step["memory"] is None


def test_a_page_of_nothing() -> None:
    data = data_of(make_page("empty", [], "ms"))
    assert (data["steps"], data["tables"], data["kinds"]) == ([], [], {})


def test_pages_of_long_runs_are_small_and_made_fast() -> None:
    run = report("1f1b", 32, 256, hop=0.1, activation_bytes=1e6, message_bytes=1e5)
    begin = time.process_time()
    page = picture([run, run], "a.html")
    assert len(page) < 1_500_000
    assert time.process_time() - begin < 4


def test_notebooks_show_schedules() -> None:
    run = report("1f1b", 2, 3)
    assert run._repr_html_() == run.schedule._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="&lt;!doctype html&gt;[^"<>]*" style="[^"]*"></iframe>', run._repr_html_())


IR = "module {\n  func.func @main() <&> {}\n}"


def measured() -> bytes:
    """A page with a measured step of two meshes above the simulated one, with texts and limits."""
    first = Span(0, COMPUTE, (Label("forward", 0, 0),), 0.0, 4.0, function="f0")
    send = Span(0, "", (Label("send", 0, 0),), 4.0, 5.0, 0, 1, 2e6)
    second = Span(1, COMPUTE, (Label("forward", 1, 0),), 5.0, 8.0, 1)
    after = Span(0, COMPUTE, (Label("after", None, None),), 4.0, 6.0, 0)
    curves = Memory("bytes", report("gpipe", 2, 1).memory.curves)
    step = PageStep("measured", [first, send, second, after], 2, curves, "", "bytes on each device", [3.0, None])
    other = PageStep("predicted", report("gpipe", 2, 1).spans, 2, start=1.0)
    table = PageTable("Transfers", ["meshes", "bytes"], [["0 → 1", "2 MB"]], "a note")
    return make_page(
        "a step", [step, other], "ms", notes=["advice"], facts=[("a step", "8 ms")], tables=[table], texts={"f0": IR}
    )


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "step.html").write_bytes(measured())
    return tmp_path / "step.html"


def colours(tab: Browser) -> Counter[tuple[int, ...]]:
    pixels = (imread(io.BytesIO(tab.picture()))[::2, ::2, :3] * 255).round().astype(int).reshape(-1, 3)
    return Counter(map(tuple, pixels.tolist()))


BLUE, DARK_BLUE, NIGHT = (0, 0x72, 0xB2), (31, 131, 187), (0x12, 0x16, 0x1C)


def test_hover_and_click(tab: Browser, page: Path) -> None:
    tab.open(page)
    assert tab.errors == []
    tip = "document.getElementById('tip')"
    tab.hover(*place(tab, 0, 2.0, 0))
    assert tab.evaluate(f"{tip}.innerText") == (
        "forward of stage 0, microbatch 0\nmesh 0, 0 ms to 4 ms, 4 ms\nwaited for nothing"
    )
    tab.hover(*place(tab, 0, 2.0, 1))
    assert tab.evaluate(f"{tip}.innerText").splitlines()[:2] == [
        "idle for 5 ms: mesh 1 waits for a task of another mesh",
        "transfer of stage 0, microbatch 0",
    ]
    tab.hover(5, 5)
    assert tab.evaluate(f"{tip}.hidden")
    assert tab.evaluate("detail.hidden")
    tab.click(*place(tab, 0, 2.0, 0))
    assert tab.evaluate("document.getElementById('ir').textContent") == IR
    tab.click(*place(tab, 0, 6.0, 1))
    assert tab.evaluate("detail.querySelector('h2').textContent") == "forward of stage 1, microbatch 0"
    assert tab.evaluate(
        "[...detail.querySelectorAll('button')].at(-1).click() || detail.querySelector('h2').textContent"
    ) == ("transfer of stage 0, microbatch 0")
    assert tab.errors == []


def test_filters_zoom_and_the_critical_path(tab: Browser, page: Path) -> None:
    tab.open(page)
    before = colours(tab)[BLUE]
    assert before > 500
    tab.evaluate("document.querySelector('[data-kind=forward]').click()")
    tab.frame()
    assert colours(tab)[BLUE] < before / 4, "only the swatch of the button is left"
    tab.hover(*place(tab, 0, 2.0, 0))
    assert "forward" not in tab.evaluate("tip.hidden ? '' : tip.innerText")
    tab.evaluate("document.querySelector('[data-kind=forward]').click(); document.getElementById('path').click()")
    tab.frame()
    assert colours(tab)[BLUE] > before / 3
    tab.evaluate("document.getElementById('in').click()")
    assert tab.evaluate("(view.to - view.from) / (whole.to - whole.from)") == pytest.approx(0.6)
    tab.evaluate("document.getElementById('all').click()")
    assert tab.evaluate("view.from === whole.from && view.to === whole.to")
    tab.evaluate(
        "data.steps[0].canvas.dispatchEvent(new WheelEvent('wheel', {deltaY: -300, ctrlKey: true, clientX: 300}))"
    )
    assert tab.evaluate("(view.to - view.from) / (whole.to - whole.from)") == pytest.approx(0.3679, rel=1e-3)
    assert tab.errors == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_widths_and_dark_mode(tab: Browser, page: Path, width: int, dark: bool) -> None:
    tab.open(page, width, 900, dark=dark)
    assert tab.errors == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width, "nothing is wider than the window"
    seen = colours(tab)
    assert seen.most_common(1)[0][0] == (NIGHT if dark else (255, 255, 255))
    assert seen[DARK_BLUE if dark else BLUE] > 100


def test_a_browser_draws_a_long_run_soon(tab: Browser, tmp_path: Path) -> None:
    (tmp_path / "long.html").write_bytes(picture(report("1f1b", 32, 256), "a.html"))
    tab.open(tmp_path / "long.html")
    assert tab.errors == []
    assert tab.evaluate("data.steps[0].spans.mesh.length") == len(report("1f1b", 32, 256).spans)
