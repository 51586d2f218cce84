"""What the processes of test_processes.py run: each function is called in all of them at the same time."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import jaxpp.api as jaxpp

WIDTH = 32


def loss(weights: Any, microbatch: Any) -> Any:
    x, y = microbatch
    for w in weights:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ w))
    return jnp.mean((x - y) ** 2)


def train_step(weights: Any, batch: Any) -> Any:
    gradient = partial(jax.value_and_grad(loss), weights)
    operation = (jaxpp.Concat(), jaxpp.Add)
    losses, gradients = jaxpp.treduce(gradient, batch, schedule=jaxpp.Std1F1B(len(weights)), operation=operation)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], losses.mean()


def arguments(stages: int, microbatches: int = 4) -> Any:
    random = np.random.default_rng(0)
    weights = [(random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype("f4") for _ in range(stages)]
    return weights, tuple(random.normal(size=(microbatches, 8, WIDTH)).astype("f4") for _ in range(2))


def compiled(stages: int, devices: Any = None, function: Callable[..., Any] = train_step) -> Any:
    """The step over all devices, or these, in that order: those of one stage side by side."""
    devices = np.array(jax.devices() if devices is None else devices).reshape(stages, -1)
    mesh = jaxpp.MpmdMesh(Mesh(devices, ("mpmd", "data")), "mpmd")
    shardings = (PartitionSpec(), PartitionSpec(None, "data"))
    return jaxpp.mpmd_jit_with_loop(function, mpmd_mesh=mesh, in_shardings=shardings, donate_argnums=0)


def shards_of(array: Any) -> list[Any]:
    return [np.asarray(shard.data) for shard in array.addressable_shards]


def check(stages: int, devices: Any = None, steps: int = 3) -> list[int]:
    """Train, and compare what this process holds with plain jax.jit; how many shards of each result that is."""
    weights, batch = arguments(stages)
    step, plain = compiled(stages, devices), jax.jit(train_step)
    expected, expected_value, found = weights, None, None
    for _ in range(steps):
        weights, value = step(weights, batch)
        expected, expected_value = plain(expected, batch)
        found = [*weights, value]
    assert found
    for array, right in zip(found, [*expected, expected_value], strict=True):
        assert array.shape == right.shape
        assert array.dtype == right.dtype
        for shard in shards_of(array):
            np.testing.assert_allclose(shard, right, rtol=1e-5, atol=1e-6)
    return [len(array.addressable_shards) for array in found]


def several_meshes_each() -> list[int]:
    """Four stages on two processes of two devices: half of the hops stay inside a process."""
    return check(4)


def one_mesh_each() -> list[int]:
    """Two stages of two devices each."""
    return check(2)


def meshes_across_processes() -> list[int]:
    """Two stages, each with one device of both processes: the hops stay inside, the gradients' sums don't."""
    first, second, third, fourth = jax.devices()
    return check(2, [first, third, second, fourth])


def some_shards_cross() -> list[int]:
    """Two stages: the first on three processes' devices in one order, the second in another."""
    first, second, third, fourth = jax.devices()
    return check(2, [first, third, fourth, second])


def nothing_piles_up() -> list[int]:
    """Many steps; the live arrays after some of them."""
    weights, batch = arguments(2)
    step = compiled(2)
    counts: list[int] = []
    for number in range(1000):
        weights, value = step(weights, batch)
        if number % 300 == 299:
            jax.block_until_ready((weights, value))
            gc.collect()
            counts.append(len(jax.live_arrays()))
    return counts
