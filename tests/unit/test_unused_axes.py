"""The warning for devices that all compute the same."""

# pyright: reportUnknownLambdaType=false

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
        r"the mesh has 2 devices along its axis 'data', over which nothing in the step is sharded: .*None, 'data'\)"
    )
    with pytest.warns(UserWarning, match=message):
        lowered(loss, {}, explicit).program()


def test_batches_of_several_steps_have_one_dimension_more() -> None:
    loop = jaxpp.train_loop(partial(sgd_step, schedule="1f1b"), 2)
    batches = jax.tree.map(lambda x: jnp.stack([x] * 2), batch(2))
    step = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2, data=2)).lower(weights(2), batches)
    with pytest.warns(UserWarning, match=r"in_shardings=\(None, PartitionSpec\(None, None, 'data'\)\)"):
        step.program()
