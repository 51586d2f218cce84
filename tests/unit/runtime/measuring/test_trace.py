"""A traced step: its results, what its events say, and the file that has the shape of a simulated one."""

import collections
import itertools
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.runtime.programs import Pipeline, tick

from jaxpp import runtime
from jaxpp import schedules as S
from jaxpp.runtime.measuring import trace


def read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def test_a_traced_step_is_a_step() -> None:
    pipeline = Pipeline(2, 3)
    results, events = runtime.trace_step(pipeline.executable(), pipeline.arguments())
    for found, expected in zip(results, pipeline.expected(pipeline.arguments()), strict=True):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-6)
    counts = collections.Counter((event.mesh, event.kind) for event in events)
    assert counts[0, "forward"] == counts[1, "backward"] == counts[0, "send"] == counts[1, "send"] == 3
    for mesh in range(2):
        tasks = [event for event in events if event.mesh == mesh and event.target is None]
        assert all(one.end <= other.start for one, other in itertools.pairwise(tasks))


def test_events_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mesh begins by making its accumulator; a hop takes as long as a task."""
    tick(monkeypatch)
    pipeline = Pipeline(2, 1)
    _, events = runtime.trace_step(pipeline.executable(), pipeline.arguments())
    assert {(event.seconds, event.processor_seconds) for event in events} == {(1, 2)}
    found = sorted((event.mesh, event.start, event.end, str(event), event.target) for event in events)
    assert found == [
        (0, 0, 1, "before", None),
        (0, 1, 2, "forward 0, 0", None),
        (0, 2, 3, "send 0, 0", 1),
        (0, 7, 8, "backward 0, 0", None),
        (0, 8, 9, "after", None),
        (1, 0, 1, "before", None),
        (1, 3, 4, "forward 1, 0", None),
        (1, 4, 5, "loss 1, 0", None),
        (1, 5, 6, "backward 1, 0", None),
        (1, 6, 7, "after", None),
        (1, 6, 7, "send 1, 0", 0),
    ]


def test_an_interruption_does_not_shift_the_clock_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading takes a microsecond but for one, which takes a second: a hop would seem to take none."""
    seconds = itertools.accumulate(1.0 if number == 1 else 1e-6 for number in itertools.count())
    clock = types.SimpleNamespace(perf_counter=seconds.__next__, time=lambda: 1000 + next(seconds))
    monkeypatch.setattr("jaxpp.runtime.measuring.trace.time", clock)
    assert trace._since_epoch() == pytest.approx(1000, abs=1e-5)


@pytest.mark.parametrize("donate", [True, False])
def test_bytes_made_and_freed(donate: bool) -> None:
    """A gradient is summed in place, and a donated weight updated in place; arguments and constants don't count."""
    pipeline = Pipeline(1, 2, donate=donate)
    _, events = runtime.trace_step(pipeline.executable(), pipeline.arguments())
    weight, x, scalar = 32 * 32 * 4, 8 * 32 * 4, 4
    expected = {
        "before": (weight, 0),
        "forward 0, 0": (2 * x, 0),
        "loss 0, 0": (scalar, 0),
        "backward 0, 0": (x, 3 * x),
        "forward 0, 1": (2 * x, 0),
        "loss 0, 1": (scalar, scalar),
        "backward 0, 1": (x, 3 * x),
        "after": (0 if donate else weight, weight),
    }
    assert {str(event): (event.made, event.freed) for event in events} == expected


def test_a_copy_makes_bytes_where_it_arrives() -> None:
    pipeline = Pipeline(2, 1)
    _, events = runtime.trace_step(pipeline.executable(), pipeline.arguments())
    found = {event.mesh: (event.made, event.freed) for event in events if event.kind == "send"}
    assert found == {0: (1024, 0), 1: (1024, 1024)}, "the activation stays for the backward, the gradient doesn't"


