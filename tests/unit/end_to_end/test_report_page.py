"""`CompiledStep.report`: the data of its page, and the advice that it gives."""

# pyright: reportUnknownLambdaType=false

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights
from unit.runtime.programs import tick
from unit.schedules.pages import data_of

import jaxpp.api as jaxpp
from jaxpp import schedules as S
from jaxpp.balancing import balance, stage_times
from jaxpp.reporting import device_bytes
from jaxpp.runtime import Event
from jaxpp.runtime.measuring.events import joined
from jaxpp.schedules.rewrites.tasks import insert
from jaxpp.step import CompiledStep


def page_of(compiled: CompiledStep, folder: Path, *steps: Any, **options: Any) -> dict[str, Any]:
    compiled.report(folder / "step.html", *steps, **options)
    return data_of((folder / "step.html").read_bytes())


def rows(page: dict[str, Any], title: str) -> list[list[str]]:
    return next(table["rows"] for table in page["tables"] if table["title"] == title)


def traced(stages: int = 2, microbatches: int = 4, **options: Any) -> tuple[CompiledStep, list[Event]]:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), make_mesh(2), **options)
    arguments = weights(stages), batch(microbatches)
    compiled = step.lower(*arguments).compile()
    return compiled, compiled.trace(*arguments)[1]


def test_the_measured_step_above_the_predicted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tick(monkeypatch)
    compiled, events = traced(memory_limit="1MiB")
    page = page_of(compiled, tmp_path, events)
    measured, predicted = page["steps"]
    assert page["title"] == "sgd_step: 2 stages on 2 meshes of 1 device, 4 microbatches, 7 programs"
    assert (page["unit"], measured["title"]) == ("s", f"measured: {max(each.end for each in events):.4g} s")
    assert predicted["title"].startswith("predicted: 1f1b, ")
    assert predicted["start"] * page["quantum"] == pytest.approx(1, rel=1e-3), "after the zeros of the sums"
    assert (measured["memory"]["limits"], predicted["memory"]["limits"]) == ([1 << 20] * 2, None)
    assert {each[0] for each in rows(page, "Compile times")} == set(compiled.executable.program.functions)
    called = {event.function for event in events if event.function}
    assert set(page["texts"]) == called
    assert all("func.func public @main" in text or "func.func @main" in text for text in page["texts"].values())
    hops = {each[0]: each[1:3] for each in rows(page, "Transfers")}
    assert hops == {"0 → 1": ["4", "512 B"], "1 → 0": ["4", "512 B"]}
    assert page["notes"] == ["Equal stages would not shorten the step."]


def test_other_costs_predict_the_step(tmp_path: Path) -> None:
    compiled, events = traced()
    page = page_of(compiled, tmp_path, events, costs=S.Costs(forward=3.0, unit="s"))
    times = [row[2:5] for row in rows(page, "Balance of the stages")]
    unit = {"s": 1, "ms": 1e3, "us": 1e6}[page["unit"]]
    assert times == [[f"{each * unit:.4g}" for each in (3, 1, 1)]] * 2


def test_a_report_without_a_trace_runs_a_step_on_zeros(tmp_path: Path) -> None:
    def train_step(params: Any, data: Any, key: jax.Array) -> Any:
        noisy = jax.tree.map(lambda w: w + 1e-3 * jax.random.normal(key, w.shape), params)
        return sgd_step(noisy, data, schedule=jaxpp.Std1F1B(2))

    step = jaxpp.mpmd_jit_with_loop(train_step, make_mesh(2), donate_argnums=0)
    compiled = step.lower(weights(2), batch(4), jax.random.key(0)).compile()
    measured, _ = page_of(compiled, tmp_path)["steps"]
    assert len(measured["spans"]["mesh"]) > 16


def test_notebooks_show_the_schedule_of_a_step() -> None:
    compiled, _ = traced()
    assert compiled._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')


@pytest.mark.parametrize("donate", [(), (0,)])
def test_the_memory_curve_has_the_peak_of_the_program(donate: tuple[int, ...]) -> None:
    """On a single mesh; on others a send may free its value later than the program does, as it takes time."""
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(1)), make_mesh(1), donate_argnums=donate)
    arguments = weights(1), batch(4)
    compiled = step.lower(*arguments).compile()
    _, events = compiled.trace(*arguments)
    executable = compiled.executable
    changes = sorted(device_bytes(executable.program, executable.stats, 0, events))  # what is freed comes first
    (found,) = compiled.memory_analysis()
    assert found is not None
    amounts = [*itertools.accumulate(change for _, change in changes)]
    assert max(amounts) == found.peak_memory_in_bytes
    assert min(amounts) >= 0


