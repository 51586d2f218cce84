"""The trace of a simulated step: what Perfetto is told."""

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.library.classic import gpipe


def events(report: Report) -> list[dict[str, Any]]:
    found = json.loads(report.to_chrome_trace())
    assert found["displayTimeUnit"] == "ms"
    return found["traceEvents"]


def track_names(found: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in found if each["name"] == "thread_name"}


def test_tasks_messages_and_arrows() -> None:
    found = events(S.simulate(S.make("1f1b", meshes=2, microbatches=1), S.Costs(hop=0.5, activation_bytes=8)))
    assert track_names(found) == {
        (0, 0): "compute",
        (0, 1): "send",
        (0, 2): "recv",
        (1, 0): "compute",
        (1, 1): "recv",
        (1, 2): "send",
    }
    assert [each["args"]["name"] for each in found if each["name"] == "process_name"] == ["mesh 0", "mesh 1"]
    slices = [(each["pid"], each["name"], each["ts"], each["dur"]) for each in found if each["ph"] == "X"]
    assert slices == [
        (0, "forward 0, 0", 0, 1000),
        (0, "backward 0, 0", 5000, 2000),
        (1, "forward 1, 0", 1500, 1000),
        (1, "backward 1, 0", 2500, 2000),
        (0, "send 0, 0", 1000, 500),
        (1, "recv 0, 0", 1000, 500),
        (1, "send 1, 0", 4500, 500),
        (0, "recv 1, 0", 4500, 500),
    ]
    first = next(each for each in found if each["ph"] == "X")
    assert first["cat"] == "forward"
    assert first["args"] == {"stage": 0, "microbatch": 0, "seconds": 0.001}
    arrows = [(each["ph"], each["id"], each["pid"], each["ts"]) for each in found if each["ph"] in "sf"]
    assert arrows == [("s", 0, 0, 1000), ("f", 0, 1, 1000), ("s", 1, 1, 4500), ("f", 1, 0, 4500)]
    counters = [(each["pid"], each["ts"], each["args"]["bytes"]) for each in found if each["ph"] == "C"]
    assert counters == [(0, 0, 8), (0, 7000, 0), (1, 1500, 8), (1, 4500, 0)]


@pytest.mark.parametrize(("unit", "length"), [("s", 1e6), ("ms", 1e3), ("us", 1), ("units", 1e3)])
def test_times_are_microseconds(unit: str, length: float) -> None:
    found = events(S.simulate(gpipe(1, 1), S.Costs(unit=unit)))
    assert found[-1]["name"] == "live activations"
    durations = [each["dur"] for each in found if each["ph"] == "X"]
    assert durations == pytest.approx([length, 2 * length])


def test_copies_and_fused_tasks_and_slices() -> None:
    copied = S.offload(S.make("1f1b", meshes=2, microbatches=4))
    found = events(S.simulate(copied, S.Costs(kinds={"offload": 0.5, "reload": 0.5})))
    names = track_names(found)
    copies = {(names[each["pid"], each["tid"]], each["cat"]) for each in found if each["ph"] == "X"}
    moved = {"offload", "reload"}
    assert {pair for pair in copies if moved.intersection(pair)} == {("offload", "offload"), ("reload", "reload")}

    found = events(S.simulate(S.make("dualpipe-v", meshes=1, microbatches=4, fused=True)))
    fused = next(each for each in found if "+" in each["name"])
    assert (fused["name"], fused["cat"]) == ("forward 1, 1 + backward 0, 0", "forward+backward")
    waited = {"waited for": "backward 1, 0 of mesh 0"}
    assert fused["args"] == {"stage": [1, 0], "microbatch": [1, 0], "seconds": 0.0015} | waited

    found = events(S.simulate(S.make("seq1f1b", meshes=1, microbatches=1, slices=2)))
    assert [each["name"] for each in found if each["ph"] == "X"] == [
        "forward 0, 0",
        "forward 0, 0, 1",
        "backward 0, 0, 1",
        "backward 0, 0",
    ]


@settings(deadline=None, max_examples=60)
@given(schedules(), st.floats(0, 5), st.floats(0.1, 3))
def test_nothing_overlaps_on_a_track_and_arrows_point_at_slices(made: Made, hop: float, weight_grad: float) -> None:
    report = S.simulate(made.schedule, S.Costs(hop=hop, weight_grad=weight_grad, message_bytes=3, bandwidth=2))
    found = events(report)
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for each in found:
        if each["ph"] == "X":
            tracks[each["pid"], each["tid"]].append(each)
    for slices in tracks.values():
        slices.sort(key=lambda each: each["ts"])
        for first, second in itertools.pairwise(slices):
            assert first["ts"] + first["dur"] <= second["ts"] + 1e-6
    for each in found:
        if each["ph"] in ("s", "f"):
            assert any(each["ts"] == one["ts"] for one in tracks[each["pid"], each["tid"]])
    assert sum(len(slices) for slices in tracks.values()) == sum(map(len, made.schedule.cells)) + 2 * len(
        report.transfers
    )
    assert {each["pid"] for each in found} == set(range(made.meshes))
