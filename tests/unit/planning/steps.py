"""What `jaxpp-plan` names in its tests."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from unit.end_to_end.compare import batch, sgd_step, weights

import jaxpp


def made(mesh: jaxpp.MpmdMesh) -> Any:
    """A step for this mesh, and its arguments."""
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.schedules.Std1F1B(mesh.mpmd_dim)), mesh)
    return step, (weights(mesh.mpmd_dim), batch(4))


def train_step(first: jax.Array, second: jax.Array, inputs: jax.Array, schedule: str | None = None) -> Any:
    """A step of arrays alone, whose loop names no schedule unless one is given."""

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        for each in parameters:
            x = jaxpp.mark_stage_end(jnp.tanh(x @ each))
        return jnp.mean(x**2)

    gradients = jaxpp.treduce(partial(jax.grad(loss), (first, second)), inputs, schedule=schedule, operation=jaxpp.Add)
    return first - gradients[0], second - gradients[1]


scheduled_step = partial(train_step, schedule="1f1b")


def nothing(mesh: jaxpp.MpmdMesh) -> int:
    """What is no step."""
    return mesh.mpmd_dim
