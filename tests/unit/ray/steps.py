"""A small training step that the tests of jaxpp.ray run, and its inputs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp

MICROBATCHES, ROWS, WIDTH = 4, 4, 8


def loss(weights: list[jax.Array], batch: jax.Array) -> jax.Array:
    """A layer per stage."""
    hidden = batch
    for number, weight in enumerate(weights):
        hidden = jnp.tanh(hidden @ weight)
        if number < len(weights) - 1:
            hidden = jaxpp.mark_stage_end(hidden)
    return jnp.mean(hidden**2)


def train_step(weights: list[jax.Array], batch: jax.Array, schedule: Any = None) -> tuple[list[jax.Array], jax.Array]:
    """One step of gradient descent: (weights, loss)."""
    value, gradients = jaxpp.treduce(
        lambda microbatch: jax.value_and_grad(loss)(weights, microbatch),
        batch,
        schedule=schedule or jaxpp.schedules.Std1F1B(len(weights)),
        operation=(jaxpp.Add, jaxpp.Add),
    )
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)], value


def init(stages: int) -> list[np.ndarray[Any, Any]]:
    """The weights of each stage."""
    random = np.random.default_rng(0)
    return [random.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(stages)]


def batch(step: int) -> np.ndarray[Any, Any]:
    """The batch of a step."""
    return np.random.default_rng(step).normal(size=(MICROBATCHES, ROWS, WIDTH)).astype(np.float32)


def expected(stages: int, steps: int) -> tuple[list[Any], list[float]]:
    """The weights and the losses by plain `jax.jit`."""
    weights: Any = init(stages)
    plain, losses = jax.jit(train_step), list[float]()
    for step in range(steps):
        weights, value = plain(weights, batch(step))
        losses.append(float(value))
    return weights, losses
