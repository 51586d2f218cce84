"""A small training, of which the state has a bit of everything."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxpp

LAYERS, WIDTH, STEPS = 4, 8, 6
OPTIMIZER = optax.adamw(1e-2)


def first_state() -> Any:
    """The state before the first step; the first and the last layer share a weight."""
    weights = [jax.random.normal(jax.random.key(k), (WIDTH, WIDTH)) / WIDTH**0.5 for k in range(LAYERS + 1)]
    parameters = {"layers": weights[:-1], "tied": weights[-1]}
    return {"parameters": parameters, "moments": OPTIMIZER.init(parameters), "key": jax.random.key(7), "step": 0}


def loss(stages: int, parameters: Any, microbatch: Any) -> jax.Array:
    x = microbatch @ parameters["tied"]
    for number, weight in enumerate(parameters["layers"], 1):
        x = jnp.tanh(x @ weight)
        if number % (LAYERS // stages) == 0 and number < LAYERS:
            x = jaxpp.mark_stage_end(x)
    return jnp.mean((x @ parameters["tied"].T - microbatch) ** 2)


def train_step(schedule: Any, stages: int, state: Any, batch: jax.Array) -> Any:
    key, noise = jax.random.split(state["key"])
    batch = batch + 0.1 * jax.random.normal(noise, batch.shape)
    losses, gradients = jaxpp.treduce(
        partial(jax.value_and_grad(partial(loss, stages)), state["parameters"]),
        batch,
        schedule=schedule,
        operation=(jaxpp.Concat(), jaxpp.Add),
    )
    updates, moments = OPTIMIZER.update(gradients, state["moments"], state["parameters"])
    parameters = optax.apply_updates(state["parameters"], updates)
    return {"parameters": parameters, "moments": moments, "key": key, "step": state["step"] + 1}, losses.mean()


def pipeline(schedule: Any, stages: int, devices: slice, meshes: int) -> Any:
    """The step compiled for some of the devices."""
    mesh = Mesh(np.array(jax.devices()[devices]).reshape(meshes, -1), ("mpmd", "data"))
    return jaxpp.mpmd_jit_with_loop(
        partial(train_step, schedule, stages),
        mpmd_mesh=jaxpp.MpmdMesh(mesh, "mpmd"),
        in_shardings=(P(), P(None, "data")),
        donate_argnums=0,
    ).compile(first_state(), batch(0))


def batch(step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(step).normal(size=(4, 4, WIDTH)).astype(np.float32)


def run(step: Callable[..., Any], state: Any, first: int) -> tuple[Any, list[float]]:
    """The state after the last step, and the loss of each from `first` on."""
    losses: list[float] = []
    for number in range(first, STEPS):
        state, value = step(state, batch(number))
        losses.append(float(value))
    return bits(state), losses


def bits(state: Any) -> Any:
    return jax.tree.map(np.asarray, state | {"key": jax.random.key_data(state["key"])})
