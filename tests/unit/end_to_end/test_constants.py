"""Arrays that a step closes over, as constants of its jaxpr and as arguments that JAX adds to its module."""

from collections.abc import Generator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from unit.end_to_end.compare import WIDTH, batch, check, make_mesh, weights

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end
TABLE = np.linspace(0, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)


@pytest.fixture(params=[False, True], ids=["constants", "arguments"])
def simplified(request: pytest.FixtureRequest) -> Generator[bool]:
    """Both settings of `jax_use_simplified_jaxpr_constants`: JAX moves towards the second one."""
    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", request.param)
    yield request.param
    jax.config.update("jax_use_simplified_jaxpr_constants", before)


def make_loss() -> Any:
    """A loss of arrays of many types: in jitted, checkpointed and scanned functions too."""
    whole, keys = jnp.asarray(TABLE), jax.random.split(jax.random.key(3), 4)
    narrow, spectrum = TABLE.astype(ml_dtypes.bfloat16), TABLE.astype(np.complex64)
    mask, count = TABLE > 0.5, np.arange(WIDTH, dtype=np.int32)

    @jax.jit
    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w + TABLE[:1] * count)

    def loss(params: Any, microbatch: Any) -> Any:
        x = mark(layer(params[0], microbatch["x"]) @ whole)
        x = jnp.where(mask[:1], x * jax.random.uniform(keys[1], x.shape), x) + jnp.asarray(narrow[:1])
        x = jax.checkpoint(layer)(params[1], x)
        x, _ = jax.lax.scan(lambda x, row: (x + row, None), x, TABLE)
        return mark(jnp.mean((x - microbatch["y"]) ** 2) + jnp.real(spectrum).sum())

    return loss


def make_step(schedule: str) -> Any:
    loss, keys, table = make_loss(), jax.random.split(jax.random.key(4), 2), jnp.asarray(TABLE)

    def step(params: Any, batch: Any) -> Any:
        value, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=schedule)
        return [w - 0.1 * g + TABLE + table for w, g in zip(params, gradients, strict=True)], (
            value,
            jax.random.bits(keys[1]),
        )

    return step


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_step(simplified: bool, schedule: str) -> None:
    check(make_step(schedule), (weights(2), batch(4)), make_mesh(2))


def test_a_train_loop(simplified: bool) -> None:
    batches = jax.tree.map(lambda leaf: np.stack([leaf, leaf[::-1]]), batch(4))
    check(jaxpp.train_loop(make_step("1f1b"), 2), (weights(2), batches), make_mesh(2))


def test_a_function_without_a_loop(simplified: bool) -> None:
    microbatch = jax.tree.map(lambda leaf: leaf[0], batch(1))
    function = jax.value_and_grad(make_loss())
    found = jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=make_mesh(2))(weights(2), microbatch)
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(jax.jit(function)(weights(2), microbatch)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_arguments_stay_those_of_the_user(simplified: bool) -> None:
    step = jaxpp.mpmd_jit_with_loop(make_step("1f1b"), mpmd_mesh=make_mesh(2), donate_argnums=0)
    lowered = step.lower(weights(2), batch(4))
    assert lowered.as_text().count("tf.aliasing_output") + lowered.as_text().count("jax.buffer_donor") == 2
    assert repr(lowered).startswith("<LoweredStep of step: 4 arrays in, 4 out")
