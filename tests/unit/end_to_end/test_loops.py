"""The microbatch loop in every form: `treduce`, `treduce_i`, `lax.scan`, `fori_loop`; and the operations."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, check, feed_state, layers, loss, make_mesh, sgd_step, weights
from unit.end_to_end.everywhere import PLANS, STAGES, schedule_and_mesh

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(3)
value_and_grad = jax.value_and_grad(loss)


def updated(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)


def scan_step(params: Any, batch: Any, *, reverse: bool = False) -> Any:
    def accumulate(total: Any, microbatch: Any) -> Any:
        value, grads = value_and_grad(params, microbatch)
        return jax.tree.map(jnp.add, total, grads), value

    grads, losses = jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, params), batch, reverse=reverse)
    return updated(params, grads), losses


def fori_step(params: Any, batch: Any, *, start: int = 0) -> Any:
    def accumulate(i: Any, carry: Any) -> Any:
        total, losses = carry
        value, grads = value_and_grad(params, jax.tree.map(lambda leaf: leaf[i], batch))
        return jax.tree.map(jnp.add, total, grads), losses.at[i].set(value)

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, losses = jax.lax.fori_loop(start, 4, accumulate, (zeros, jnp.zeros(4)))
    return updated(params, grads), losses


@pytest.mark.parametrize("schedule", ["gpipe", SCHEDULE, SCHEDULE.build(4)], ids=["name", "class", "built"])
def test_scan_with_a_schedule_in_every_form(schedule: Any) -> None:
    check(scan_step, (weights(3), batch(4)), make_mesh(3), schedule=schedule)


@pytest.mark.parametrize(
    "step",
    [partial(scan_step, reverse=True), fori_step, partial(fori_step, start=1)],
    ids=["reverse", "fori", "fori 1"],
)
def test_loops_of_a_users_own(step: Any) -> None:
    check(step, (weights(3), batch(4)), make_mesh(3), schedule="1f1b")


def test_values_carried_from_microbatch_to_microbatch() -> None:
    def step(params: Any, batch: Any, key: jax.Array) -> Any:
        def accumulate(carry: Any, microbatch: Any) -> Any:
            total, mean, key = carry
            key, own = jax.random.split(key)
            x = microbatch["x"] * jax.random.bernoulli(own, 0.7, microbatch["x"].shape)
            value, grads = value_and_grad(params, microbatch | {"x": x})
            return (jax.tree.map(jnp.add, total, grads), 0.9 * mean + 0.1 * value, key), None

        first = (jax.tree.map(jnp.zeros_like, params), jnp.float32(1), key)
        return jax.lax.scan(accumulate, first, batch)[0]

    check(step, (weights(3), batch(4), jax.random.PRNGKey(3)), make_mesh(3), schedule="1f1b")


def test_a_scan_with_explicit_axes_and_a_schedule_by_name() -> None:
    check(scan_step, (weights(2), batch(4)), make_mesh(2, data=2, explicit=True), schedule="1f1b")


def advanced(counters: dict[str, jax.Array], by: int) -> dict[str, jax.Array]:
    """Two numbers that go up and one that goes down, in which microbatch after microbatch wraps around."""
    small = counters["int8"] - 11
    wide = (counters["uint32"].astype(jnp.int32) + 7).astype(jnp.uint32)
    return {"int32": counters["int32"] + by, "uint32": wide, "int8": small}


def scaled(x: jax.Array, counters: dict[str, jax.Array]) -> jax.Array:
    for count in counters.values():
        x = x * (1 + 0.1 * (count % 5).astype(x.dtype))
    return x


def counting_step(state: Any, batch: Any, *, marked: bool) -> Any:
    """Every stage advances the same counters, and so does what follows the last mark."""
    params, counters = state

    def accumulate(carry: Any, microbatch: Any) -> Any:
        total, counters = carry

        def of_one(params: Any) -> Any:
            x, now, seen = microbatch["x"], counters, [counters]
            for stage, w in enumerate(params):
                x, now = jnp.tanh(scaled(x @ w, now)), advanced(now, stage + 1)
                x, now = jaxpp.mark_stage_end((x, now)) if marked else (jaxpp.mark_stage_end(x), now)
                seen.append(now)
            return jnp.mean((scaled(x, now) - microbatch["y"]) ** 2), (advanced(now, 1), seen)

        (value, (counters, seen)), grads = jax.value_and_grad(of_one, has_aux=True)(params)
        return (jax.tree.map(jnp.add, total, grads), counters), (value, seen)

    zeros = jax.tree.map(jnp.zeros_like, params)
    (grads, counters), seen = jax.lax.scan(accumulate, (zeros, counters), batch)
    return (updated(params, jax.tree.map(lambda grad: scaled(grad, counters), grads)), counters), seen


STARTS = {"int32": np.int32(5), "uint32": np.uint32(2**32 - 20), "int8": np.int8(-120)}


@pytest.mark.parametrize("plan", [*PLANS, "zb-h1", "chimera"])
def test_counters_that_several_stages_advance(plan: str) -> None:
    schedule, mesh = schedule_and_mesh(plan)
    in_shardings = (P(), P(None, "data")) if plan == "sharded" else None
    options: dict[str, Any] = {"schedule": str(schedule), "in_shardings": in_shardings}
    args = ((weights(STAGES), jax.tree.map(jnp.asarray, STARTS)), batch(4))
    check(partial(counting_step, marked=False), args, mesh, steps=2, feed=feed_state, **options)


def test_counters_that_start_from_constants_and_are_marked() -> None:
    def step(params: Any, batch: Any) -> Any:
        return counting_step((params, jax.tree.map(jnp.asarray, STARTS)), batch, marked=True)

    check(step, (weights(3), batch(4)), make_mesh(3), schedule="1f1b")


def test_treduce_i() -> None:
    def step(params: Any, batch: Any) -> Any:
        def one(i: jax.Array) -> Any:
            return value_and_grad(params, jax.tree.map(lambda leaf: leaf[i], batch))

        return jaxpp.treduce_i(one, 4, schedule=SCHEDULE, operation=(jaxpp.Concat(), jaxpp.Add))

    check(step, (weights(3), batch(4)), make_mesh(3))


def test_microbatches_along_another_axis() -> None:
    def step(params: Any, batch: Any) -> Any:
        return jaxpp.treduce(partial(value_and_grad, params), batch, schedule=SCHEDULE, axis=1)

    check(step, (weights(3), batch(3)), make_mesh(3))


class Decayed(jaxpp.Op):
    """A running sum that forgets, of another shape than the results."""

    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.ones((), a.dtype)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        return 0.5 * state + jnp.sum(update**2) * (index + 1)


def test_operations() -> None:
    operations = {
        "loss": jaxpp.Concat(),
        "grads": jaxpp.Add,
        "largest": jaxpp.Max,
        "decayed": Decayed,
        "rows": jaxpp.Concat,
        "columns": jaxpp.Concat(-1),
        "any": jaxpp.Max,
        "count": jaxpp.Add(),
    }

    def step(params: Any, batch: Any) -> Any:
        def one(microbatch: Any) -> Any:
            def with_outputs(params: Any) -> Any:
                x = layers(params, microbatch["x"])
                return jnp.mean((x - microbatch["y"]) ** 2), x

            (value, x), grads = jax.value_and_grad(with_outputs, has_aux=True)(params)
            named = {"loss": value, "rows": x, "columns": x, "any": x[0, 0] > 0, "count": jnp.sum(x > 0)}
            return named | {"grads": grads, "largest": grads, "decayed": grads}

        return jaxpp.treduce(one, batch, schedule=SCHEDULE, operation=operations)

    check(step, (weights(3), batch(4)), make_mesh(3))


def test_gradients_of_inputs() -> None:
    def step(params: Any, batch: Any) -> Any:
        def one(microbatch: Any) -> Any:
            of_inputs = jax.value_and_grad(lambda p, x: loss(p, microbatch | {"x": x}), argnums=(0, 1))
            value, (grads, of_x) = of_inputs(params, microbatch["x"])
            return value, grads, of_x

        operation = (jaxpp.Concat(), jaxpp.Add, jaxpp.Concat())
        return jaxpp.treduce(one, batch, schedule=SCHEDULE, operation=operation)

    check(step, (weights(3), batch(4)), make_mesh(3))


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_the_same_function_runs_without_jaxpp(jit: Any) -> None:
    marked = jit(partial(sgd_step, schedule=SCHEDULE))(weights(3), batch(3))
    plain = jit(partial(sgd_step, marks=0))(weights(3), batch(3))
    assert_same(marked, plain)
