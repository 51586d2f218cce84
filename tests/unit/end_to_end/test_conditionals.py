"""Conditionals over the state of all stages: the numbers of plain `jax.jit`, and no part of the state is sent."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, make_mesh, sgd_step, weights
from unit.end_to_end.compare import loss as of_one
from unit.end_to_end.everywhere import check_step, gradient_step, plans
from unit.end_to_end.test_transfers import carried

import jaxpp.api as jaxpp
from jaxpp import schedules

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


Branch = Callable[[jax.Array, Any, jax.Array], jax.Array]


def two(h: jax.Array, w: Any) -> jax.Array:
    return jnp.tanh(jnp.tanh(h @ w[0]) @ w[1])


def by_data(h: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    return lax.cond(jnp.sum(h) > 0, lambda h: two(h, w), lambda h: h, h)


def by_weights(h: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    return lax.cond(jnp.max(w[0]) > 0.8, lambda h: jnp.sin(h), lambda h: two(h, w), h)


def by_layer(h: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    return lax.switch(i % 3, [lambda h: two(h, w), lambda h: jnp.sin(h @ w[0]), lambda h: h @ w[1] + h], h)


def by_chance(h: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    flag = jax.random.bernoulli(jax.random.fold_in(jax.random.key(1), i))
    return lax.cond(flag, jax.checkpoint(lambda h: two(h, w)), lambda h: h + jnp.tanh(h @ w[0]), h)


def one_in_another(h: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    def inner(h: jax.Array) -> jax.Array:
        return lax.cond(jnp.max(h) > 1, lambda h: two(h, w), lambda h: jnp.sin(h @ w[0]), h)

    return lax.cond(jnp.sum(h) > 0, inner, lambda h: jnp.tanh(h @ w[1]), h)


def scan_inside(h: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    def scanned(h: jax.Array) -> jax.Array:
        return lax.scan(lambda h, _: (two(h, w), None), h, None, length=2)[0]

    return lax.cond(jnp.sum(h) > 0, scanned, lambda h: jnp.tanh(h @ w[1]), h)


def by_platform(h: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    return lax.platform_dependent(h, w, cpu=two, default=lambda h, w: h @ w[0])


@pytest.mark.parametrize(
    ("name", "form", "data", "recompute"),
    [
        ("zb-h1", "unrolled", 1, None),
        ("zb-h1", "scan", 2, None),
        ("dualpipe", "scan", 1, None),
        ("zb-h1", "scan", 1, "selective"),
    ],
)
@pytest.mark.parametrize("branch", [by_data, by_weights, by_layer, by_chance, one_in_another, scan_inside, by_platform])
def test_backwards_through_conditionals_are_split(
    branch: Branch, name: str, form: str, data: int, recompute: str | None
) -> None:
    """Whichever branch is taken, in layers that are scanned or not: the input gradient is there before the weights'."""

    def stage(x: jax.Array, w: Any, first: int) -> jax.Array:
        if form == "scan":
            return lax.scan(lambda h, each: (branch(h, each[1], each[0]), None), x, (first + jnp.arange(2), w))[0]
        for i in range(2):
            x = branch(x, w[i], jnp.int32(first + i))
        return x

    def loss(w: Any, microbatch: Any) -> jax.Array:
        x = jaxpp.mark_stage_end(stage(microbatch["x"], w[0], 0))
        return jnp.mean((stage(x, w[1], 2) - microbatch["y"]) ** 2)

    plan = schedules.make(name, meshes=2, microbatches=4)
    state = (
        jnp.stack([jnp.stack(weights(2)), jnp.stack(weights(2))])[:, :, None] * jnp.array([1.0, -1.0])[:, None, None]
    )
    options: Any = {"recompute": recompute, "in_shardings": (P(), P(None, "data"))}
    check(partial(sgd_step, schedule=plan, loss=loss), (state, batch(4)), make_mesh(2, data=data), **options)
