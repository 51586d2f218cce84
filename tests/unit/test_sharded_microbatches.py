"""A batch that is sharded along its microbatch axis: a warning, and right results."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, loss, lowered, make_mesh, sgd_step, weights

import jaxpp

STEP = partial(sgd_step, schedule="1f1b")
ARGUMENTS: Any = (weights(2), batch(4))


def test_whole_microbatches_on_each_device_are_no_gain() -> None:
    message = (
        "batch['x'] (and 1 more) is sharded over 'data' along its microbatch axis, 0: every device computes all of "
        "each microbatch; PartitionSpec(None, 'data') splits the examples of each instead"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        check(STEP, ARGUMENTS, make_mesh(2, data=2), in_shardings=(P(), P("data")))


def test_parts_of_microbatches_are_what_is_meant() -> None:
    """The tests make any warning an error."""
    lowered(STEP, ARGUMENTS, make_mesh(2, data=2), in_shardings=(P(), P(None, "data"))).program()


def test_batches_of_several_steps_have_one_dimension_more() -> None:
    loop, (state, one) = jaxpp.train_loop(STEP, 2), ARGUMENTS
    arguments = state, {name: jnp.stack([leaf] * 2) for name, leaf in one.items()}
    step = lowered(loop, arguments, make_mesh(2, data=2), in_shardings=(P(), P(None, "data")))
    with pytest.warns(UserWarning, match=r"along its microbatch axis, 1: .* PartitionSpec\(None, None, 'data'\)"):
        step.program()


def flat_step(params: Any, data: Any, microbatches: int = 4, reshapes: bool = False) -> Any:
    if reshapes:
        data = {name: rows.reshape(microbatches, -1, *rows.shape[1:]) for name, rows in data.items()}
    gradient = partial(jax.value_and_grad(loss), params)
    losses, gradients = jaxpp.treduce(gradient, data, "1f1b", microbatches=None if reshapes else microbatches)
    return [w - g for w, g in zip(params, gradients, strict=True)], losses


def flat(rows: int) -> Any:
    """Parameters and a batch that is not split into microbatches."""
    return weights(2), {name: leaf[0] for name, leaf in batch(1, rows).items()}


@pytest.mark.parametrize("rows", [4, 12])
def test_rows_that_the_devices_do_not_share_equally(rows: int) -> None:
    message = (
        f"data['x'] (and 1 more) is sharded over 'data' along axis 0: 2 devices can't share the rows of a microbatch, "
        f"{rows // 4}, equally, so rows move between them; expected a multiple of 2 rows for each microbatch"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        check(flat_step, flat(rows), make_mesh(2, data=2), in_shardings=(P(), P("data")))


def test_rows_that_the_devices_share_equally() -> None:
    check(flat_step, flat(8), make_mesh(2, data=2), in_shardings=(P(), P("data")))


def test_microbatches_of_a_reshape() -> None:
    message = (
        "data['x'] (and 1 more) is sharded over 'data' along axis 0, of which a reshape makes the microbatch axis: "
        "every device computes all of each microbatch; leave out the reshape, and give treduce microbatches=4: then "
        "each device has a part of each"
    )
    step = partial(flat_step, reshapes=True)
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        check(step, flat(16), make_mesh(2, data=2), in_shardings=(P(), P("data")))


def test_rows_of_several_steps_have_one_dimension_more() -> None:
    loop, (state, one) = jaxpp.train_loop(flat_step, 2), flat(12)
    arguments = state, {name: jnp.stack([leaf] * 2) for name, leaf in one.items()}
    step = lowered(loop, arguments, make_mesh(2, data=2), in_shardings=(P(), P(None, "data")))
    with pytest.warns(UserWarning, match="is sharded over 'data' along axis 1: 2 devices can't share the rows"):
        step.program()
