"""Programs that look for the weak places of the passes, each pipelined and compared with plain `jax.jit`."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(3)
mark = jaxpp.mark_stage_end


def scan_step(update: Callable[..., Any], initial: Any, params: Any, batch: Any) -> Any:
    """Gradients, losses, and a state that `update(state, microbatch, loss)` hands on from microbatch to microbatch."""

    def body(carry: Any, microbatch: Any) -> Any:
        grads, state = carry
        value, new = jax.value_and_grad(loss)(params, microbatch)
        return (jax.tree.map(jnp.add, grads, new), update(state, microbatch, value)), value

    return lax.scan(body, (jax.tree.map(jnp.zeros_like, params), initial), batch)


def captured_in_a_branch(state: Any, _: Any, value: Any) -> Any:
    old = jnp.sin(jnp.tanh(state))
    return lax.cond(value > 0.5, lambda: old + value, lambda: old - value)


@pytest.mark.parametrize(
    ("update", "initial"),
    [
        pytest.param(lambda s, mb, v: mb["x"] * 2, np.zeros((4, 8), np.float32), id="cheap value of the batch"),
        pytest.param(lambda s, mb, v: jnp.ones(3), np.zeros(3, np.float32), id="constant"),
        pytest.param(lambda s, mb, v: s + np.int8(100), np.int8(0), id="counter that wraps"),
        pytest.param(lambda s, mb, v: s + np.uint32(0xFFFFFFFF), np.uint32(3), id="unsigned counter down"),
        pytest.param(lambda s, mb, v: (s[1], s[0] + v), (np.float32(1), np.float32(2)), id="swapped"),
        pytest.param(
            lambda s, mb, v: (s[0] * 0.5 + v, jnp.sin(jnp.tanh(s[0]))), (np.float32(1), np.float32(2)), id="lagging"
        ),
        pytest.param(captured_in_a_branch, np.float32(1), id="captured in a branch"),
    ],
)
def test_carried_state(update: Any, initial: Any) -> None:
    step = partial(scan_step, update, initial)
    check(step, (weights(3), batch(3)), make_mesh(3), schedule=SCHEDULE)


def mixed_marks(params: Any, mb: Any) -> Any:
    x = mb["x"]
    for w in params:
        x = jnp.tanh(x @ w)
        marked = (x, x, jnp.float32(2.0), jnp.arange(8), x > 0, params[-1], mb["y"], jnp.zeros((0, 8)))
        x, again, scale, numbers, positive, last, y, empty = mark(marked)
        x = x * scale + again * jnp.where(positive, 1.0, 0.5) + numbers + 0.1 * (y @ last) + jnp.sum(empty)
    return jnp.mean((x - mb["y"]) ** 2)


def empty_stages(params: Any, mb: Any) -> Any:
    x = mark(mb["x"])
    x = mark(jnp.maximum(x * params[0][0] + mb["y"], 0))
    return jnp.mean((mark(x) - jnp.sum(params[1] * params[2])) ** 2)


def towers(params: Any, mb: Any) -> Any:
    left, right = mark(jnp.tanh(mb["x"] @ params[0])), mark(jnp.tanh(mb["y"] @ params[1]))
    return jnp.mean(jnp.tanh(left @ params[2]) * right)


def skips(params: Any, mb: Any) -> Any:
    x, kept = mb["x"], [jnp.zeros((4, 8))]
    for w in params:
        x = jnp.tanh(x @ w + sum(kept))
        kept.append(x * 0.1)
        x = mark(x)
    return jnp.mean((x - mb["y"]) ** 2) + sum(jnp.mean(h) for h in kept)


def control_flow(params: Any, mb: Any) -> Any:
    x, mask = mb["x"], jnp.tanh(mb["y"])
    for w in params:
        x, sums = lax.scan(lambda c, i, w=w: (jnp.tanh(c @ w) + i * mask, jnp.sum(c * mask)), x, jnp.arange(3.0))
        x = lax.cond(jnp.sum(x) > 0, lambda a: a * mask, lambda a, w=w: a - w[0], x + jnp.mean(sums))
        x = jnp.sort(lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME"), axis=-1)
        x = mark(lax.fori_loop(0, 2, lambda i, a: a * 0.9 + mask * 0.1, x))
    return jnp.mean((x - mb["y"]) ** 2)


@pytest.mark.parametrize("of_one", [mixed_marks, empty_stages, towers, skips, control_flow])
def test_models(of_one: Any) -> None:
    check(partial(sgd_step, schedule=SCHEDULE, loss=of_one), (weights(3), batch(3)), make_mesh(3))


def test_values_of_many_types_cross_and_are_returned() -> None:
    def step(params: Any, batch: Any) -> Any:
        def of_one(params: Any, mb: Any) -> Any:
            x, kinds = mb["x"], None
            for w in params:
                x = jnp.tanh(jnp.real(mark(jnp.fft.fft(x @ w))))
                fixed = lax.stop_gradient(x)
                kinds = (fixed * 7).astype(jnp.int4), (fixed > 0), fixed.astype(jnp.float8_e4m3fn)
                x, kinds = mark((x, kinds))
                x = x + kinds[0].astype(jnp.float32) * 0.01 + kinds[1] + kinds[2].astype(jnp.float32)
            return jnp.mean((x - mb["y"]) ** 2), kinds

        (losses, kinds), grads = jaxpp.treduce(
            lambda mb: jax.value_and_grad(of_one, has_aux=True)(params, mb),
            batch,
            schedule=jaxpp.Std1F1B(4),
            operation=(jaxpp.Concat(), jaxpp.Add),
        )
        return losses, kinds, grads

    check(step, (weights(2), batch(3)), make_mesh(4), tolerance=1e-3)


def rotated(params: Any, other: Any, batch: Any) -> Any:
    new, losses = sgd_step(params, batch, schedule=SCHEDULE)
    return [new[1], new[2], new[0]], other, losses


def exchanged(params: Any, other: Any, batch: Any) -> Any:
    new, losses = sgd_step(params, batch, schedule=SCHEDULE)
    return jax.tree.map(jnp.add, other, new), params, losses


def twice(params: Any, other: Any, batch: Any) -> Any:
    new, losses = sgd_step(params, batch, schedule=SCHEDULE)
    new = jax.tree.map(lambda a, b: a + 0.1 * b, new, other)
    return new, new, losses, losses, batch["x"], params[0]


def before_and_after(params: Any, other: Any, batch: Any) -> Any:
    first = jnp.tanh(params[0] @ other[2])
    second = jnp.tanh(first @ params[1])
    used = [first, second + first, jnp.tanh(second @ other[2])]
    new, losses = sgd_step(used, batch, schedule=SCHEDULE)
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in new))
    top, where = lax.top_k(jnp.concatenate([x.ravel() for x in new]), 5)
    kept = lax.cond(jnp.isfinite(norm), lambda: [a - 0.1 * b for a, b in zip(params, new, strict=True)], lambda: params)
    count = lax.while_loop(lambda c: c[0] < norm, lambda c: (c[0] + 1, c[1] * 0.9 + new[1][0]), (0.0, new[2][0]))
    return kept, jax.tree.map(lambda a, b: a * 0.9 + b / norm, other, new), losses, top, where, count, norm, norm


@pytest.mark.parametrize("step", [rotated, exchanged, twice, before_and_after])
def test_donated_state(step: Any) -> None:
    args = (weights(3), jax.tree.map(lambda w: w + 1, weights(3)), batch(3))
    check(
        step,
        args,
        make_mesh(3),
        donate_argnums=(0, 1),
        steps=3,
        feed=lambda result, args: (*result[:2], args[2]),
        tolerance=1e-4,
    )


def test_donated_accumulators_that_are_used_again() -> None:
    def step(state: Any, params: Any, batch: Any) -> Any:
        final, losses = scan_step(lambda s, mb, v: jax.tree.map(lambda a: a + v, s), state, params, batch)
        return final[1], losses, jax.tree.map(jnp.matmul, state, final[0])

    args = (weights(3), weights(3), batch(3))
    check(step, args, make_mesh(3), schedule=SCHEDULE, donate_argnums=0, steps=3, feed=feed_state)


def test_donated_numpy_arrays_stay_as_they_are() -> None:
    args = jax.tree.map(np.asarray, (weights(3), batch(3)))
    before = jax.tree.map(np.copy, args)
    check(partial(sgd_step, schedule=SCHEDULE), args, make_mesh(3), donate_argnums=(0, 1))
    jax.tree.map(np.testing.assert_array_equal, args, before)


def differing(params: Any, mb: Any) -> Any:
    x = mb["x"]
    for stage, w in enumerate(params):
        x = lax.with_sharding_constraint(jnp.tanh(x @ w), P("model", "data") if stage else P(None, "data"))
        heads = mark(jnp.sin(x.reshape(4, 2, 4)))
        x = jnp.tanh(heads.reshape(4, 8) @ w.T)
    return jnp.mean((x - mb["y"]) ** 2)


def local(params: Any, mb: Any) -> Any:
    x = mb["x"]
    for w in params:
        x, _ = lax.scan(lambda c, i, w=w: (jnp.tanh(c @ w) + i, None), x, jnp.arange(2.0))
        x = mark(jnp.tanh(lax.cumsum(jnp.sort(x, axis=0), axis=0) + jax.scipy.special.erf(x)[:1]))
    return jnp.mean((x - mb["y"]) ** 2)


@pytest.mark.parametrize("of_one", [differing, local])
@pytest.mark.parametrize("specs", [(P(None, "model"), P("model", None)), (P(("data", "model")), P("model", "data"))])
def test_sharded(of_one: Any, specs: Any) -> None:
    mesh = make_mesh(2, data=2, model=2)
    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2), loss=of_one)
    with jax.set_mesh(mesh.lowering_mesh()):
        expected = jax.jit(step)(weights(2), batch(2))
    options: dict[str, Any] = {"in_shardings": (list(specs), P(None, "data")), "donate_argnums": 0, "tolerance": 3e-5}
    check(step, (weights(2), batch(2)), mesh, reference=lambda *_: expected, **options)
