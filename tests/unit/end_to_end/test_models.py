"""What models do between and across marks."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end.compare import batch, check, feed_state, layers, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(3)
mark = jaxpp.mark_stage_end


def squared_error(x: jax.Array, microbatch: Any) -> jax.Array:
    return jnp.mean((x - microbatch["y"]) ** 2)


def check_loss(loss: Any, params: Any, steps: int = 1, **options: Any) -> Any:
    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    return check(step, (params, batch(4)), make_mesh(3), steps=steps, feed=feed_state, **options)


@pytest.mark.parametrize("marks", [2, 3])
def test_skip_connection_over_all_stages(marks: int) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        first = microbatch["x"] @ params[0]
        return squared_error(layers(params, first, marks) + first, microbatch)

    check_loss(loss, weights(3))


def test_stage_may_use_the_one_before_the_last() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        a = mark(jnp.tanh(microbatch["x"] @ params[0]))
        b = mark(jnp.tanh(a @ params[1]))
        return squared_error(mark(jnp.tanh((a + b) @ params[2])), microbatch)

    check_loss(loss, weights(3))


def test_weight_shared_by_the_first_and_the_last_stage() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = layers(params[1:], microbatch["x"] @ params[0])
        return squared_error(x @ params[0].T, microbatch)

    check_loss(loss, weights(4), steps=2)


def test_one_array_holds_the_weights_of_all_stages() -> None:
    def loss(stacked: Any, microbatch: Any) -> Any:
        return squared_error(layers([stacked[k] for k in range(3)], microbatch["x"]), microbatch)

    check_loss(loss, jnp.stack(weights(3)), steps=2)


def test_unused_parameter() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        return squared_error(layers(params[:3], microbatch["x"]), microbatch)

    check_loss(loss, weights(4), steps=2)


def test_stage_without_parameters() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = mark(jnp.sin(mark(jnp.tanh(microbatch["x"] @ params[0]))))
        return squared_error(mark(jnp.tanh(x @ params[1])), microbatch)

    check_loss(loss, weights(2))


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


@pytest.mark.parametrize("marked", [True, False])
def test_jitted_layer_in_every_stage(marked: bool) -> None:
    @jax.jit
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        x = jnp.tanh(x @ w)
        return mark(x) if marked else x

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = layer(w, x) if marked else mark(layer(w, x))
        return squared_error(x, microbatch)

    check_loss(loss, weights(3))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_checkpoint_around_a_block(policy: Any) -> None:
    @partial(jax.checkpoint, policy=policy)
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.sin(x @ w) @ w)

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = mark(block(w, x))
        return squared_error(x, microbatch)

    check_loss(loss, weights(3))


def test_scan_over_the_layers_of_a_stage() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stacked in params:
            x = mark(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stacked)[0])
        return squared_error(x, microbatch)

    check_loss(loss, [jnp.stack(weights(2))] * 3)


def test_conditional_in_a_stage() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = mark(jax.lax.cond(x[0, 0] > 0, lambda x, w: jnp.tanh(x @ w), lambda x, w: x @ w, x, w))
        return squared_error(x, microbatch)

    check_loss(loss, weights(3))


def test_custom_vjp() -> None:
    @jax.custom_vjp
    def halved(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    halved.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (0.5 * g * (1 - jnp.tanh(x) ** 2),))

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = mark(halved(x @ w))
        return squared_error(x, microbatch)

    check_loss(loss, weights(3))


def test_bfloat16_compute_with_float32_weights() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"].astype(jnp.bfloat16)
        for w in params:
            x = mark(jnp.tanh(x @ w.astype(jnp.bfloat16)))
        return squared_error(x.astype(jnp.float32), microbatch)

    found, _ = check_loss(loss, weights(3), tolerance=1e-2)
    assert {w.dtype for w in found} == {jnp.dtype("float32")}


def test_pytree_with_integers_and_booleans_through_marks() -> None:
    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any, microbatch: Any) -> Any:
            x = microbatch["x"]
            state: dict[str, Any] = {"x": x, "n": jnp.int32(0), "mask": x[:, 0] > 0, "y": (microbatch["y"], None)}
            for w in params:
                x = jnp.tanh(state["x"] @ w) * jnp.where(state["mask"], 1.0, 0.5)[:, None]
                state = mark(state | {"x": x, "n": state["n"] + jnp.sum(x > 0), "mask": state["mask"] ^ (x[:, 1] > 0)})
            return jnp.mean((state["x"] - state["y"][0]) ** 2) * (1 + state["n"]), (state["n"], state["mask"])

        one = partial(jax.value_and_grad(loss, has_aux=True), params)
        operation = ((jaxpp.Concat(), (jaxpp.Add, jaxpp.Concat())), jaxpp.Add)
        return jaxpp.treduce(one, batch, schedule=SCHEDULE, operation=operation)

    check(step, (weights(3), batch(4)), make_mesh(3))


def test_integer_labels_enter_in_the_last_stage() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = layers(params, microbatch["x"], 2)
        return jnp.mean((x * jax.nn.one_hot(microbatch["label"], 8)).sum(-1))

    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    labels = np.random.default_rng(1).integers(0, 8, (4, 4)).astype(np.int32)
    pipelined = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3))
    args = (weights(3), {"x": batch(4)["x"], "label": labels})
    check(step, args, make_mesh(3))
    (last,) = [line for line in pipelined.lower(*args).program().as_text().splitlines() if "public @mesh_2" in line]
    assert "tensor<4x4xi32>" in last, "the labels are an argument of the last mesh"


@pytest.mark.parametrize("tied", [True, False])
def test_language_model_with_cross_entropy(tied: bool) -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        x = params["embedding"][microbatch["tokens"]]
        for w in params["layers"]:
            x = mark(x + jnp.tanh(x @ w))
        logits = jax.nn.log_softmax(x @ (params["embedding"] if tied else params["head"]).T)
        right = (logits.argmax(-1) == microbatch["labels"]).mean()
        return -jnp.take_along_axis(logits, microbatch["labels"][..., None], -1).mean(), {"right": right}

    def step(params: Any, batch: Any) -> Any:
        one = partial(jax.value_and_grad(of_one, has_aux=True), params)
        (losses, extra), grads = jaxpp.treduce(one, batch, schedule=jaxpp.Std1F1B(2))
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses, extra

    tokens, labels = np.random.default_rng(0).integers(0, 16, (2, 4, 4, 6)).astype(np.int32)
    table = jax.random.normal(jax.random.key(0), (16, 8))
    params = {"embedding": table, "head": table[::-1], "layers": weights(2)}
    check(step, (params, {"tokens": tokens, "labels": labels}), make_mesh(2), steps=2, feed=feed_state)


@pytest.mark.parametrize("through_marks", [True, False])
def test_dropout(through_marks: bool) -> None:
    def step(params: Any, batch: Any, key: jax.Array) -> Any:
        def loss(params: Any, microbatch: Any, own: Any) -> Any:
            x = microbatch["x"]
            for stage, w in enumerate(params):
                x = jnp.tanh(x @ w) * jax.random.bernoulli(jax.random.fold_in(own, stage), 0.8, x.shape)
                x, own = mark((x, own)) if through_marks else (mark(x), own)
            return squared_error(x, microbatch)

        def one(numbered: Any) -> Any:
            microbatch, number = numbered
            return jax.value_and_grad(loss)(params, microbatch, jax.random.fold_in(key, number))

        return jaxpp.treduce(one, (batch, jnp.arange(3)), schedule=jaxpp.Std1F1B(2))

    check(step, (weights(2), batch(3), jax.random.key(5)), make_mesh(2))


def test_computation_before_the_loop() -> None:
    def step(params: Any, batch: Any) -> Any:
        scaled = jax.tree.map(lambda w: w / jnp.linalg.norm(w), params)
        x = (batch["x"] - batch["x"].mean()) / batch["x"].std()
        return sgd_step(scaled, batch | {"x": x}, schedule=SCHEDULE)

    check(step, (weights(3), batch(4)), make_mesh(3))
