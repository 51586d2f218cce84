"""A step on two actors: numbers, handles, what is refused."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from unit.ray import steps

import jaxpp

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with jaxpp.ray.Cluster(actors=2, devices=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def step(cluster: Any) -> Any:
    """The step on two meshes, one per actor, of two devices each."""
    mesh = cluster.mesh((2, 2), ("mpmd", "data"), "mpmd")
    shardings = (PartitionSpec(), PartitionSpec(None, "data"))
    return jaxpp.mpmd_jit_with_loop(steps.train_step, mesh, in_shardings=shardings, donate_argnums=0)


def test_trains_as_jax_jit_does(step: Any) -> None:
    weights, losses = steps.init(2), list[Any]()
    for number in range(3):
        weights, value = step(weights, steps.batch(number))
        losses.append(value)
    expected_weights, expected_losses = steps.expected(2, 3)
    np.testing.assert_allclose(jax.device_get(losses), expected_losses, rtol=1e-6)
    for found, wanted in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
