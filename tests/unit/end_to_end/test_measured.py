"""A step as it was measured, and the same schedule as it is simulated with the costs of that step."""

import functools
import json
import re
from pathlib import Path

import pytest
from unit.end_to_end.compare import assert_same, batch, make_mesh, sgd_step, weights
from unit.runtime.programs import tick

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.runtime import Event, write_chrome_trace
from jaxpp.step import CompiledStep


@pytest.mark.parametrize(
    ("name", "meshes", "options"),
    [
        ("gpipe", 2, {}),
        ("1f1b", 3, {}),
        ("interleaved-1f1b", 2, {"chunks": 2}),
        ("hanayo", 2, {}),
        ("chimera", 2, {}),
        ("dualpipe", 2, {}),
    ],
)
def test_simulated_with_its_costs_a_step_is_as_it_was_measured(
    name: str, meshes: int, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call and copy takes a second; each mesh runs what stands before the loop first."""
    tick(monkeypatch)
    schedule = schedules.make(name, meshes=meshes, microbatches=4, **options)
    compiled, events = traced(schedule, meshes)
    costs = compiled.costs(events, unit="s")
    tasks = [event for event in events if event.labels[0].stage is not None and event.target is None]
    report = schedules.simulate(schedule, costs)
    first = min(event.start for event in tasks)
    measured = {label: event.start - first for event in tasks for label in event.labels}
    simulated = {(task.kind, task.stage, task.microbatch, 0): report.times(task)[0] for task in schedule}
    assert measured == pytest.approx(simulated, abs=1e-6)
    activation = 4 * 8 * 4  # [4, 8] in float32
    assert costs.message_bytes == (*[activation] * (schedule.stages - 1), 0)


def test_tasks_that_are_fused_keep_their_names(tmp_path: Path) -> None:
    """In the trace as in that of the simulator, on the bars and the arrows; and what a task keeps is no other's."""
    schedule = schedules.make("dualpipe", meshes=2, microbatches=6)
    compiled, events = traced(schedule, 2)
    write_chrome_trace(events, tmp_path / "step.json")
    found, expected = (
        {each["name"] for each in json.loads(text)["traceEvents"] if each["ph"] == "X" and "None" not in each["name"]}
        for text in ((tmp_path / "step.json").read_text(), schedules.simulate(schedule).to_chrome_trace())
    )
    assert found >= expected
    assert any(re.fullmatch(r"forward 1, \d \+ backward 0, \d", name) for name in found)
    apart = compiled.costs(events)
    plain, its_events = traced(schedules.make("gpipe", meshes=2, microbatches=6), 2)
    alone = plain.costs(its_events)
    assert (apart.activation_bytes, apart.message_bytes) == (alone.activation_bytes, alone.message_bytes)


def test_a_measured_step_in_files(tmp_path: Path) -> None:
    schedule = schedules.make("1f1b", meshes=2, microbatches=4)
    compiled, events = traced(schedule, 2)
    compiled.costs(events, events).save(tmp_path / "costs.json")
    costs = schedules.Costs.load(tmp_path / "costs.json")
    assert costs == compiled.costs(events)
    assert schedules.simulate(schedule, costs).makespan > 0
    assert schedules.tune(costs, meshes=2, microbatches=4, seconds=0.1).best.report is not None


def traced(schedule: schedules.Schedule, meshes: int) -> tuple[CompiledStep, list[Event]]:
    step = functools.partial(sgd_step, schedule=schedule)
    arguments = weights(schedule.stages), batch(schedule.microbatches)
    compiled = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(meshes)).lower(*arguments).compile()
    expected = compiled(*arguments)
    found, events = compiled.trace(*arguments)
    assert_same(found, expected, exact=True)
    return compiled, events
