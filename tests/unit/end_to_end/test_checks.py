"""`checkify`, and JAX's check for random keys that are used twice, around a step with marks and a loop."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from unit.end_to_end.compare import batch, check, make_mesh, weights

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end
ERRORS = checkify.user_checks | checkify.float_checks | checkify.index_checks


def loss(params: Any, microbatch: Any) -> Any:
    x = microbatch["x"]
    checkify.check(x.sum() < 100, "the sum is {}", x.sum())
    x = mark(jnp.tanh(x @ params[0]))
    checkify.check(jnp.all(x < 0.999), "the maximum is {m}", m=x.max())
    x = mark(jnp.log(x + 1.5) @ params[1])
    return jnp.mean((x - microbatch["y"]) ** 2)


def piped(params: Any, batch: Any, schedule: Any = "1f1b") -> Any:
    checkify.check(params[0].sum() < 1e3, "the weights are {}", params[0].sum())
    value, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=schedule)
    checkify.check(value.sum() < 1e6, "the losses are {}", value.sum())
    return gradients, value


def scanned(params: Any, batch: Any) -> Any:
    """The same with `lax.scan`, for which JAX has a rule."""
    checkify.check(params[0].sum() < 1e3, "the weights are {}", params[0].sum())

    def of_one(total: Any, microbatch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, microbatch)
        return jax.tree.map(jnp.add, total, gradients), value

    gradients, value = jax.lax.scan(of_one, jax.tree.map(jnp.zeros_like, params), batch)
    checkify.check(value.sum() < 1e6, "the losses are {}", value.sum())
    return gradients, value


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    ("factor", "weight", "says"),
    [
        (0.5, 1, "None"),
        (3, 1, "the maximum is"),
        (1000, 1, "the sum is"),
        (0.5, 1e9, "the weights are"),
        (np.nan, 1, ""),
    ],
)
def test_checkify(factor: float, weight: float, says: str, schedule: str) -> None:
    """A step's checks are those of the scan: in a microbatch the first that fails, before and after the loop too."""
    arguments = [weights(2)[0] * weight, weights(2)[1]], jax.tree.map(lambda leaf: abs(leaf) * factor, batch(4))
    wanted, (gradients, _) = jax.jit(checkify.checkify(scanned, ERRORS))(*arguments)
    assert str(wanted.get()).startswith(says)
    step = checkify.checkify(partial(piped, schedule=schedule), ERRORS)
    error, _ = jax.jit(step)(*arguments)
    assert error.get() == wanted.get()
    error, (found, _) = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))(*arguments)
    assert jaxpp.fetch(error).get() == wanted.get()
    for one, other in zip(found, gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_nan_of_one_microbatch() -> None:
    """Of the microbatches the first one in which a check fails."""
    data = batch(4)
    data["x"][2] = -100
    data["x"][3] = np.nan
    errors = checkify.nan_checks
    wanted, _ = jax.jit(checkify.checkify(scanned, errors))(weights(2), data)
    assert wanted.get() is not None
    error, _ = jaxpp.mpmd_jit_with_loop(checkify.checkify(piped, errors), mpmd_mesh=make_mesh(2))(weights(2), data)
    assert jaxpp.fetch(error).get() == wanted.get()


def handing_on(params: Any, key: Any, x: Any) -> Any:
    for w in params:
        key, own = jax.random.split(key)
        x, key = mark((jnp.tanh(x @ w) * jax.random.bernoulli(own, 0.5, x.shape), key))
    return jnp.mean(x**2)


def using_twice(params: Any, key: Any, x: Any) -> Any:
    x, again = mark((jnp.tanh(x @ params[0]) * jax.random.bernoulli(key, 0.5, x.shape), key))
    return jnp.mean(mark(x * jax.random.bernoulli(again, 0.5, x.shape) @ params[1]) ** 2)


def key_step(params: Any, key: Any, batch: Any, loss: Any, fold: bool = True) -> Any:
    def of_one(i: Any) -> Any:
        own = jax.random.fold_in(key, i) if fold else key
        return jax.value_and_grad(loss)(params, own, batch["x"][i])

    return jaxpp.treduce_i(of_one, 4, schedule="1f1b")


def test_keys_that_marks_hand_on() -> None:
    """They are used where their values are, not by the mark; what is used twice is told of through a mark too."""
    arguments = weights(2), jax.random.key(0), batch(4)
    with jax.debug_key_reuse(True):
        check(partial(key_step, loss=handing_on), arguments, make_mesh(2))
        jax.random.bits(mark(jax.random.key(1)))
        used = jax.random.key(2)
        jax.random.bits(used)
        for reuse in (
            lambda: jax.random.bits(mark(used)),
            lambda: jax.jit(partial(key_step, loss=using_twice))(*arguments),
            lambda: jax.jit(partial(key_step, loss=handing_on, fold=False))(*arguments),
        ):
            with pytest.raises(jax.errors.KeyReuseError):
                reuse()


def test_keys_of_a_batch() -> None:
    """Each microbatch uses its own row; a row that is used twice, or by all microbatches, is told of."""
    keys, x = jax.random.split(jax.random.key(0), 4), jnp.ones((4, 8))

    def noise(key: Any, times: int = 1) -> Any:
        return sum(jnp.sum(jax.random.normal(key, (8,))) for _ in range(times))

    def summed(of_one: Any, given: Any, axis: int = 0) -> Any:
        return jax.jit(lambda given: jaxpp.treduce(lambda each: jnp.sum(of_one(each)), given, axis=axis))(given)

    with jax.debug_key_reuse(True):
        summed(lambda each: each[1] * noise(each[0]), (keys, x))
        summed(lambda each: noise(each[0]), jax.random.split(jax.random.key(1), (1, 4)), axis=1)
        for reuse in (
            lambda: summed(lambda each: noise(each[0], times=2), (jax.random.split(jax.random.key(2), 4), x)),
            lambda: summed(lambda each: each * noise(keys[0]), x),
            lambda: jax.jit(lambda keys: summed(noise, keys) + noise(keys[1]))(jax.random.split(jax.random.key(3), 4)),
        ):
            with pytest.raises(jax.errors.KeyReuseError):
                reuse()
