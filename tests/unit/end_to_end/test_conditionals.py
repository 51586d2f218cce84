"""Conditionals over the state of all stages: the numbers of plain `jax.jit`, and no part of the state is sent."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from jax import lax
from unit.end_to_end.compare import batch, check, feed_state, make_mesh, weights
from unit.end_to_end.compare import loss as of_one
from unit.end_to_end.everywhere import check_step, gradient_step, plans
from unit.end_to_end.test_transfers import carried

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(3)


def conditional_step(state: Any, batch: Any, change: Any, schedule: Any = SCHEDULE) -> Any:
    """A step whose new state is `change(state, gradients)`."""
    _, losses, grads = gradient_step(state[0], batch, schedule=schedule, loss=of_one)
    return change(state, grads), losses


def skipped(state: Any, grads: Any) -> Any:
    """Every other step is left out, inside of a choice that is always the same."""
    params, count = state
    new = [w - 0.1 * g for w, g in zip(params, grads, strict=True)]
    params = lax.cond(count < 9, lambda: lax.cond(count % 2 == 0, lambda: new, lambda: params), lambda: grads)
    return params, count + 1


def with_products(state: Any, grads: Any) -> Any:
    """Products of matrices are computed in the branch that is taken alone."""
    params, count = state
    optimizer = optax.contrib.muon(1e-2)

    def update() -> Any:
        return optax.apply_updates(params, optimizer.update(grads, optimizer.init(params), params)[0])

    return lax.cond(count % 2 == 0, update, lambda: params), count + 1


def one_of_three(state: Any, grads: Any) -> Any:
    params, count = state
    by_rate = [lambda rate=rate: [w - rate * g for w, g in zip(params, grads, strict=True)] for rate in (0.1, 0.2, 0.3)]
    return lax.switch(count % 3, by_rate), count + 1


CHANGES = [skipped, with_products, one_of_three]


@plans
@pytest.mark.parametrize("change", CHANGES)
def test_conditional_updates(change: Any, plan: str) -> None:
    step = partial(conditional_step, change=change)
    check_step(step, ((weights(4), jnp.int32(0)), batch(4)), plan, steps=3, feed=feed_state, tolerance=1e-4)


@pytest.mark.parametrize("change", CHANGES)
def test_no_weight_is_sent(change: Any) -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(conditional_step, change=change), mpmd_mesh=make_mesh(3))
    found = carried(step.lower((weights(3), jnp.int32(0)), batch(4)).program())
    assert set(found) <= {"activation", "gradient", "scalar"}


def test_a_branch_that_prints_runs_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    def reported(state: Any, grads: Any) -> Any:
        params, count = state

        def update() -> Any:
            jax.debug.print("updated {size:.1f}", size=jnp.sum(jnp.abs(grads[0])))
            return [w - 0.1 * g for w, g in zip(params, grads, strict=True)]

        return lax.cond(count % 2 == 0, update, lambda: params), count + 1

    step = partial(conditional_step, change=reported)
    check(step, ((weights(3), jnp.int32(0)), batch(4)), make_mesh(3), steps=3, feed=feed_state)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("updated") == 4, "in two of three steps, here and by jax.jit"
