"""The warning for devices that all compute the same."""

# pyright: reportUnknownLambdaType=false

import re
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, loss, make_mesh, sgd_step, weights

import jaxpp


def constrained(params: Any, microbatch: Any) -> Any:
    return loss(params, jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, P("data")), microbatch))


def in_shard_map(params: Any, microbatch: Any) -> Any:
    doubled = jax.shard_map(lambda x: 2 * x, in_specs=P("data"), out_specs=P("data"))(microbatch["x"])
    return loss(params, {"x": doubled, "y": microbatch["y"]}) + 0 * jnp.sum(doubled)


USED: dict[str, tuple[Any, dict[str, Any]]] = {
    "the batch": (loss, {"in_shardings": (None, P(None, "data"))}),
    "the weights": (loss, {"in_shardings": (P("data"), None)}),
    "a result": (loss, {"out_shardings": (P("data"), None)}),
    "a constraint": (constrained, {}),
    "a shard_map": (in_shard_map, {}),
}


def lowered(of_one: Any, options: dict[str, Any], explicit: bool = False) -> Any:
    step = partial(sgd_step, schedule=jaxpp.schedules.GPipe(2), loss=of_one)
    return jaxpp.mpmd_jit_with_loop(step, make_mesh(2, data=2, explicit=explicit), **options).lower(
        weights(2), batch(2)
    )


@pytest.mark.parametrize("name", USED)
def test_an_axis_that_something_uses(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lowered(*USED[name]).program()


@pytest.mark.parametrize("explicit", [False, True])
def test_an_axis_that_nothing_uses(explicit: bool) -> None:
    message = (
        "the mesh has 2 devices along its axis 'data', over which nothing in the step is sharded: all of them compute "
        "the same; shard the examples of the batch by in_shardings with PartitionSpec(None, 'data') for batch['x'], or "
        "leave the axis out"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        lowered(loss, {}, explicit).program()


def of_rows(params: Any, rows: Any, axis: int = 0) -> Any:
    gradient = partial(jax.value_and_grad(loss), params)
    losses, gradients = jaxpp.treduce(gradient, rows, "1f1b", axis=axis, microbatches=2)
    return [w - g for w, g in zip(params, gradients, strict=True)], losses


def of_microbatches_along(params: Any, data: Any, axis: int) -> Any:
    data = jax.tree.map(partial(jnp.moveaxis, source=0, destination=axis), data) if axis < 0 else data
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), data, "1f1b", axis=axis)
    return [w - g for w, g in zip(params, gradients, strict=True)], losses


def reshaping(params: Any, rows: Any) -> Any:
    return sgd_step(params, jax.tree.map(lambda x: x.reshape(2, 4, -1), rows), schedule="1f1b")


FLAT = jax.tree.map(lambda x: x.reshape(8, -1), batch(2))
SPECS: dict[str, tuple[Any, Any, Any, str]] = {
    "rows": (of_rows, FLAT, P("data"), "with PartitionSpec('data') for rows['x'], or"),
    "rows along another axis": (
        partial(of_rows, axis=1),
        jax.tree.map(lambda x: x[None].repeat(2, 0), FLAT),
        P(None, "data"),
        "with PartitionSpec(None, 'data') for rows['x'], or",
    ),
    "microbatches along another axis": (
        partial(of_microbatches_along, axis=1),
        jax.tree.map(lambda x: x.swapaxes(0, 1), batch(2)),
        P("data"),
        "with PartitionSpec('data') for data['x'], or",
    ),
    "steps of rows": (
        jaxpp.train_loop(of_rows, 2),
        jax.tree.map(lambda x: jnp.stack([x] * 2), FLAT),
        P(None, "data"),
        "with PartitionSpec(None, 'data') for batches['x'], or",
    ),
    "a moved axis": (
        partial(of_microbatches_along, axis=-1),
        batch(2),
        P(None, "data"),
        "shard the examples of the batch, or leave the axis out",
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_spec_is_one_with_which_devices_share_the_work(name: str) -> None:
    """With it there is no warning; the tests make any an error."""
    step, data, spec, text = SPECS[name]
    with pytest.warns(UserWarning, match=re.escape(text)):
        jaxpp.mpmd_jit_with_loop(step, make_mesh(2, data=2)).lower(weights(2), data).program()
    jaxpp.mpmd_jit_with_loop(step, make_mesh(2, data=2), in_shardings=(None, spec)).lower(weights(2), data).program()


def test_a_reshape_that_makes_the_microbatches() -> None:
    text = "with PartitionSpec('data') for rows['x'] and microbatches=2 in place of the reshape, or"
    with pytest.warns(UserWarning, match=re.escape(text)):
        jaxpp.mpmd_jit_with_loop(reshaping, make_mesh(2, data=2)).lower(weights(2), FLAT).program()


def test_a_step_of_one_microbatch() -> None:
    step = jaxpp.mpmd_jit_by_yield(jax.value_and_grad(loss), make_mesh(2, data=2))
    data = jax.tree.map(lambda x: x[0], batch(1))
    with pytest.warns(UserWarning, match=re.escape("of the batch by in_shardings with PartitionSpec('data') for it,")):
        step.lower(weights(2), data).program()


def test_batches_of_several_steps_have_one_dimension_more() -> None:
    loop = jaxpp.train_loop(partial(sgd_step, schedule="1f1b"), 2)
    batches = jax.tree.map(lambda x: jnp.stack([x] * 2), batch(2))
    step = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2, data=2)).lower(weights(2), batches)
    with pytest.warns(UserWarning, match=r"with PartitionSpec\(None, None, 'data'\) for batches\['x'\]"):
        step.program()
