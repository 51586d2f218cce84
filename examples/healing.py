"""Trains in processes that may die: the others go on, and take them in again when they are back.

    jaxpp-run --processes 4 --least 3 examples/healing.py        # and `kill -9` any of them
    jaxpp-run --processes 4 --least 3 examples/healing.py 500    # so many steps

The layers are dealt out to as many stages as there are processes. Each process has one virtual CPU device.
"""

import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp

LAYERS, WIDTH, MICROBATCHES, ROWS = 12, 32, 8, 16


def first_state() -> Any:
    """The state before the first step: the same in every process, and nothing of it on a device of the job."""
    weights = np.random.default_rng(0).normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
    return {"weights": list(weights), "momentum": list(0 * weights), "key": jax.random.key(3), "step": 0}


def batch(number: int) -> Any:
    """The batch of a step, the same whenever it is asked."""
    return np.random.default_rng(number).normal(size=(MICROBATCHES, ROWS, WIDTH)).astype(np.float32)


def loss(stages: int, weights: Any, x: jax.Array) -> jax.Array:
    """How well the layers, of which each stage has as many, give back a microbatch."""
    y = x
    for number, weight in enumerate(weights, 1):
        y = jnp.tanh(y @ weight)
        if number * stages % LAYERS == 0:
            y = jaxpp.mark_stage_end(y)
    return jnp.mean((y - x) ** 2)


def train_step(stages: int, state: Any, batch: Any) -> Any:
    """(new state, mean loss), with momentum and a little noise on the batch."""
    key, noise = jax.random.split(state["key"])
    batch = batch + 0.1 * jax.random.normal(noise, batch.shape)
    losses, gradients = jaxpp.treduce(
        partial(jax.value_and_grad(partial(loss, stages)), state["weights"]),
        batch,
        schedule=jaxpp.schedules.Std1F1B(stages),
    )
    momentum = [0.9 * m + g for m, g in zip(state["momentum"], gradients, strict=True)]
    weights = [w - 0.02 * m for w, m in zip(state["weights"], momentum, strict=True)]
    return {"weights": weights, "momentum": momentum, "key": key, "step": state["step"] + 1}, losses.mean()


def make_step() -> Any:
    """The step over all devices that there are now; called whenever other processes take part."""
    stages = len(jax.devices())
    mesh = jaxpp.MpmdMesh.make(mpmd=stages)
    return jaxpp.mpmd_jit_with_loop(partial(train_step, stages), mpmd_mesh=mesh, donate_argnums=0)


def show(number: int, output: Any) -> None:
    """Print the loss of a step, in one of the processes; all of them fetch it."""
    value = float(jaxpp.fetch(output))
    if jax.process_index() == 0:
        print(f"step {number} with {jax.process_count()} processes: loss {value:.7f}", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # leave these two lines out where there are real devices
    jax.config.update("jax_num_cpu_devices", 1)
    start = time.monotonic()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    jaxpp.healing.train(make_step, first_state, batch, steps, on_step=show)
    if jax.process_index() == 0:
        print(f"{steps} steps in {time.monotonic() - start:.0f} s")
