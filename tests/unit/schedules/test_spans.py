"""Why each mesh is idle, the critical path, and traces that are read back."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.read_trace import read_chrome_trace
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.engine.spans import CAUSES, COMPUTE, Span, critical_path, hops_of, makespan_of, named, waited_for


def report(name: str, meshes: int, microbatches: int, **costs: Any) -> Report:
    return S.simulate(S.make(name, meshes=meshes, microbatches=microbatches), S.Costs(**costs))


def waits(run: Report) -> list[str]:
    return [waited_for(run.spans, number) for number in range(len(run.spans))]


def causes(run: Report) -> list[tuple[int, float, float, str, str]]:
    return [
        (each.mesh, each.start, each.length, each.cause, "" if each.after is None else named(run.spans[each.after]))
        for each in run.bubbles
    ]


def test_what_each_task_waited_for() -> None:
    assert waits(report("1f1b", 2, 2))[:8] == [
        "",
        "forward 0, 0 of mesh 0",
        "send 1, 0 of mesh 1 to mesh 0",
        "send 1, 1 of mesh 1 to mesh 0",
        "send 0, 0 of mesh 0 to mesh 1",
        "forward 1, 0 of mesh 1",
        "backward 1, 0 of mesh 1",
        "forward 1, 1 of mesh 1",
    ]


def test_a_mesh_waits_for_a_task_then_for_a_transfer() -> None:
    """The transfer of the second gradient is under way when mesh 0 has nothing more to do."""
    assert causes(report("1f1b", 2, 2, hop=4)) == [
        (0, 2, 10, "task", "send 1, 0 of mesh 1 to mesh 0"),
        (0, 14, 1, "transfer", "send 1, 1 of mesh 1 to mesh 0"),
        (1, 0, 5, "task", "send 0, 0 of mesh 0 to mesh 1"),
        (1, 11, 6, "end", ""),
    ]


def test_a_mesh_waits_for_its_host() -> None:
    copied = S.offload(S.make("1f1b", meshes=2, microbatches=4), ahead=1)
    run = S.simulate(copied, S.Costs(kinds={"offload": 0.5, "reload": 6}))
    assert {cause for *_, cause, _ in causes(run)} == {"task", "host", "end"}
    assert {after.split()[0] for *_, cause, after in causes(run) if cause == "host"} == {"reload"}


def test_a_mesh_gathers_weights() -> None:
    run = report("1f1b", 2, 2, gather=0.5)
    assert causes(run)[0] == (0, 0, 0.5, "weights", "")


def test_the_critical_path_of_a_pipeline() -> None:
    run = report("gpipe", 2, 2, hop=0.5)
    assert [named(run.spans[number]) for number in critical_path(run.spans)] == [
        "forward 0, 0 of mesh 0",
        "send 0, 0 of mesh 0 to mesh 1",
        "forward 1, 0 of mesh 1",
        "forward 1, 1 of mesh 1",
        "backward 1, 0 of mesh 1",
        "send 1, 0 of mesh 1 to mesh 0",
        "backward 0, 0 of mesh 0",
        "backward 0, 1 of mesh 0",
    ]


@settings(deadline=None, max_examples=30)
@given(schedules(), st.sampled_from([0.0, 0.3, 2.0]))
def test_causes_and_the_critical_path_account_for_all_times(made: Made, hop: float) -> None:
    run = S.simulate(made.schedule, S.Costs(hop=hop))
    spans, makespan = run.spans, makespan_of(run.spans)
    assert makespan == pytest.approx(run.makespan)
    for mesh in range(made.meshes):
        idle = sum(each.length for each in run.bubbles if each.mesh == mesh)
        assert idle + run.busy_of_meshes[mesh] == pytest.approx(makespan)
    for each in run.bubbles:
        assert each.cause in CAUSES
        if each.after is not None:
            assert spans[each.after].end == pytest.approx(each.start + each.length), "until then it waited"
    path = [spans[number] for number in critical_path(spans)]
    assert (path[0].start, path[-1].end) == (0, pytest.approx(makespan))
    for one, other in itertools.pairwise(path):
        assert one.end == pytest.approx(other.start), "nothing on it waits for anything else"


@settings(deadline=None, max_examples=20)
@given(schedules(), st.sampled_from([0.0, 0.3]))
def test_a_trace_is_read_back(made: Made, hop: float) -> None:
    run = S.simulate(made.schedule, S.Costs(hop=hop, activation_bytes=64, message_bytes=8, unit="ms"))
    read = read_chrome_trace(run.to_chrome_trace())
    assert len(read.memory.curves) == made.meshes

    def what(spans: list[Span]) -> Counter[tuple[object, ...]]:
        return Counter((each.mesh, each.track, each.target, each.bytes) for each in spans)

    assert what(read.spans) == what(run.spans)
    own = [(each.mesh, str(each), round(each.start, 6)) for each in run.spans if each.track == COMPUTE]
    assert [(each.mesh, str(each), round(each.start, 6)) for each in read.spans if each.track == COMPUTE] == own
    assert makespan_of(read.spans) == pytest.approx(run.makespan)
    assert sum(hop.bytes for hop in hops_of(read.spans)) == pytest.approx(sum(hop.bytes for hop in hops_of(run.spans)))
    for span in read.spans:
        assert span.after is None or read.spans[span.after].end <= span.start + 1e-6


@pytest.mark.parametrize("text", ["[]", "{}", '{"traceEvents": 3}', '{"traceEvents": [{"name": "a"}]}', "{"])
def test_what_is_no_trace(text: str) -> None:
    with pytest.raises(S.ScheduleError, match=r"^it is no trace of jaxpp \(.*\): expected a file of jaxpp\.runtime"):
        read_chrome_trace(text)
