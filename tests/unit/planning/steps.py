"""What `jaxpp-plan` names in its tests."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
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


def plain(mesh: jaxpp.MpmdMesh) -> Any:
    """A step of JAX's own."""
    return jax.jit(jnp.sin), (jnp.zeros(mesh.mpmd_dim),)


def sharded(mesh: jaxpp.MpmdMesh) -> Any:
    """A step whose weights are sharded over the axes "data" (FSDP) and "model" (tensor parallelism) of the mesh."""
    stages, layers, width = mesh.mpmd_dim, 4, 64

    def spec(*axes: str | None) -> P:
        return P(*(axis if axis in mesh.jax_mesh.axis_names else None for axis in axes))

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        for number, (up, down) in enumerate(parameters):
            x = x + jnp.tanh(x @ up) @ down
            if (number + 1) % (layers // stages) == 0:
                x = jaxpp.mark_stage_end(x)
        return jnp.mean(x**2)

    def step(parameters: Any, inputs: jax.Array) -> Any:
        gradients = jaxpp.treduce(partial(jax.grad(loss), parameters), inputs, schedule="1f1b", operation=jaxpp.Add)
        return jax.tree.map(jnp.subtract, parameters, gradients)

    if layers % stages:
        raise ValueError(f"{layers} layers make no {stages} equal stages")
    shapes = (width, 4 * width), (4 * width, width), (8, 16, width)
    up, down, inputs = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    shardings = [(spec("data", "model"), spec("model", "data"))] * layers, spec(None, "data")
    made = jaxpp.mpmd_jit_with_loop(step, mesh, in_shardings=shardings, donate_argnums=0)
    return made, ([(up, down)] * layers, inputs)