def test_the_file_of_a_few_events(tmp_path: Path) -> None:
    events = [
        runtime.Event(0, "before", None, None, 0.0, 0.5, 0.5, made=8),
        runtime.Event(0, "forward", 0, 3, 0.5, 1.5, 1.0, made=4),
        runtime.Event(0, "send", 0, 3, 1.5, 2.0, 0.5, target=1, made=4, freed=12),
        runtime.Event(1, "forward", 1, 3, 2.0, 3.0, 1.0, freed=4),
    ]
    runtime.write_chrome_trace(events, tmp_path / "trace.json")
    found = read(tmp_path / "trace.json")
    bars = [(each["pid"], each["tid"], each["name"], each["ts"], each["dur"]) for each in found if each["ph"] == "X"]
    assert bars == [
        (0, 0, "before", 0, 5e5),
        (0, 0, "forward 0, 3", 5e5, 1e6),
        (1, 0, "forward 1, 3", 2e6, 1e6),
        (0, 1, "send 0, 3", 1.5e6, 5e5),
        (1, 1, "recv 0, 3", 1.5e6, 5e5),
    ]
    arrows = [(each["ph"], each["pid"], each["ts"]) for each in found if each["ph"] in "sf"]
    assert arrows == [("s", 0, 1.5e6), ("f", 1, 1.5e6)]
    counters = [(each["pid"], each["ts"], each["args"]) for each in found if each["ph"] == "C"]
    assert counters == [
        (0, 0, {"bytes": 8}),
        (0, 5e5, {"bytes": 12}),
        (0, 2e6, {"bytes": 0}),
        (1, 1.5e6, {"bytes": 4}),
        (1, 3e6, {"bytes": 0}),
    ]
    runtime.write_chrome_trace([], tmp_path / "nothing.json")
    assert read(tmp_path / "nothing.json") == []


def test_a_measured_step_and_a_simulated_one_have_one_shape(tmp_path: Path) -> None:
    """The same tracks, keys and names; the measured one has also what runs outside the microbatch loop."""
    pipeline = Pipeline(3, 4)
    executable = pipeline.executable()
    _, events = runtime.trace_step(executable, pipeline.arguments())
    runtime.write_chrome_trace(events, tmp_path / "measured.json")
    measured = read(tmp_path / "measured.json")
    costs = runtime.measured_costs(executable.program, events)
    simulated = json.loads(S.simulate(S.make("1f1b", meshes=3, microbatches=4), costs).to_chrome_trace())["traceEvents"]
    for find in (keys, track_names, process_names):
        assert find(measured) == find(simulated)
    outside = {"before", "after", *(f"loss 2, {microbatch}" for microbatch in range(4))}
    assert bars_on_tracks(measured) - bars_on_tracks(simulated) == {(mesh, 0, name) for mesh, _, name in extra(outside)}
    assert bars_on_tracks(simulated) <= bars_on_tracks(measured)


def extra(names: set[str]) -> list[tuple[int, int, str]]:
    """Where these stand: those of a stage on its mesh, the others on every mesh."""
    return [(mesh, 0, name) for name in names for mesh in ((2,) if name.startswith("loss") else range(3))]


def keys(events: list[dict[str, Any]]) -> set[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    optional = {
        "bytes",
        "function",
        "waited for",
    }  # only a measured step has functions, and a first task waits for none
    return {(each["ph"], tuple(sorted(each)), tuple(sorted({*each.get("args", {})} - optional))) for each in events}


def track_names(events: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """Without `send 2`, for what overlaps: that depends on times."""
    names = {(each["pid"], each["args"]["name"]) for each in events if each["name"] == "thread_name"}
    return {(mesh, name) for mesh, name in names if name.isalpha()}


def process_names(events: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(each["pid"], each["args"]["name"]) for each in events if each["name"] == "process_name"]


def bars_on_tracks(events: list[dict[str, Any]]) -> set[tuple[int, bool, str]]:
    """(mesh, whether it is a copy, name)."""
    copies = ("send", "recv")
    return {(each["pid"], each["cat"] in copies, each["name"]) for each in events if each["ph"] == "X"}
