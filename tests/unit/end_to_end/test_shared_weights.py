"""Weights that several stages use, and stages on several meshes: one gradient per mesh and step crosses, no more."""

# pyright: reportUnknownLambdaType=false

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from unit.end_to_end import transformer
from unit.end_to_end.compare import assert_same, batch, check, feed_state, layers, lowered, make_mesh, sgd_step, weights
from unit.end_to_end.everywhere import in_turn

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules.rewrites.peers import evict

# (name, meshes): four stages each.
SCHEDULES = [("1f1b", 4), ("interleaved-1f1b", 2), ("chimera", 4), ("bitpipe", 2)]


def schedule_of(name: str, meshes: int, microbatches: int = 4) -> schedules.Schedule:
    return schedules.make(name, meshes=meshes, microbatches=microbatches)


def squared_error(x: jax.Array, microbatch: Any) -> jax.Array:
    return jnp.mean((x - microbatch["y"]) ** 2)


def matrix(params: Any) -> jax.Array:
    """The shared weight, which has a shape of its own, so that it is told apart in a program."""
    return params["shared"].reshape(8, 8)


def tied(params: Any, microbatch: Any) -> jax.Array:
    """The first weight embeds in stage 0 and projects in the last stage."""
    x = layers(params["layers"], microbatch["x"] @ matrix(params).T, 3)
    return squared_error(x @ matrix(params), microbatch)


def twice_tied(params: Any, microbatch: Any) -> jax.Array:
    """Two weights, each in the first and the last stage."""
    shared = matrix(params)
    x = layers(params["layers"], (microbatch["x"] @ shared.T) * params["scale"], 3)
    return squared_error((x / params["scale"]) @ shared, microbatch)


def in_three_stages(params: Any, microbatch: Any) -> jax.Array:
    """One weight in the stages 0, 1 and 3."""
    x = microbatch["x"]
    for stage, w in enumerate(params["layers"]):
        x = jnp.tanh(x @ w)
        if stage != 2:
            x = x + jnp.sin(x @ matrix(params).T) @ matrix(params)
        x = jaxpp.mark_stage_end(x) if stage < 3 else x
    return squared_error(x, microbatch)


def scalar_in_all(params: Any, microbatch: Any) -> jax.Array:
    """A temperature that every stage uses."""
    x = microbatch["x"]
    for w in params["layers"]:
        x = jaxpp.mark_stage_end(jnp.tanh((x @ w) / params["temperature"]))
    return squared_error(x, microbatch)


def in_bfloat16(params: Any, microbatch: Any) -> Any:
    """A tied weight that is cast once and then used twice: the sum over the stages is taken before it is cast back."""
    low = {name: jax.tree.map(lambda w: w.astype(jnp.bfloat16), value) for name, value in params.items()}
    return tied(low, microbatch | {"x": microbatch["x"].astype(jnp.bfloat16)}).astype(jnp.float32)


SHARED: dict[str, dict[str, Any]] = {
    "shared": {"shared": jax.random.normal(jax.random.key(7), (2, 4, 8)) / 3},
    "scale": {"scale": jnp.linspace(0.5, 1.5, 8)},
    "temperature": {"temperature": jnp.float32(1.5)},
}
CASES: dict[Any, tuple[str, ...]] = {
    tied: ("shared",),
    twice_tied: ("shared", "scale"),
    in_three_stages: ("shared",),
    scalar_in_all: ("temperature",),
}


def parameters(*shared: str) -> dict[str, Any]:
    return {"layers": weights(4), **{name: value for each in shared for name, value in SHARED[each].items()}}


@pytest.mark.parametrize(("loss", "schedule"), in_turn([*CASES, *reversed(CASES)], SCHEDULES))
def test_weights_of_several_stages(loss: Any, schedule: tuple[str, int]) -> None:
    name, meshes = schedule
    step = partial(sgd_step, schedule=schedule_of(name, meshes), loss=loss)
    check(step, (parameters(*CASES[loss]), batch(4)), make_mesh(meshes), steps=3, feed=feed_state)


def offload_again(plan: schedules.Schedule) -> schedules.Schedule:
    return schedules.offload(schedules.recompute(plan, 0, 3), ahead=0)


