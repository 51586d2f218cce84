"""Trains the adapters of lora.py as a pipeline: two stages of two layers, each on two devices.

    JAX_NUM_CPU_DEVICES=4 python examples/models/lora_pipelined.py

docs/adapters.md shows how it differs from lora.py.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpp

LAYERS, WIDTH, RANK, ROWS = 4, 64, 4, 128
OPTIMIZER = optax.sgd(1.0, momentum=0.9)


def init(seed):
    """Returns the adapters, and the frozen weights."""
    random = np.random.default_rng(seed)
    frozen = random.normal(size=(LAYERS, WIDTH, WIDTH), scale=WIDTH**-0.5).astype(np.float32)
    down = random.normal(size=(LAYERS, WIDTH, RANK), scale=WIDTH**-0.5).astype(np.float32)
    return {"down": down, "up": np.zeros((LAYERS, RANK, WIDTH), np.float32)}, frozen


def layer(x, weights):
    frozen, adapter = weights
    return jaxpp.mark_stage_end(jnp.tanh(x @ frozen + x @ adapter["down"] @ adapter["up"])), None


def loss(adapters, frozen, rows):
    x, _ = jax.lax.scan(layer, rows["x"], (frozen, adapters))
    return jnp.mean((x - rows["y"]) ** 2)


def train_step(state, frozen, rows):
    adapters, moments = state
    gradient = partial(jax.value_and_grad(loss), adapters, frozen)
    mean_loss, gradients = jaxpp.treduce(gradient, rows, "1f1b", operation=jaxpp.Mean, microbatches=4)
    updates, moments = OPTIMIZER.update(gradients, moments, adapters)
    return (optax.apply_updates(adapters, updates), moments), mean_loss


def train(steps):
    """Returns the losses, and the adapters."""
    mesh = jaxpp.MpmdMesh.make(mpmd=2, data=2)
    options = {"cuts": [2, 2], "in_shardings": (jax.P(), jax.P(), jax.P("data"))}
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, donate_argnums=0, **options)
    (adapters, frozen), losses = init(0), []
    state = adapters, OPTIMIZER.init(adapters)
    for number in range(steps):
        x = np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)
        state, mean_loss = step(state, frozen, {"x": x, "y": np.sin(x)})
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
