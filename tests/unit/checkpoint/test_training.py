"""A training that was saved goes on elsewhere as if nothing had happened."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxpp
from jaxpp import checkpoint

LAYERS, WIDTH, STEPS, SAVED = 4, 8, 6, 3
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any, list[float]]:
    """Trained on four meshes, saved on the way: where, the step, the state in the end, all losses."""
    directory = tmp_path_factory.mktemp("checkpoints")
    step = pipeline(jaxpp.Std1F1B(4), 4, slice(8), 4)
    state, losses = first_state(), []
    with checkpoint.Saver(directory, keep=1) as saver:
        for number in range(STEPS):
            state, value = step(state, batch(number))
            losses.append(float(value))
            if number < SAVED:
                saver.save(number + 1, state)  # written while the next steps run in the memory of this state
    assert checkpoint.all_steps(directory) == [SAVED]
    return directory, step, bits(state), losses


def test_on_the_same_meshes_every_bit_is_the_same(undisturbed: Any) -> None:
    directory, step, expected, losses = undisturbed
    state = checkpoint.restore(directory, step.in_shardings[0][0])
    wanted = jax.tree.map(lambda leaf: leaf.sharding, step.in_shardings[0][0])
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == wanted
    found, found_losses = run(step, state, SAVED)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert found_losses == losses[SAVED:]


@pytest.mark.parametrize("where", ["two stages", "four stages on two other meshes", "plain jit"])
def test_elsewhere_the_training_is_the_same(where: str, undisturbed: Any) -> None:
    directory, _, expected, losses = undisturbed
    if where == "plain jit":
        step = jax.jit(partial(train_step, jaxpp.Std1F1B(4), 4), donate_argnums=0)
        like = jax.eval_shape(first_state)
    else:
        schedule, stages, devices = {
            "two stages": (jaxpp.Std1F1B(2), 2, slice(8)),
            "four stages on two other meshes": (jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2), 4, slice(4, 8)),
        }[where]
        step = pipeline(schedule, stages, devices, 2)
        like = step.in_shardings[0][0]
    found, found_losses = run(step, checkpoint.restore(directory, like), SAVED)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)
    np.testing.assert_allclose(found_losses, losses[SAVED:], rtol=1e-5)
