"""Trains the model of equinox_mlp.py as a pipeline: two stages of two layers, each on two devices.

    JAX_NUM_CPU_DEVICES=4 python examples/models/equinox_mlp_pipelined.py

docs/frameworks.md shows how it differs from equinox_mlp.py.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpp

WIDTH, ROWS = 32, 128
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))


class Model(eqx.Module):
    layers: list
    scale: float  # no array: `eqx.partition` leaves it out

    def __init__(self, key):
        self.layers = [eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, key=each) for each in jax.random.split(key, 4)]
        self.scale = 0.5

    def __call__(self, x):
        for layer in self.layers:
            x = jaxpp.mark_stage_end(x + self.scale * jax.vmap(layer)(x))
        return x


def loss(arrays, static, rows):
    model = eqx.combine(arrays, static)
    return jnp.mean((model(rows["x"]) - rows["y"]) ** 2)


def train_step(static, state, rows):
    arrays, moments = state
    gradient = partial(eqx.filter_value_and_grad(loss), arrays, static)
    mean_loss, gradients = jaxpp.treduce(gradient, rows, "1f1b", operation=jaxpp.Mean, microbatches=4)
    updates, moments = OPTIMIZER.update(gradients, moments, arrays)
    return (eqx.apply_updates(arrays, updates), moments), mean_loss


def train(steps):
    """Returns the losses, and the parameters."""
    arrays, static = eqx.partition(Model(jax.random.key(0)), eqx.is_array)
    state, losses = (arrays, OPTIMIZER.init(arrays)), []
    mesh = jaxpp.MpmdMesh.make(mpmd=2, data=2)
    options = {"cuts": [2, 2], "in_shardings": (jax.P(), jax.P("data"))}
    step = jaxpp.mpmd_jit_with_loop(partial(train_step, static), mesh, **options)
    for number in range(steps):
        x = np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)
        state, mean_loss = step(state, {"x": x, "y": np.sin(3 * x)})
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
