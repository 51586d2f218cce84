"""Trains a residual network of equinox.

    python examples/models/equinox_mlp.py    # pip install equinox optax
    JAX_NUM_CPU_DEVICES=4 python examples/models/equinox_mlp_pipelined.py    # the same losses

docs/frameworks.md shows how equinox_mlp_pipelined.py differs.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

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
            x = x + self.scale * jax.vmap(layer)(x)
        return x


def loss(arrays, static, rows):
    model = eqx.combine(arrays, static)
    return jnp.mean((model(rows["x"]) - rows["y"]) ** 2)


def train_step(static, state, rows):
    arrays, moments = state
    mean_loss, gradients = eqx.filter_value_and_grad(loss)(arrays, static, rows)
    updates, moments = OPTIMIZER.update(gradients, moments, arrays)
    return (eqx.apply_updates(arrays, updates), moments), mean_loss


def train(steps):
    """Returns the losses, and the parameters."""
    arrays, static = eqx.partition(Model(jax.random.key(0)), eqx.is_array)
    state, losses = (arrays, OPTIMIZER.init(arrays)), []
    step = jax.jit(partial(train_step, static))
    for number in range(steps):
        x = np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)
        state, mean_loss = step(state, {"x": x, "y": np.sin(3 * x)})
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
