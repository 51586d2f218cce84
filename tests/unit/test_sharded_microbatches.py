"""A batch that is sharded along its microbatch axis: a warning, and right results."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, lowered, make_mesh, sgd_step, weights

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
    arguments = state, jax.tree.map(lambda x: jnp.stack([x] * 2), one)
    step = lowered(loop, arguments, make_mesh(2, data=2), in_shardings=(P(), P(None, "data")))
    with pytest.warns(UserWarning, match=r"along its microbatch axis, 1: .* PartitionSpec\(None, None, 'data'\)"):
        step.program()
