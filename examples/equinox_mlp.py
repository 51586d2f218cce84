"""Trains a residual network written with equinox: four layers as four stages, each on a virtual CPU device of its own.

    python examples/equinox_mlp.py            # pip install equinox optax
    python examples/equinox_mlp.py --check    # and the same steps with plain jax.jit

What makes it a pipeline: the mark in `loss`, `treduce` in `train_step`, and `mpmd_jit_with_loop` in `main`.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import jaxpp

STAGES, MICROBATCHES, ROWS, WIDTH, STEPS = 4, 8, 16, 32, 20
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))


def make_layers() -> Any:
    """(arrays, the rest): what is trained and changes hands between steps, and the Python objects around it."""
    keys = jax.random.split(jax.random.key(0), STAGES)
    return eqx.partition([eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, key=key) for key in keys], eqx.is_array)


def loss(arrays: Any, microbatch: tuple[jax.Array, jax.Array], static: Any) -> jax.Array:
    """Mean squared error of one microbatch."""
    x, y = microbatch
    for layer in eqx.combine(arrays, static):
        x = jaxpp.mark_stage_end(x + jax.vmap(layer)(x))
    return jnp.mean((x - y) ** 2)


def train_step(state: Any, batch: Any, *, static: Any) -> Any:
    """(new arrays and optimizer state, mean loss)."""
    arrays, moments = state
    of_one = eqx.filter_value_and_grad(partial(loss, static=static))
    schedule = jaxpp.schedules.Std1F1B(STAGES)
    mean_loss, gradients = jaxpp.treduce(partial(of_one, arrays), batch, schedule=schedule, operation=jaxpp.Mean)
    updates, moments = OPTIMIZER.update(gradients, moments, arrays)
    return (eqx.apply_updates(arrays, updates), moments), mean_loss


def train(step: Any, arrays: Any) -> list[float]:
    """The losses of all steps."""
    keys = jax.random.split(jax.random.key(1), 2)
    x = jax.random.normal(keys[0], (MICROBATCHES, ROWS, WIDTH))
    batch = (x, jnp.sin(3 * x) + 0.1 * jax.random.normal(keys[1], x.shape))
    state, losses = (arrays, OPTIMIZER.init(arrays)), list[float]()
    for _ in range(STEPS):
        state, value = step(state, batch)
        losses.append(float(value))
    return losses


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 1 when --check finds too large a difference."""
    parser = argparse.ArgumentParser(description="a residual network of equinox as a pipeline")
    parser.add_argument("--check", action="store_true", help="compare with plain jax.jit")
    check = parser.parse_args(arguments).check
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()[:STAGES]), ("mpmd",)), "mpmd")
    arrays, static = make_layers()
    step = partial(train_step, static=static)
    losses = train(jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh), arrays)
    print(f"loss {losses[0]:.4f} after the first step, {losses[-1]:.4f} after {STEPS}")
    if not check:
        return 0
    difference = float(np.max(np.abs(np.array(losses) / np.array(train(jax.jit(step), arrays)) - 1)))
    print(f"largest relative difference from plain jax.jit: {difference:.1e}")
    return int(not difference < 1e-4)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # virtual devices; leave these two lines out where there are real ones
    jax.config.update("jax_num_cpu_devices", STAGES)
    raise SystemExit(main())