@pytest.mark.parametrize("name", ["1f1b", "chimera"])
@pytest.mark.parametrize("loss", [tied, in_three_stages])
def test_less_is_kept_of_stages_that_share_a_weight(loss: Any, name: str) -> None:
    """What moves changes no bit; shared weights are no residuals, and stay where they are."""
    plan = schedule_of(name, 4, 8)
    arguments = (parameters("shared"), batch(plan.microbatches))
    whole = check(partial(sgd_step, schedule=plan, loss=loss), arguments, make_mesh(4))
    moves = [partial(schedules.offload, ahead=0), schedules.recompute, offload_again]
    for move in [*moves, *[evict] * (name == "1f1b")]:
        step = lowered(partial(sgd_step, schedule=move(plan), loss=loss), arguments, make_mesh(4))
        assert_same(step.compile()(*arguments), whole, exact=move in (moves[0], evict))
        text = step.program().as_text()
        moved = re.findall(r"call @(?:offload|evict)_\d+.* : \((.*?)\) ->", text)
        assert moved or move is schedules.recompute
        assert not any("2x4x8" in types or "8x8x" in types for types in moved)


def test_a_cast_weight_of_two_stages() -> None:
    step = partial(sgd_step, schedule=schedule_of("1f1b", 4), loss=in_bfloat16)
    check(step, (parameters("shared"), batch(4)), make_mesh(4), tolerance=1e-2)


@pytest.mark.parametrize(("name", "meshes"), SCHEDULES[1:3])
def test_language_model_with_tied_embeddings(name: str, meshes: int) -> None:
    untied, moments = transformer.state(4)
    state = tuple({k: v for k, v in tree.items() if k != "head"} for tree in (untied, moments[0].trace))
    state = (state[0], (moments[0]._replace(trace=state[1]), *moments[1:]))
    step = partial(transformer.train_step, schedule=schedule_of(name, meshes))
    arguments = (state, transformer.batch(4))
    check(step, arguments, make_mesh(meshes), steps=2, feed=feed_state, reference=transformer.PLAIN)


def sends(text: str, type_: str) -> int:
    """How many values of a type the program sends."""
    return len(re.findall(rf'"stablehlo\.send".*\(tensor<{type_}>, !stablehlo\.token\)', text))


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize(
    ("loss", "name", "meshes", "expected"),
    [
        # the sum of one mesh, and the new weight back
        (tied, "1f1b", 4, 2),
        (tied, "interleaved-1f1b", 2, 2),
        (tied, "chimera", 4, 2),
        # both stages on one mesh: one sum
        (tied, "hanayo", 2, 0),
        # the sum of one mesh; the weight lives on the other, which sends it before the loop, in bfloat16
        (in_bfloat16, "1f1b", 4, 1),
        # two sums to the mesh of stage 0, two weights back
        (in_three_stages, "1f1b", 4, 4),
        (in_three_stages, "interleaved-1f1b", 2, 2),
        (in_three_stages, "chimera", 4, 6),
    ],
)
def test_a_gradient_crosses_once_per_mesh(loss: Any, name: str, meshes: int, expected: int, microbatches: int) -> None:
    step = partial(sgd_step, schedule=schedule_of(name, meshes, microbatches), loss=loss)
    program = lowered(step, (parameters("shared"), batch(microbatches)), make_mesh(meshes)).program().as_text()
    assert sends(program, "2x4x8xf32") == expected
    assert sends(program, "8x8xf32") == (8 if name == "chimera" else 0), "the weights of the layers, there and back"


def test_weights_on_two_meshes_go_back_in_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    step = partial(sgd_step, schedule=schedule_of("chimera", 4), loss=tied)
    step = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(4), donate_argnums=0)
    params, _ = step(parameters("shared"), batch(4))
    homes = [{0, 3}, {1, 2}, {1, 2}, {0, 3}]
    assert [{device.id for device in w.devices()} for w in params["layers"]] == homes
    assert {device.id for device in params["shared"].devices()} == {0, 3}
    assert params["shared"].is_fully_replicated
    moved: list[Any] = []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, *rest: moved.append(x) or put(x, *rest))
    step(params, batch(4))
    assert len(moved) == 2, "the batch, and no weight"
