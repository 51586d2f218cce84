"""Trains a residual network written with flax.nnx: four blocks as four stages, each on a virtual CPU device of its own.

    python examples/flax_nnx.py            # pip install flax optax
    python examples/flax_nnx.py --check    # and the same steps with plain jax.jit

What makes it a pipeline: the mark in `loss`, `treduce` in `train_step`, and `mpmd_jit_with_loop` in `main`. The module
is split into its parameters, which are trained, and its graph: nnx merges them again where the model is called.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

import jaxpp

STAGES, MICROBATCHES, ROWS, WIDTH, STEPS = 4, 8, 16, 32, 20
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))


class Block(nnx.Module):
    """A residual block: normalization, two linear layers and a gelu."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Shape (rows, width) to the same."""
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


def loss(params: Any, microbatch: tuple[jax.Array, jax.Array], graph: Any) -> jax.Array:
    """Mean squared error of one microbatch."""
    x, y = microbatch
    for block in nnx.merge(graph, params):
        x = jaxpp.mark_stage_end(block(x))
    return jnp.mean((x - y) ** 2)


def train_step(state: Any, batch: Any, *, graph: Any) -> Any:
    """(new parameters and optimizer state, mean loss)."""
    params, moments = state
    of_one = jax.value_and_grad(partial(loss, graph=graph))
    schedule = jaxpp.schedules.Std1F1B(STAGES)
    mean_loss, gradients = jaxpp.treduce(partial(of_one, params), batch, schedule=schedule, operation=jaxpp.Mean)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), mean_loss


def train(step: Any, params: Any) -> list[float]:
    """The losses of all steps."""
    keys = jax.random.split(jax.random.key(1), 2)
    x = jax.random.normal(keys[0], (MICROBATCHES, ROWS, WIDTH))
    batch = (x, jnp.sin(3 * x) + 0.1 * jax.random.normal(keys[1], x.shape))
    state, losses = (params, OPTIMIZER.init(params)), list[float]()
    for _ in range(STEPS):
        state, value = step(state, batch)
        losses.append(float(value))
    return losses


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 1 when --check finds too large a difference."""
    parser = argparse.ArgumentParser(description="a residual network of flax.nnx as a pipeline")
    parser.add_argument("--check", action="store_true", help="compare with plain jax.jit")
    check = parser.parse_args(arguments).check
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()[:STAGES]), ("mpmd",)), "mpmd")
    rngs = nnx.Rngs(0)
    graph, params = nnx.split(nnx.List([Block(rngs) for _ in range(STAGES)]))
    step = partial(train_step, graph=graph)
    losses = train(jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh), params)
    print(f"loss {losses[0]:.4f} after the first step, {losses[-1]:.4f} after {STEPS}")
    if not check:
        return 0
    difference = float(np.max(np.abs(np.array(losses) / np.array(train(jax.jit(step), params)) - 1)))
    print(f"largest relative difference from plain jax.jit: {difference:.1e}")
    return int(not difference < 1e-4)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # virtual devices; leave these two lines out where there are real ones
    jax.config.update("jax_num_cpu_devices", STAGES)
    raise SystemExit(main())
