"""Trains the model of flax_nnx.py as a pipeline: two stages of two blocks, each on two devices.

    JAX_NUM_CPU_DEVICES=4 python examples/models/flax_nnx_pipelined.py

docs/frameworks.md shows how it differs from flax_nnx.py.
"""

# A script without types, as a user writes it:
# pyright: basic

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpp

WIDTH, ROWS = 32, 128


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(4)])

    def __call__(self, x):
        for block in self.blocks:
            x = jaxpp.mark_stage_end(block(x))
        return x


def loss(model, rows):
    return jnp.mean((model(rows["x"]) - rows["y"]) ** 2)


def train_step(graph, state, rows):
    model, optimizer = nnx.merge(graph, state)
    of_model, params = nnx.split(model)

    def gradient(rows):
        return nnx.value_and_grad(loss)(nnx.merge(of_model, params, copy=True), rows)

    mean_loss, gradients = jaxpp.treduce(gradient, rows, "1f1b", operation=jaxpp.Mean, microbatches=4)
    optimizer.update(model, gradients)
    return nnx.state((model, optimizer)), mean_loss


def train(steps):
    """Returns the losses, and the parameters."""
    model, losses = Model(nnx.Rngs(0)), []
    graph, state = nnx.split((model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)))
    mesh = jaxpp.MpmdMesh.make(mpmd=2, data=2)
    options = {"cuts": [2, 2], "in_shardings": (jax.P(), jax.P("data"))}
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, static_argnums=0, **options)
    for number in range(steps):
        x = np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)
        state, mean_loss = step(graph, state, {"x": x, "y": np.sin(3 * x)})
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
