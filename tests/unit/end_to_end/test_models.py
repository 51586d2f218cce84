"""What models do between and across marks."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end.compare import batch, check, feed_state, layers, lowered, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(3)
mark = jaxpp.mark_stage_end


def squared_error(x: jax.Array, microbatch: Any) -> jax.Array:
    return jnp.mean((x - microbatch["y"]) ** 2)


def check_loss(loss: Any, params: Any, steps: int = 1, **options: Any) -> Any:
    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    return check(step, (params, batch(4)), make_mesh(3), steps=steps, feed=feed_state, **options)


def test_skip_connection_over_all_stages() -> None:
    """The last stage has no mark."""

    def loss(params: Any, microbatch: Any) -> Any:
        first = microbatch["x"] @ params[0]
        return squared_error(layers(params, first, 2) + first, microbatch)

    check_loss(loss, weights(3))


def test_unused_parameter() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        return squared_error(layers(params[:3], microbatch["x"]), microbatch)

    check_loss(loss, weights(4), steps=2)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_stage(frozen: int) -> None:
    def step(params: Any, batch: Any) -> Any:
        trained = [w for k, w in enumerate(params) if k != frozen]

        def loss(trained: Any, microbatch: Any) -> Any:
            full = [*trained[:frozen], params[frozen], *trained[frozen:]]
            return squared_error(layers(full, microbatch["x"]), microbatch)

        new, losses = sgd_step(trained, batch, schedule=SCHEDULE, loss=loss)
        return [*new[:frozen], params[frozen], *new[frozen:]], losses

    check(step, (weights(3), batch(4)), make_mesh(3), steps=2, feed=feed_state)


def test_bfloat16_compute_with_float32_weights() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"].astype(jnp.bfloat16)
        for w in params:
            x = mark(jnp.tanh(x @ w.astype(jnp.bfloat16)))
        return squared_error(x.astype(jnp.float32), microbatch)

    found, _ = check_loss(loss, weights(3), tolerance=1e-2)
    assert {w.dtype for w in found} == {jnp.dtype("float32")}


def test_integer_labels_enter_in_the_last_stage() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = layers(params, microbatch["x"], 2)
        return jnp.mean((x * jax.nn.one_hot(microbatch["label"], 8)).sum(-1))

    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    labels = np.random.default_rng(1).integers(0, 8, (4, 4)).astype(np.int32)
    args = (weights(3), {"x": batch(4)["x"], "label": labels})
    check(step, args, make_mesh(3))
    text = lowered(step, args, make_mesh(3)).program().as_text()
    (last,) = [line for line in text.splitlines() if "public @mesh_2" in line]
    assert "tensor<4x4xi32>" in last, "the labels are an argument of the last mesh"
