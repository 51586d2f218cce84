"""What a step says of itself: its reprs, its summary, its memory and its costs."""

# pyright: reportUnknownLambdaType=false

import itertools
import re
import sys
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.runtime import Call, load
from jaxpp.runtime.execution.progress import Progress
from jaxpp.runtime.measuring import analysis


def train_step(params: Any, data: Any) -> Any:
    """A function with a name."""
    return sgd_step(params, data, schedule=jaxpp.Std1F1B(2))


def test_reprs_say_what_it_is() -> None:
    step = jaxpp.mpmd_jit_with_loop(train_step, make_mesh(2, data=2))
    mesh = "MpmdMesh(mpmd=2 of (data=2, model=1), cpu)"
    assert repr(step) == f"<MpmdFunction train_step on {mesh}: compiled for 0 kinds of arguments>"
    lowered = step.lower(weights(2), batch(4))
    assert repr(lowered) == f"<LoweredStep of train_step: 4 arrays in, 3 out, {mesh}>"
    assert repr(lowered.program()) == "<ProgramModule of 2 meshes: 7 functions>"
    compiled = lowered.compile()
    title = "train_step: 2 stages on 2 meshes of 2 devices, 4 microbatches, 7 programs"
    assert repr(compiled) == f"<CompiledStep of {title}>"
    assert repr(compiled.executable) == "Executable(<Program of 2 meshes: 7 functions, 20 calls, 8 sends>)"
    assert compiled.summary().splitlines()[0] == f"{title} (cpu)"


def test_a_mesh_without_parameters_is_named() -> None:
    """One of the marks of two layers is forgotten: the last stage has the loss alone."""

    def loss(params: Any, microbatch: Any) -> Any:
        x = jaxpp.mark_stage_end(microbatch["x"] @ params[0] @ params[1])
        return jax.numpy.mean(x**2)

    step = partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2))
    compiled = jaxpp.mpmd_jit_with_loop(step, make_mesh(2)).compile(weights(2), batch(2))
    assert compiled.summary().endswith(
        "\nWithout parameters and products: mesh 1. Is a stage mark missing, or before a layer in place of after it?"
    )


def test_slow_passes_tell_how_far_they_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By a clock that goes on by a second whenever it is asked: twice for each pass, and for each line."""
    seconds = itertools.count()

    def progress(what: str, total: int, bar: bool) -> Progress:
        return Progress(what, total, sys.stderr, lambda: float(next(seconds)), bar)

    monkeypatch.setattr("jaxpp.program.Progress", progress)
    jaxpp.mpmd_jit_with_loop(train_step, make_mesh(2)).lower(weights(2), batch(4)).program()
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"jaxpp: rewriting the module: 5 of \d+ after 12 s(, now [a-z-]+)?", first)
    assert re.fullmatch(r"jaxpp: rewriting the module: all (\d+) after \d+ s", last)


def test_reprs_of_meshes_and_schedules() -> None:
    devices = np.array(jax.devices())
    meshes = [Mesh(devices[:2], ("data",)), Mesh(devices[2:6], ("data",))]
    assert repr(jaxpp.MpmdMesh.of(meshes)) == "MpmdMesh(mpmd=2 of [(data=2), (data=4)], cpu)"
    assert repr(jaxpp.MpmdMesh(Mesh(devices[:2], ("stages",)), "stages")) == "MpmdMesh(stages=2, cpu)"
    schedule = schedules.make("1f1b", meshes=2, microbatches=4)
    assert repr(schedule) == "<Schedule '1f1b': stages=2, meshes=2, microbatches=4, tasks=16>"
    assert repr(jaxpp.Std1F1B(2)) == "Std1F1B(num_stages=2)"


def test_one_task_has_the_numbers_of_jax() -> None:
    """A program of one function takes what the same function takes under `jax.jit`."""

    def forward(x: Any, w: Any) -> Any:
        return jaxpp.mark_stage_end(jax.numpy.tanh(x @ w))

    arguments = weights(2)
    compiled = jaxpp.mpmd_jit_by_yield(forward, make_mesh(1)).compile(*arguments)
    (found,), (costs,) = compiled.memory_analysis(), compiled.cost_analysis()
    plain = jax.jit(forward).lower(*arguments).compile()
    expected: Any = plain.memory_analysis()
    assert found is not None
    assert costs is not None
    for name in ("argument", "output", "temp"):
        assert getattr(found, f"{name}_size_in_bytes") == getattr(expected, f"{name}_size_in_bytes"), name
    assert costs["flops"] == (plain.cost_analysis() or {})["flops"]


def test_parameters_are_counted_through_a_cast_and_moments_are_not() -> None:
    """Nor is the batch, though it is floating-point. What two stages share is on mesh 0, which sends its cast."""

    def loss(params: Any, microbatch: Any) -> Any:
        first, second, shared = jax.tree.map(lambda w: w.astype("bfloat16"), params)
        x = jaxpp.mark_stage_end(microbatch["x"].astype("bfloat16") @ first @ shared)
        return jax.numpy.mean((x @ shared @ second).astype("float32") ** 2)

    def step(state: Any, data: Any) -> Any:
        params, moments = state
        params, losses = sgd_step(params, data, loss=loss, schedule=jaxpp.Std1F1B(2))
        return (params, jax.tree.map(lambda m, p: 0.9 * m + p, moments, params)), losses

    params = [np.ones((8, 16), np.float32), np.ones((16, 4), np.float32), np.ones((16, 16), np.float32)]
    compiled = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), donate_argnums=0).compile((params, params), batch(3))
    rows = [line.split() for line in compiled.summary().splitlines()[3:7]]
    assert [row[2] for row in rows[:2]] == [str(128 + 256), "64"]
    assert rows[3][1] == str(128 + 64 + 256)


@pytest.mark.parametrize(
    ("name", "meshes", "options"), [("dualpipe", 2, {}), ("interleaved-1f1b", 1, {"chunks": 1, "fused": True})]
)
def test_fused_calls_count_for_all_their_stages(name: str, meshes: int, options: dict[str, Any]) -> None:
    """Those of the second schedule are all that its mesh runs of the microbatches."""
    schedule = schedules.make(name, meshes=meshes, microbatches=4, **options)
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), make_mesh(meshes))
    program = load(step.lower(weights(schedule.stages), batch(4)).program().module)
    assert any(isinstance(each, Call) and each.fused for each in program.sequences[0])
    assert [analysis.stages(program, mesh) for mesh in range(meshes)] == [
        sorted({task.stage for task in order}) for order in schedule.orders
    ]
    assert analysis.microbatches(program) == 4
    assert set(analysis.parameters(program, program.arguments)) == set(range(schedule.stages + 2))
