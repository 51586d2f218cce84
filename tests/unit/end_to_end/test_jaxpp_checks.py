"""What the public tests of NVIDIA's JaxPP check of a step, by `jaxpp.api` and with a model of our own."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end.compare import assert_same, batch, make_mesh, weights

import jaxpp.api as jaxpp


def outputs(layers: Any, x: Any) -> Any:
    """The result of layers, all but the last with a mark, and what the first one takes."""
    first = x
    for number, (w, bias) in enumerate(layers):
        x = jax.nn.relu(x @ w + bias)
        x = jaxpp.pipeline_enter_stage(x, f"layer {number}") if number < len(layers) - 1 else x
    return jax.nn.log_softmax(x), first


def loss(layers: Any, microbatch: Any) -> Any:
    """The loss, and the inputs, which pass through."""
    found, first = outputs(layers, microbatch["x"])
    return jnp.mean((found - microbatch["y"]) ** 2), (found, first, microbatch["y"])


def train_step(layers: Any, batch: Any, *, schedule: Any, is_updated: bool = True) -> Any:
    """Results of the loop, new parameters or gradients, a constant, and an argument as it is."""
    gradient = partial(jax.value_and_grad(loss, has_aux=True), layers)
    results, gradients = jaxpp.treduce(gradient, batch, schedule=schedule)
    updated = jax.tree.map(lambda w, g: w - 0.01 * g, layers, gradients)
    return results, updated if is_updated else gradients, 5, batch["x"]


def layers_of(count: int) -> Any:
    return [(w, w[0] / 8) for w in weights(count)]


@pytest.mark.parametrize(
    ("schedule", "meshes", "microbatches", "is_updated"),
    [
        (jaxpp.Std1F1B(num_stages=1), 1, 4, True),
        (jaxpp.Std1F1B(num_stages=2), 2, 4, True),
        (jaxpp.Eager1F1B(num_stages=3), 3, 5, True),
        (jaxpp.Eager1F1B(num_stages=3), 3, 5, False),  # nothing after the loop
        (jaxpp.Interleaved1F1B(num_stages=1, mpmd_dim=1), 1, 1, True),
        (jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2), 2, 12, True),
    ],
)
def test_a_step_under_each_schedule(schedule: Any, meshes: int, microbatches: int, is_updated: bool) -> None:
    step = partial(train_step, schedule=schedule, is_updated=is_updated)
    arguments = layers_of(schedule.num_stages), batch(microbatches)
    found = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(meshes))(*arguments)
    assert_same(found, jax.jit(step)(*arguments))
    (_, (_, first, targets)), _, constant, passed = found
    assert int(constant) == 5
    for array, other in ((first, "x"), (targets, "y"), (passed, "x")):
        np.testing.assert_array_equal(array, arguments[1][other])


def of_an_early_layer(layers: Any, x: Any) -> Any:
    found, first = outputs(layers, x)
    return found, first + layers[1][1]


def of_a_condition(layers: Any, x: Any) -> Any:
    """What to compute from an early value follows from the last one."""
    found, first = outputs(layers, x)
    return jax.lax.cond((found < 0).any(), lambda: first, lambda: 2 * first) + layers[0][1]


def plus_a_parameter(layers: Any, x: Any) -> Any:
    return outputs(layers, x)[0] + layers[1][1]


@pytest.mark.parametrize("function", [plus_a_parameter, of_an_early_layer, of_a_condition])
def test_inference(function: Any) -> None:
    arguments = layers_of(4), batch(1)["x"][0]
    run = jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=make_mesh(4), target_num_stages=4)
    assert_same(run(*arguments), jax.jit(function)(*arguments))
