"""Constants that JAX's users seldom see: of 64 bits, where arrays have 32, and complex ones."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, make_mesh, sgd_step, weights
from unit.end_to_end.test_equal_values import check_again

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end
TURNS = np.exp(1j * np.arange(4)[:, None] * np.array([1.0, 0.5, 0.2, 0.1])).astype(np.complex64)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_one_key_for_the_step_that_is_split_along_the_stages(impl: str) -> None:
    """Threefry shifts 64 bits, by constants that are the same for all microbatches."""

    def loss(w: jax.Array, key: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(2):
            key, own = jax.random.split(key)
            x, key = mark((x @ w * jax.random.bernoulli(own, 0.9, x.shape), key))
        return x.sum()

    def step(w: jax.Array, key: jax.Array, batch: jax.Array) -> jax.Array:
        return jaxpp.treduce(partial(loss, w, key), batch, schedule=jaxpp.GPipe(2), operation=jaxpp.Add)

    check(step, (weights(1)[0], jax.random.key(0, impl=impl), batch(4)["x"]), make_mesh(2))


def rotated(w: jax.Array, x: jax.Array) -> jax.Array:
    """Rotary embeddings, as LLaMA has them."""
    half = w.shape[0] // 2
    y = x @ w
    turned = lax.complex(y[:, :half], y[:, half:]) * TURNS
    return jnp.concatenate([turned.real, turned.imag], 1)


def scaled(w: jax.Array, x: jax.Array) -> jax.Array:
    """A product that is the same for all microbatches, and so is hoisted."""
    return jnp.abs(x @ (w * (1.0 + 2.0j)))


WRAPS: list[Callable[[Any], Any]] = [lambda loss: loss, jax.checkpoint]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize(("layer", "schedule"), [(rotated, "1f1b"), (scaled, "1f1b"), (rotated, "zb-h1")])
def test_complex_constants(layer: Callable[..., jax.Array], schedule: str, wrap: Callable[[Any], Any]) -> None:
    check_again(layer, wrap, schedule)


@pytest.mark.parametrize("sharded", [P("data", "model"), P(None, "model")])
def test_complex_constants_are_sharded(sharded: P) -> None:
    mesh = make_mesh(2, data=2, model=2)

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for w in params:
            y = lax.complex(x @ w, x) * np.exp(1j * np.arange(x.size).reshape(x.shape)).astype(np.complex64)
            x = mark(
                jnp.abs(lax.with_sharding_constraint(y, NamedSharding(mesh.jax_mesh, sharded))) * (2.0 - 1.0j)
            ).real
        return jnp.mean((x - microbatch["y"]) ** 2)

    made = partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2))
    check(made, (weights(2), batch(4)), mesh)


def test_complex_state_in_a_loop_over_steps() -> None:
    """A constant of each step is one of all of them."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(mark(x @ params[0] * (1 + 2j)) @ params[1]) ** 2)

    def step(params: Any, batch: jax.Array) -> Any:
        losses, grads = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=jaxpp.Std1F1B(2))
        new = jax.tree.map(lambda w, g: w - 0.001 * jnp.conj(g) * (1 + 2j), params, grads)
        return new, losses * jnp.array([1 + 1j, 2 - 1j])

    batches = batch(6)["x"].reshape(3, 2, *batch(6)["x"].shape[1:]) * 0.1
    check(jaxpp.train_loop(step, 3), ([w * (1 - 0.5j) for w in weights(2)], batches), make_mesh(2))


def test_constants_of_64_bits() -> None:
    with jax.enable_x64(True):

        def loss(w: jax.Array, microbatch: Any) -> jax.Array:
            x = mark(jnp.tanh(microbatch["x"] @ w))
            bits = (lax.bitcast_convert_type(x, jnp.uint64) ^ np.uint64(2**63 + 5)) >> np.uint64(12)
            return jnp.sum(jnp.abs(x * (0.1 + 1e-12j))) + jnp.sum(lax.stop_gradient(bits.astype(jnp.float64)) * 1e-16)

        wide = weights(1)[0].astype(np.float64), jax.tree.map(lambda leaf: leaf.astype(np.float64), batch(2))
        check(partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2)), wide, make_mesh(2))
