"""Trains layers of experts (mixture of experts): each token goes to one of them, while it has room.

    python examples/models/experts.py
    JAX_NUM_CPU_DEVICES=4 python examples/models/experts_pipelined.py    # the same losses

docs/experts.md shows how experts_pipelined.py differs.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

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
        totals = jax.tree.map(jnp.add, totals, extras)
    return jnp.mean((x - rows["y"]) ** 2) + 0.01 * totals["balance"], totals


def train_step(state, rows):
    layers, moments = state
    (mean_loss, totals), gradients = jax.value_and_grad(loss, has_aux=True)(layers, rows)
    updates, moments = OPTIMIZER.update(gradients, moments, layers)
    return (optax.apply_updates(layers, updates), moments), mean_loss, totals


def train(steps):
    """Returns the losses, and the parameters."""
    step = jax.jit(train_step, donate_argnums=0)
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
