"""Ordinary code before and after the loop: what becomes of weights and batch, what is made of the gradients."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, loss, make_mesh, weights
from unit.end_to_end.everywhere import check_step, in_turn, more_plans, plans

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end


def losses_and_grads(params: Any, batch: Any, schedule: Any, of_one: Any = loss) -> Any:
    return jaxpp.treduce(
        partial(jax.value_and_grad(of_one), params),
        batch,
        schedule=schedule,
        operation=(jaxpp.Concat(), jaxpp.Add),
    )


def flat() -> dict[str, np.ndarray]:
    """16 examples, not yet cut into microbatches."""
    return {name: leaf.reshape(16, 8) for name, leaf in batch(4).items()}


@more_plans
def test_before_the_loop(plan: str) -> None:
    """Weights cast, masks and positions built, the batch shuffled and cut into microbatches."""

    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        low = jax.tree.map(lambda w: w.astype(jnp.bfloat16).astype(jnp.float32), params)
        order = jax.random.permutation(jax.random.key(0), 16)
        microbatches = jax.tree.map(lambda leaf: leaf[order].reshape(4, 4, 8), batch)
        mask = jnp.tril(jnp.ones((4, 8))) > 0
        positions = jnp.sin(jnp.arange(8.0)[None] * jnp.arange(4.0)[:, None])

        def of_one(params: Any, microbatch: Any) -> Any:
            x = microbatch["x"]
            for w in params:
                x = mark(jnp.where(mask, jnp.tanh(x @ w), positions))
            return jnp.mean((x - microbatch["y"]) ** 2)

        losses, grads = losses_and_grads(low, microbatches, schedule, of_one)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses, grads

    check_step(step, (weights(4), flat()), plan, data=P("data"))


@plans
def test_weights_scaled_by_their_common_norm(plan: str) -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        norm = jnp.sqrt(sum(jnp.sum(w**2) for w in params))
        losses, grads = losses_and_grads([w.T / norm for w in params], batch, schedule)
        return [w - 0.1 * g.T for w, g in zip(params, grads, strict=True)], losses, norm

    check_step(step, (weights(4), batch(4)), plan)


@plans
def test_microbatches_gathered_in_the_loop(plan: str) -> None:
    def step(params: Any, batch: Any, order: Any, *, schedule: Any) -> Any:
        def of_one(i: jax.Array) -> Any:
            return jax.value_and_grad(loss)(params, jax.tree.map(lambda leaf: leaf[order[i]], batch))

        return jaxpp.treduce_i(of_one, 4, schedule=schedule)

    order = np.random.default_rng(0).permutation(16).reshape(4, 4).astype(np.int32)
    check_step(step, (weights(4), flat(), order), plan, data=P())


OPTIMIZERS: dict[str, Any] = {
    "clipped adamw, warm-up": optax.chain(
        optax.clip_by_global_norm(0.1), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 20))
    ),
    "adafactor": optax.adafactor(1e-2),
    "lion": optax.lion(1e-2),
    "lamb": optax.lamb(1e-2),
    "muon": optax.contrib.muon(1e-2),
    "ema of gradients": optax.chain(optax.ema(0.9), optax.sgd(0.1)),
    "two of four frozen": optax.multi_transform(
        {"trained": optax.adam(1e-2), "frozen": optax.set_to_zero()}, ["trained", "frozen", "trained", "frozen"]
    ),
    "decay of two of four": optax.masked(optax.add_decayed_weights(0.1), [True, False, False, True]),
}


@pytest.mark.parametrize(("name", "plan"), in_turn(OPTIMIZERS))
def test_optimizers(name: str, plan: str) -> None:
    optimizer = OPTIMIZERS[name]

    def step(state: Any, batch: Any, *, schedule: Any) -> Any:
        params, memory, mean = state
        losses, grads = losses_and_grads(params, batch, schedule)
        updates, memory = optimizer.update(grads, memory, params)
        params = optax.apply_updates(params, updates)
        return (params, memory, optax.incremental_update(params, mean, 0.1)), losses, grads

    state = (weights(4), optimizer.init(weights(4)), weights(4))
    check_step(step, (state, batch(4)), plan, steps=3, feed=feed_state, tolerance=1e-4)


@plans
@pytest.mark.parametrize("finite", [True, False])
def test_loss_scale_that_skips_what_is_not_finite(finite: bool, plan: str) -> None:
    def step(state: Any, batch: Any, *, schedule: Any) -> Any:
        params, scale, good = state
        losses, grads = losses_and_grads(params, batch, schedule, lambda *args: loss(*args) * scale)
        grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in grads]))
        params = lax.cond(finite, lambda: jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), lambda: params)
        scale = jnp.where(finite, jnp.where(good >= 1, scale * 2, scale), scale / 2)
        return (params, scale, jnp.where(finite, good + 1, 0)), jnp.where(finite, losses, 0), finite

    data = batch(4)
    if not finite:
        data["x"][2, 0, 0] = np.inf
    state = (weights(4), jnp.float32(8), jnp.int32(0))
    _, _, found = check_step(step, (state, data), plan, steps=3, feed=feed_state)
    assert bool(found) == finite


@more_plans
def test_gradients_of_all_stages_together(plan: str) -> None:
    """Added, compared, made one vector and taken apart again; a learning rate from the loss."""

    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        losses, grads = losses_and_grads(params, batch, schedule)
        products = jnp.stack([jnp.stack([jnp.vdot(a, b) for b in grads]) for a in grads])
        largest = jnp.argmax(jnp.stack([jnp.linalg.norm(g) for g in grads]))
        vector, as_tree = jax.flatten_util.ravel_pytree(grads)
        direction = as_tree(vector / jnp.linalg.norm(vector))
        rate = 0.1 * losses.mean()
        params = [w - rate * d - 0.01 * sum(grads) for w, d in zip(params, direction, strict=True)]
        return params, losses, products, largest, jnp.stack(grads).mean(0)

    check_step(step, (weights(4), batch(4)), plan, steps=2, feed=feed_state)


def test_more_stages_than_meshes_and_an_optimizer() -> None:
    """Six stages on two meshes, three on each."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9))

    def step(state: Any, batch: Any) -> Any:
        params, memory = state
        losses, grads = losses_and_grads(params, batch, jaxpp.Interleaved1F1B(6, 2))
        updates, memory = optimizer.update(grads, memory, params)
        return (optax.apply_updates(params, updates), memory), losses

    state = (weights(6), optimizer.init(weights(6)))
    check(step, (state, batch(4)), make_mesh(2), steps=2, feed=feed_state)
