"""What follows the loop: optimizers, norms, schedules of the learning rate, metrics."""

# pyright: reportUnknownLambdaType=false

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, loss, make_mesh, weights

import jaxpp.api as jaxpp


def losses_and_grads(params: Any, batch: Any) -> Any:
    def one(microbatch: Any) -> Any:
        return jax.value_and_grad(loss)(params, microbatch)

    return jaxpp.treduce(one, batch, schedule=jaxpp.Std1F1B(3), operation=(jaxpp.Concat(), jaxpp.Add))


@pytest.mark.parametrize(("data", "donated"), [(1, None), (2, 0)])
def test_everything_at_once(data: int, donated: int | None) -> None:
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 20)
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(rate, weight_decay=0.01))

    def step(state: Any, batch: Any) -> Any:
        losses, grads = losses_and_grads(state["params"], batch)
        grads = jax.tree.map(lambda g: g / losses.size, grads)
        updates, memory = optimizer.update(grads, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        mean = optax.incremental_update(params, state["mean"], 0.1)
        new = {"params": params, "optimizer": memory, "mean": mean, "step": state["step"] + 1}
        metrics = {"loss": losses.mean(), "worst": losses.max(), "norm": optax.tree.norm(grads)}
        return new, metrics | {"rate": rate(state["step"]), "step": state["step"]}

    params = weights(3)
    state = {"params": params, "optimizer": optimizer.init(params), "mean": weights(3), "step": jnp.int32(0)}
    check(
        step,
        (state, batch(4)),
        make_mesh(3, data=data),
        steps=4,
        feed=feed_state,
        donate_argnums=donated,
        in_shardings=(P(), P(None, "data")),
    )


def test_learning_rate_from_the_loss() -> None:
    def step(params: Any, batch: Any) -> Any:
        losses, grads = losses_and_grads(params, batch)
        rate = 0.1 * losses.mean()
        return jax.tree.map(lambda w, g: w - rate * g, params, grads), losses, rate

    check(step, (weights(3), batch(4)), make_mesh(3), steps=2, feed=feed_state)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(1e-2, momentum=0.9, nesterov=True),
        optax.apply_if_finite(optax.lion(1e-2), 3),
        optax.adafactor(1e-2),
        optax.MultiSteps(optax.adam(1e-2), 2),
    ],
    ids=["momentum", "if finite", "adafactor", "multi"],
)
def test_optimizers(optimizer: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        params, memory = state
        losses, grads = losses_and_grads(params, batch)
        updates, memory = optimizer.update(grads, memory, params)
        return (optax.apply_updates(params, updates), memory), losses

    params = weights(3)
    check(step, ((params, optimizer.init(params)), batch(4)), make_mesh(3), steps=3, feed=feed_state, tolerance=1e-4)


def test_results_that_no_stage_computes() -> None:
    def step(params: Any, batch: Any, extra: Any, nothing: None, empty: Any) -> Any:
        losses, grads = losses_and_grads(params, batch)
        return grads, losses, losses, extra, extra, extra + 1, jnp.ones(3), {"n": nothing, "e": ()}, empty * 2

    check(step, (weights(3), batch(4), jnp.arange(3.0), None, jnp.zeros((0, 2))), make_mesh(3))
