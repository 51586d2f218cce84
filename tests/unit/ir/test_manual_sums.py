"""Sums of each device's own rows in a `shard_map`."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from jaxpp.ir.manual_sums import unreduced

ROWS, WHOLE = (P("data"), P("data")), P()
X = np.ones((4, 4), np.float32)


def wrong(body: Callable[..., Any], in_specs: Any, out_specs: P = WHOLE) -> list[str]:
    """Returns the axes over which a body leaves a sum of each device."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    module = jax.jit(mapped).lower(*[X] * len(in_specs)).compiler_ir()
    assert isinstance(module, ir.Module)
    with module.context, ir.Location.unknown():
        return [re.findall(r"axis '(\w+)'", each.message)[0] for each in unreduced(module)]


@pytest.mark.parametrize(
    ("body", "in_specs", "axes"),
    [
        (lambda x, y: x.T @ y, ROWS, ["data"]),
        (lambda x, y: jax.lax.psum(x.T @ y, "data"), ROWS, []),
        (lambda x, y: jax.lax.psum(x.T @ y, "model"), ROWS, ["data"]),
        (lambda x, y: jnp.tanh(x).T @ (2 * y), ROWS, ["data"]),
        (lambda x, y: (x.T @ y).T / 2, ROWS, ["data"]),
        (lambda x, y: jnp.broadcast_to(jnp.sum(x + y, 0), (4, 4)), ROWS, ["data"]),
        (lambda x, y: jnp.broadcast_to(jnp.max(x + y, 0), (4, 4)), ROWS, []),
        (lambda x, y: x @ y.T, (P("data"), P()), []),
        (lambda x, y: x @ y, (P(None, ("data", "model")), P(("data", "model"))), ["data", "model"]),
        (lambda x, y: jax.lax.psum(x @ y, "data"), (P(None, ("data", "model")), P(("data", "model"))), ["model"]),
        # A sum that is passed around a ring, or gathered, is not judged. Nor is what is made of a sum.
        (lambda x, y: (p := x.T @ y) + jax.lax.ppermute(p, "data", [(0, 1), (1, 0)]), ROWS, []),
        (lambda x, y: jax.lax.all_gather(x.T @ y, "data").sum(0), ROWS, []),
        (lambda x, y: jnp.tanh(x.T @ y), ROWS, []),
    ],
)
def test_a_sum_that_no_collective_completes(body: Callable[..., Any], in_specs: Any, axes: list[str]) -> None:
    assert wrong(body, in_specs) == axes


def test_a_result_that_is_sharded_is_a_sum_of_each_device() -> None:
    assert wrong(lambda x, y: x.T @ y, ROWS, P("data")) == []
    assert wrong(lambda x, y: x.T @ y, ROWS, P("model")) == ["data"]
