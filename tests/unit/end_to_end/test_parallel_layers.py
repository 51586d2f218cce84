"""Layers with parallelism or state of their own inside a stage: experts, batch statistics, convolutions."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, make_mesh
from unit.end_to_end.everywhere import check_step, gradient_step, plans, schedule_and_mesh

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) / shape[-2] ** 0.5


def experts(stages: int) -> list[dict[str, jax.Array]]:
    """A router and four experts per stage."""
    return [
        {"router": normal(3 * k, 8, 4), "up": normal(3 * k + 1, 4, 8, 16), "down": normal(3 * k + 2, 4, 16, 8)}
        for k in range(stages)
    ]


def dispatched(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which tokens go to which expert, (experts, tokens, width), and with what weight each comes back."""
    gates = jax.nn.softmax(x @ params["router"])
    chosen = jax.nn.one_hot(gates.argmax(-1), 4)
    return jnp.einsum("te,td->etd", chosen, x), gates * chosen


def feed_forward(params: Any, x: jax.Array) -> jax.Array:
    return jnp.einsum("eth,ehd->etd", jax.nn.gelu(jnp.einsum("etd,edh->eth", x, params["up"])), params["down"])


def dense_layer(params: Any, x: jax.Array) -> jax.Array:
    sent, weights = dispatched(params, x)
    return x + jnp.einsum("etd,te->td", feed_forward(params, sent), weights)


def expert_layer(params: Any, x: jax.Array) -> jax.Array:
    """The same on two devices, each with half of the tokens and two of the four experts."""
    sent, weights = dispatched(params, x)
    sent = lax.all_to_all(sent, "data", split_axis=0, concat_axis=1, tiled=True)
    back = lax.all_to_all(feed_forward(params, sent), "data", split_axis=1, concat_axis=0, tiled=True)
    return x + jnp.einsum("etd,te->td", back, weights)


@pytest.mark.parametrize("plan", ["1f1b", "interleaved-1f1b"])
def test_mixture_of_experts_with_an_expert_axis(plan: str) -> None:
    schedule, mesh = schedule_and_mesh(plan)
    mesh = make_mesh(mesh.mpmd_dim, data=2)
    specs = ({"router": P(), "up": P("data"), "down": P("data")}, P("data"))
    sharded = jax.shard_map(expert_layer, mesh=mesh.jax_mesh, in_specs=specs, out_specs=P("data"))

    def loss(params: Any, microbatch: Any, layer: Any) -> Any:
        x = microbatch["x"]
        for each in params:
            x = mark(layer(each, x))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = partial(gradient_step, schedule=schedule, loss=partial(loss, layer=sharded))
    reference = jax.jit(partial(gradient_step, schedule=None, loss=partial(loss, layer=dense_layer)))
    in_shardings = ([specs[0]] * 4, P(None, "data"))
    check(step, (experts(4), batch(4, rows=8)), mesh, reference=reference, in_shardings=in_shardings)


def test_load_balancing_loss_of_all_stages() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x, balance = microbatch["x"], jnp.float32(0)
        for each in params:
            gates = jax.nn.softmax(x @ each["router"])
            balance += 4 * jnp.sum(gates.mean(0) * jax.nn.one_hot(gates.argmax(-1), 4).mean(0))
            x, balance = mark((dense_layer(each, x), balance))
        return jnp.mean((x - microbatch["y"]) ** 2) + 0.01 * balance, {"balance": balance}

    step = partial(gradient_step, loss=loss, has_aux=True)
    check_step(step, (experts(4), batch(4)), "sharded")


def normalized(params: Any, statistics: Any, x: jax.Array) -> tuple[jax.Array, Any]:
    """Batch normalization: (x, moved statistics)."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    moved = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, statistics, {"mean": mean, "variance": variance})
    return (x - mean) * lax.rsqrt(variance + 1e-5) * params["scale"] + params["shift"], moved


@plans
def test_convolutions_with_batch_statistics(plan: str) -> None:
    """Each microbatch moves the statistics of each stage on, in the order of the microbatches."""

    def loss(params: Any, statistics: Any, microbatch: Any) -> Any:
        x, moved = microbatch["image"], []
        for each, own in zip(params["blocks"], statistics, strict=True):
            x = lax.conv_general_dilated(x, each["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x, own = normalized(each, own, x)
            moved.append(own)
            x = mark(jax.nn.relu(x))
        logits = jax.nn.log_softmax(x.mean((1, 2)) @ params["head"])
        return -jnp.take_along_axis(logits, microbatch["label"][:, None], -1).mean(), moved

    def step(state: Any, batch: Any) -> Any:
        params, statistics = state

        def body(carry: Any, microbatch: Any) -> Any:
            total, statistics = carry
            value_and_grad = jax.value_and_grad(loss, has_aux=True)
            (value, statistics), grads = value_and_grad(params, statistics, microbatch)
            return (jax.tree.map(jnp.add, total, grads), statistics), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        (grads, statistics), losses = lax.scan(body, (zeros, statistics), batch)
        return (jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), statistics), losses, grads

    channels = (3, 4, 4, 4, 4)
    blocks = [
        {"kernel": normal(k, 3, 3, channels[k], 4) / 3, "scale": jnp.ones(4), "shift": jnp.zeros(4)} for k in range(4)
    ]
    state = ({"blocks": blocks, "head": normal(9, 4, 5)}, [{"mean": jnp.zeros(4), "variance": jnp.ones(4)}] * 4)
    random = np.random.default_rng(0)
    images = random.normal(size=(4, 4, 6, 6, 3)).astype(np.float32)
    data = {"image": images, "label": random.integers(0, 5, (4, 4)).astype(np.int32)}
    schedule, mesh = schedule_and_mesh(plan)
    in_shardings = (P(), P(None, "data")) if plan == "sharded" else None
    check(step, (state, data), mesh, schedule=str(schedule), in_shardings=in_shardings, tolerance=5e-5)
