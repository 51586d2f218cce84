"""What a long piece of work says of itself, by a clock that the test sets."""

import io
import sys
from concurrent.futures import Future
from typing import Any

import jax
import pytest
from unit.notebook import in_a_notebook
from unit.runtime.programs import Pipeline

from jaxpp.runtime.execution import compiling
from jaxpp.runtime.execution.progress import Progress, Story


class Clock:
    """The seconds that a test sets."""

    now = 5.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_line_after_ten_seconds_and_then_every_thirty() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("compiling", 13, stream, clock)
    told: dict[int, int] = {}
    for second in range(80):
        clock.now = 5.0 + second
        progress.report(second // 10, {"forward_2", "backward_0", "forward_1", "sgd"} if second < 20 else {"sgd"})
        told[second] = stream.getvalue().count("\n")
    assert [second for second in range(1, 80) if told[second] > told[second - 1]] == [10, 40, 70]
    progress.report(13, ())
    progress.close()
    assert stream.getvalue() == (
        "jaxpp: compiling: 1 of 13 after 10 s, now backward_0, forward_1, forward_2, ...\n"
        "jaxpp: compiling: 4 of 13 after 40 s, now sgd\n"
        "jaxpp: compiling: 7 of 13 after 70 s, now sgd\n"
        "jaxpp: compiling: all 13 after 79 s\n"
    )


def test_a_waiting_thread_wakes_for_the_next_line() -> None:
    clock = Clock()
    progress = Progress("compiling", 2, io.StringIO(), clock)
    assert progress.wait() == 10.0
    clock.now += 12.0
    assert progress.wait() == 0.0
    progress.report(0, ())
    assert progress.wait() == 30.0


def test_what_takes_no_time_says_nothing() -> None:
    stream = io.StringIO()
    progress = Progress("compiling", 1, stream, Clock())
    progress.report(1, ())
    progress.close()
    assert stream.getvalue() == ""


def test_a_terminal_has_a_bar() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress("compiling", 2, stream, clock)
    clock.now += 100.0
    progress.report(1, {"sgd"})
    assert progress.wait() is None
    progress.close()
    assert "compiling:   0%" in stream.getvalue()
    assert "after" not in stream.getvalue()


def test_a_terminal_has_lines_of_what_has_no_bar() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress("passes", 2, stream, clock, bar=False)
    clock.now += 11.0
    progress.report(1, {"find-loop"})
    assert stream.getvalue() == "jaxpp: passes: 1 of 2 after 11 s, now find-loop\n"


def test_several_processes_have_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    stream, clock = io.StringIO(), Clock()
    progress = Progress("compiling", 2, stream, clock)
    clock.now += 10.0
    progress.report(1, ())
    assert stream.getvalue() == "jaxpp: process 3: compiling: 1 of 2 after 10 s\n"


def test_a_slow_compilation_tells_what_it_compiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each wait ends by its timeout first, 20 seconds later."""
    clock = Clock()

    def progress(what: str, total: int) -> Progress:
        return Progress(what, total, sys.stderr, clock)

    monkeypatch.setattr(compiling, "Progress", progress)

    def slow(pending: set[Future[Any]], timeout: float, _: str) -> tuple[set[Future[Any]], set[Future[Any]]]:
        assert timeout >= 0.0
        clock.now += 20.0
        done = {next(iter(pending))} if clock.now > 50.0 else set[Future[Any]]()
        for each in done:
            each.exception()
        return done, pending - done

    monkeypatch.setattr(compiling, "wait", slow)
    Pipeline(1, 1).executable()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("jaxpp: compiling stage programs: 0 of 5 after 20 s")
    assert lines[-1] == "jaxpp: compiling stage programs: all 5 after 140 s"


def test_a_notebook_has_one_line_that_changes_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs, clock = in_a_notebook(monkeypatch), Clock()
    progress = Progress("compiling", 4, clock=clock)
    assert progress.wait() == 1.0
    for tenth in range(31):
        clock.now = 5.0 + tenth / 10
        progress.report(tenth // 10, {"sgd"})
    progress.report(4, ())
    progress.close()
    (output,) = outputs
    assert output.texts == [
        "jaxpp: compiling: 1 of 4 after 1 s, now sgd",
        "jaxpp: compiling: 1 of 4 after 2 s, now sgd",
        "jaxpp: compiling: 2 of 4 after 2 s, now sgd",
        "jaxpp: compiling: 2 of 4 after 2 s, now sgd",
        "jaxpp: compiling: 3 of 4 after 3 s, now sgd",
        "jaxpp: compiling: all 4 after 3 s",
    ]
    assert capsys.readouterr().err == ""


def test_what_takes_no_time_shows_nothing_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = in_a_notebook(monkeypatch)
    progress = Progress("compiling", 1, clock=Clock())
    progress.report(1, ())
    progress.close()
    assert outputs == []


def test_ipython_on_a_terminal_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs, clock = in_a_notebook(monkeypatch, kernel=None), Clock()
    progress = Progress("compiling", 2, clock=clock)
    clock.now += 11.0
    progress.report(1, ())
    assert capsys.readouterr().err == "jaxpp: compiling: 1 of 2 after 11 s\n"
    assert outputs == []


def test_a_story_is_one_output_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = in_a_notebook(monkeypatch)
    story = Story("auto")
    story.now("step 1 of about 2")
    story.tell("1f1b: takes 10 ms a step")
    story.now("step 2 of about 2")
    story.tell("stays with 1f1b")
    first, kept, last = "jaxpp: auto: step 1 of about 2", "jaxpp: auto: 1f1b: takes 10 ms a step", "jaxpp: auto: "
    (output,) = outputs
    assert output.texts == [
        first,
        kept,
        f"{kept}\n{last}step 2 of about 2",
        f"{kept}\n{last}stays with 1f1b",
    ]


def test_ipython_updates_an_output_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """With IPython itself, whose shell has a kernel here."""
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    capture = pytest.importorskip("IPython.utils.capture")
    shell = interactive.InteractiveShell.instance()
    monkeypatch.setattr(shell, "kernel", "a kernel", raising=False)
    with capture.capture_output() as captured:
        story = Story("auto")
        story.tell("1f1b")
        story.now("step 2")
    shown = [(each.data["text/plain"], each.update) for each in captured.outputs]
    assert shown == [("jaxpp: auto: 1f1b", False), ("jaxpp: auto: 1f1b\njaxpp: auto: step 2", True)]
    assert len({each.transient["display_id"] for each in captured.outputs}) == 1
