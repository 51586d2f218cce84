"""What a long piece of work says of itself, by a clock that the test sets."""

import io
import sys
from concurrent.futures import Future
from typing import Any

import jax
import pytest
from unit.runtime.programs import Pipeline

from jaxpp.runtime.execution import compiling
from jaxpp.runtime.execution.progress import Progress


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
