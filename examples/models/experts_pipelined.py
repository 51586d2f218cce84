"""Trains the layers of experts.py as a pipeline: a stage for each layer, its experts on two devices.

    JAX_NUM_CPU_DEVICES=4 python examples/models/experts_pipelined.py

docs/experts.md shows how it differs from experts.py.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpp

LAYERS, WIDTH, EXPERTS, CAPACITY, LENGTH, ROWS = 2, 16, 4, 4, 12, 16
OPTIMIZER = optax.sgd(0.3, momentum=0.9)


def init(seed):
    random = np.random.default_rng(seed)
    shapes = {"router": (WIDTH, EXPERTS), "up": (EXPERTS, WIDTH, 2 * WIDTH), "down": (EXPERTS, 2 * WIDTH, WIDTH)}
    return [
        {name: random.normal(size=shape, scale=shape[-2] ** -0.5).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]


def route(router, x):
    """Of each token of a row the expert, and its place there, as (tokens, EXPERTS, CAPACITY); and the balance."""
    gates = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(gates.argmax(1), EXPERTS, dtype=int)
    place = (jnp.cumsum(chosen, 0) * chosen).sum(1) - 1
    sent = chosen[:, :, None] * jax.nn.one_hot(place, CAPACITY)[:, None]  # zero where the expert is full: dropped
    return sent, sent * gates.max(1)[:, None, None], EXPERTS * gates.mean(0) @ chosen.mean(0)


def feed_forward(layer, x):
    return jnp.einsum("erch,ehd->ercd", jax.nn.gelu(jnp.einsum("ercd,edh->erch", x, layer["up"])), layer["down"])


def experts(layer, x):
    sent, returned, balance = jax.vmap(partial(route, layer["router"]))(x)
    outputs = feed_forward(layer, jnp.einsum("rtec,rtd->ercd", sent, x))
    extras = {"balance": jnp.mean(balance), "dropped": x[..., 0].size - sent.sum()}
    return x + jnp.einsum("rtec,ercd->rtd", returned, outputs), extras


def loss(layers, rows):
    x, totals = rows["x"], {"balance": jnp.float32(0), "dropped": jnp.float32(0)}
    for layer in layers:
        x, extras = experts(layer, x)
        x, totals = jaxpp.mark_stage_end((x, jax.tree.map(jnp.add, totals, extras)))
    return jnp.mean((x - rows["y"]) ** 2) + 0.01 * totals["balance"], totals


def train_step(state, rows):
    layers, moments = state
    gradient = partial(jax.value_and_grad(loss, has_aux=True), layers)
    means = (jaxpp.Mean, {"balance": jaxpp.Mean, "dropped": jaxpp.Add}), jaxpp.Mean
    (mean_loss, totals), gradients = jaxpp.treduce(gradient, rows, "1f1b", operation=means, microbatches=4)
    updates, moments = OPTIMIZER.update(gradients, moments, layers)
    return (optax.apply_updates(layers, updates), moments), mean_loss, totals


def train(steps):
    """Returns the losses, and the parameters."""
    mesh = jaxpp.MpmdMesh.make(mpmd=2, expert=2)
    of_layer = {"router": jax.P(), "up": jax.P("expert"), "down": jax.P("expert")}
    in_shardings = ([of_layer] * LAYERS, None), jax.P("expert")
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, in_shardings=in_shardings, donate_argnums=0)
    layers, losses = init(0), []
    state = layers, OPTIMIZER.init(layers)
    for number in range(steps):
        x = np.random.default_rng(number).normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
        state, mean_loss, totals = step(state, {"x": x, "y": np.sin(2 * x)})
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}, balance {totals['balance']:.3f}, dropped {totals['dropped']:.0f}")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
