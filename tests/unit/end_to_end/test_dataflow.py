"""What flows between stages: skip connections, the batch in every stage, values of any kind, parts of the loss."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, layers, lowered, make_mesh, weights
from unit.end_to_end.everywhere import check_loss, gradient_step, in_turn, more_plans, plans

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules.library.classic import one_f_one_b

mark = jaxpp.mark_stage_end


def squared_error(x: jax.Array, microbatch: Any) -> jax.Array:
    return jnp.mean((x - microbatch["y"]) ** 2)


def attend(x: jax.Array, memory: jax.Array) -> jax.Array:
    return jax.nn.softmax(x @ memory.T) @ memory


@more_plans
def test_skip_connections_over_several_stages(plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        a = mark(jnp.tanh(microbatch["x"] @ params[0]))
        b = mark(jnp.tanh(a @ params[1]))
        c = mark(jnp.tanh((a + b) @ params[2]))
        return squared_error(mark(jnp.tanh((a + c) @ params[3] + b)), microbatch)

    check_loss(loss, plan)


@more_plans
def test_encoder_decoder(plan: str) -> None:
    """What the encoder makes is used by each stage of the decoder."""

    def loss(params: Any, microbatch: Any) -> Any:
        y = microbatch["y"]
        memory = mark(jnp.tanh(microbatch["x"] @ params[0]))
        for w in params[1:]:
            y = mark(jnp.tanh(y @ w) + attend(y, memory))
        return squared_error(y, microbatch)

    check_loss(loss, plan)


@plans
def test_encoder_decoder_that_hands_its_memory_through_the_marks(plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        y = microbatch["y"]
        memory = mark(jnp.tanh(microbatch["x"] @ params[0]))
        for w in params[1:]:
            y, memory = mark((jnp.tanh(y @ w) + attend(y, memory), memory))
        return squared_error(y, microbatch)

    check_loss(loss, plan)


@more_plans
def test_every_stage_uses_the_batch(plan: str) -> None:
    """Masks and positions of the batch in each stage, labels in the last."""

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            positions = jnp.sin(microbatch["positions"] * 0.1 * stage)[:, None]
            x = mark(jnp.where(microbatch["mask"], jnp.tanh(x @ w + positions), x))
        return squared_error(x, microbatch)

    random = np.random.default_rng(1)
    extra = {"mask": random.random((4, 4, 8)) > 0.5, "positions": np.arange(16, dtype=np.int32).reshape(4, 4)}
    check_loss(loss, plan, microbatches=batch(4) | extra)


@plans
def test_keys_and_scalars_through_marks(plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x, key, count, scale = microbatch["x"], microbatch["key"], jnp.int32(3), jnp.float32(2)
        for w in params:
            key, own = jax.random.split(key)
            x = jnp.tanh(x @ w) * jax.random.bernoulli(own, 0.8, x.shape) * scale
            x, key, count, scale = mark((x, key, count + 1, scale * 0.9))
        return squared_error(x, microbatch) * count, {"key": jax.random.key_data(key), "count": count}

    data = {"x": P(None, "data"), "y": P(None, "data"), "key": P()}
    microbatches: dict[str, Any] = batch(4) | {"key": jax.random.split(jax.random.key(1), 4)}
    check_loss(loss, plan, microbatches=microbatches, has_aux=True, data=data)


@plans
def test_marks_on_a_pytree(plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        state: dict[str, Any] = {"x": microbatch["x"], "seen": [], "even": microbatch["x"] > 0, "none": None}
        for w in params:
            x = jnp.tanh(state["x"] @ w)
            state = mark(state | {"x": x, "seen": [*state["seen"], x.mean(-1)], "even": state["even"] ^ (x > 0)})
        value = squared_error(state["x"], microbatch) + 0.1 * sum(jnp.mean(each**2) for each in state["seen"])
        return value, state["even"]

    check_loss(loss, plan, has_aux=True)


@pytest.mark.parametrize(("where", "plan"), in_turn(["first", "middle", "ends"]))
def test_stages_without_parameters(where: str, plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        first, second = (lambda x: jnp.tanh(x @ params[0])), (lambda x: jnp.tanh(x @ params[1]))
        stages = {
            "first": [lambda x: x, jnp.sin, first, second],
            "middle": [first, jnp.sin, lambda x: x, second],
            "ends": [jnp.sin, first, second, lambda x: x],
        }[where]
        x = microbatch["x"]
        for stage in stages:
            x = mark(stage(x))
        return squared_error(x, microbatch)

    check_loss(loss, plan, weights(2))


def test_stages_of_very_different_size() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "up": jax.random.normal(keys[0], (8, 64)) / 3,
        "down": jax.random.normal(keys[1], (64, 8)) / 8,
        "scale": jax.random.normal(keys[2], (8,)),
        "many": weights(3),
    }

    def loss(params: Any, microbatch: Any) -> Any:
        x = mark(jnp.tanh(microbatch["x"] @ params["up"]))
        x = mark(mark(x @ params["down"]) * params["scale"])
        for w in params["many"]:
            x = jnp.tanh(x @ w)
        return squared_error(mark(x), microbatch)

    check_loss(loss, "interleaved-1f1b", params)


@more_plans
def test_every_stage_adds_to_the_loss(plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x, extra = microbatch["x"], jnp.float32(0)
        for w in params:
            x = jnp.tanh(x @ w)
            extra += jnp.mean(x**4) + 1e-2 * jnp.sum(w**2)
            x = mark(x)
        return squared_error(x, microbatch) + extra, {"extra": extra}

    check_loss(loss, plan, has_aux=True)


@plans
def test_a_loss_of_two_stages(plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = layers(params[:2], microbatch["x"], 1)
        auxiliary = jnp.mean(x**4)
        return squared_error(layers(params[2:], mark(x)), microbatch) + auxiliary

    check_loss(loss, plan)


# On the activations that one stage hands to the next, or on those of a stage before it ends.
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("frozen", "plan"), in_turn(range(4), ["gpipe", "chimera"]))
def test_no_gradient_beyond_a_stage(frozen: int, plan: str, after: bool) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            x = jnp.tanh(x @ w)
            if stage == frozen and not after:
                x = jax.lax.stop_gradient(x)
            x = mark(x)
            if stage == frozen and after and stage < 3:
                x = jax.lax.stop_gradient(x)
        return squared_error(x, microbatch)

    check_loss(loss, plan)


@pytest.mark.parametrize(("frozen", "plan"), in_turn([0, 1, 2, 3, 3, 0], ["1f1b", "chimera", "sharded"]))
def test_frozen_weights(frozen: int, plan: str) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        params = [jax.lax.stop_gradient(w) if k == frozen else w for k, w in enumerate(params)]
        return squared_error(layers(params, microbatch["x"]), microbatch)

    check_loss(loss, plan)


def test_stages_of_one_mesh_share_weights() -> None:
    """Stages 0 and 2 have one copy of a weight, 1 and 3 of another, each updated where it is used."""
    schedule = one_f_one_b(2, 4, placement=schedules.Placement.of(0, 1, 0, 1))

    def loss(params: Any, microbatch: Any) -> Any:
        return squared_error(layers([params[k % 2] for k in range(4)], microbatch["x"]), microbatch)

    step = partial(gradient_step, schedule=schedule, loss=loss)
    arguments = (weights(2, width=6), batch(4, width=6))
    found = check(step, arguments, make_mesh(2))
    assert [w.devices() for w in found[0]] == [{device} for device in jax.devices()[:2]]
    program = lowered(step, arguments, make_mesh(2)).program().as_text()
    sent = [line for line in program.splitlines() if "stablehlo.send" in line]
    assert sent
    assert not any("tensor<6x6xf32>" in line for line in sent), "no weight, and no gradient of one"