def test_the_layer_whose_move_gains_most() -> None:
    layers = S.Costs(forward=[1.0] * 6, input_grad=[1.0] * 6, weight_grad=[1.0] * 6, unit="ms")
    schedule = S.make("1f1b", meshes=3, microbatches=8)
    run = S.simulate(schedule, layers.cut([3, 1, 2]))
    better = S.simulate(schedule, layers.cut([2, 2, 2])).makespan
    found = balance(run, [3, 1, 2])
    gain = 1 - better / run.makespan
    assert found.advice == (
        f"Move one layer from stage 0 to stage 1: cuts=[2, 2, 2] would take {better:.4g} ms instead of "
        f"{run.makespan:.4g}, {gain:.1%} less."
    )
    assert [row[-1] for row in found.table.rows] == ["1.50", "0.50", "1.00"]
    even = S.simulate(schedule, layers.cut([2, 2, 2]))
    assert balance(even, [2, 2, 2]).advice == "No move of one layer shortens the step."


def test_stages_of_which_no_layers_are_known() -> None:
    schedule = S.make("1f1b", meshes=2, microbatches=8)
    run = S.simulate(schedule, S.Costs(forward=[4.0, 1.0], unit="ms"))
    even = S.Costs(forward=[3.0, 1.5], input_grad=[0.75, 1.5], weight_grad=[0.75, 1.5])
    gain = 1 - S.simulate(schedule, even).makespan / run.makespan
    assert stage_times(run) == [6, 3]
    assert balance(run, []).advice == (
        f"Stage 0 takes 1.33 of the mean. Equal stages would shorten the loop by {gain:.1%}. "
        "Mark every layer, and pass `cuts=jaxpp.partition(step, state, batch)`, to move layers."
    )


def test_a_planned_step(tmp_path: Path) -> None:
    mesh = jaxpp.target("cpu", devices=2).mesh((2,), ("mpmd",))
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), mesh)
    compiled = step.lower(weights(2), batch(4)).compile()
    page = page_of(compiled, tmp_path)
    (planned,) = page["steps"]
    assert planned["title"].startswith("planned: ")
    assert planned["memory"]["limits"] == [compiled.plan.facts.memory_bytes] * 2
    times = {name: float(seconds.removesuffix(" s")) for name, _, seconds in rows(page, "Compile times")}
    assert times.keys() == {each.name for each in compiled.plan.programs}
    assert min(times.values()) > 0


def test_a_first_trace_runs_a_step_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls no function of the user's, and the donated arguments are there for the step that is timed."""
    seen: list[int] = []
    look = S.Operation.parse("look: forward; time 1")
    schedule = insert(S.make("1f1b", meshes=2, microbatches=2), look, 0, after="forward")
    function = partial(sgd_step, schedule=schedule)
    options = jaxpp.StepOptions(operations={"look": lambda task: seen.append(task.microbatch)})
    step = jaxpp.mpmd_jit_with_loop(function, make_mesh(2), donate_argnums=0, options=options)
    params, data = weights(2), batch(2)
    expected = jax.tree.map(np.asarray, jax.jit(function)(params, data))
    compiled = step.lower(params, data).compile()
    found, events = compiled.trace(params, data)
    assert (seen, [event.kind for event in events].count("look")) == ([0, 1], 2)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)
    monkeypatch.setattr(type(compiled.executable), "warm_up", lambda *_: pytest.fail("it has run before"))
    compiled.trace(weights(2), data)


def test_events_of_several_processes_are_joined() -> None:
    """Of mesh 0, which both have, the first events count; a task of another process waited for a send."""
    task = Event(0, "forward", 0, 0, 0.0, 1.0, 1.0)
    send = Event(0, "send", 0, 0, 1.0, 2.0, 1.0, target=1, after=0, channel=7)
    there = Event(1, "forward", 1, 0, 2.0, 3.0, 1.0, awaited=7)
    last = Event(1, "after", None, None, 3.0, 4.0, 1.0, after=2)
    found = joined([[task, send], [task, send, there, last]])
    assert [(each.mesh, each.kind, each.after, each.awaited) for each in found] == [
        (0, "forward", None, None),
        (0, "send", 0, None),
        (1, "forward", 1, None),
        (1, "after", 2, None),
    ]
