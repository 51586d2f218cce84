"""Marks inside of a function that is traced once: equal values are one mark, and two applications are two."""

# pyright: reportUnknownLambdaType=false

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from unit.end_to_end.compare import batch, check, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules

mark = jaxpp.mark_stage_end
end = jax.jit(lambda x: mark(x))
end_tanh = jax.jit(lambda x: mark(jnp.tanh(x)))
Pair = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def check_pair(pair: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]], **options: Any) -> None:
    """Compares a loss of two values, each behind a mark of one number, with `jax.jit`."""

    def loss(params: Any, microbatch: Any) -> jax.Array:
        one, other = pair(params[0], microbatch["x"])
        return jnp.sum(one * 1.5) + jnp.sum(jnp.sin(other) ** 2)

    check(partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2)), (weights(1), batch(2)), make_mesh(2), **options)


def check_again(
    layer: Callable[[Any, jax.Array], jax.Array], wrap: Callable[..., Any] = jax.checkpoint, schedule: str = "1f1b"
) -> None:
    """Compares a whole model under `jax.checkpoint`, of two stages of this layer, with `jax.jit`."""

    @wrap
    def loss(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for w in params:
            x = mark(layer(w, x))
        return jnp.mean((x - microbatch["y"]) ** 2)

    made = schedules.make(schedule, meshes=2, microbatches=2)
    check(partial(sgd_step, loss=loss, schedule=made), (weights(2), batch(2)), make_mesh(2))


def applied(layer: Callable[..., jax.Array], one: Any, other: Any) -> Any:
    """Two applications of one jitted layer with a mark inside, to one value and other numbers."""
    both = jax.jit(lambda x, number: mark(layer(x, number)))
    return lambda w, x: (both(x @ w, one), both(x @ w, other))


def scaled(x: jax.Array, scale: float) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h * scale), x)


def dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    def body(h: jax.Array, key: jax.Array) -> Any:
        return h * jax.random.bernoulli(key, 0.5, h.shape), None

    return lax.scan(body, x, jax.random.split(key, 3))[0]


def mapped(x: jax.Array, scale: jax.Array) -> jax.Array:
    return lax.map(lambda number: jnp.sin(number), scale * jnp.arange(1.0, 5.0)).sum() * x


def windowed(x: jax.Array, width: jax.Array) -> jax.Array:
    far = lax.fori_loop(0, 2, lambda _, n: n + width, 0)
    return lax.map(lambda row: jnp.where(jnp.arange(row.size) < far, row, 0), x)


def twice(one: Callable[..., Any], other: Callable[..., Any]) -> Any:
    """Two functions of one value, each behind a mark of one number."""
    return lambda w, x: (end_tanh(one(x @ w)), end_tanh(other(x @ w)))


def both(function: Callable[..., Any]) -> Any:
    """Two results of one function, each behind a mark of one number."""
    return lambda w, x: tuple(end(each) for each in function(x @ w))


def gram(x: jax.Array) -> jax.Array:
    return x.T @ x + jnp.diag(jnp.arange(1.0, 9.0))


def of_host(x: jax.Array) -> Any:
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: (x * 2, x * 3), (shape, shape), lax.stop_gradient(x))


def pooled(initial: float, operator: Any) -> Any:
    return lambda x: lax.reduce_window(x, initial, operator, (2, 1), (1, 1), "SAME")


def ordered(descending: bool) -> Any:
    return lambda x: jnp.sort(x, axis=0, descending=descending)


def convolved(dimensions: tuple[str, str, str]) -> Any:
    kernel = np.random.default_rng(3).normal(size=(4, 4, 4)).astype("f4")
    return lambda x: lax.conv_general_dilated(
        jnp.stack([x[:, :4]] * 4), jnp.asarray(kernel), (1,), "SAME", dimension_numbers=dimensions
    )


def branched(*branches: Any) -> Any:
    return lambda x: lax.switch((x.sum() > 0).astype(int), branches, x)


def placed(how: str) -> Any:
    def put(x: jax.Array) -> jax.Array:
        rows = jnp.ones((5, x.shape[1])).at[jnp.array([0, 2, 2, 4])]
        return getattr(rows, how)(x)

    return put


def to_complex(number: complex) -> Any:
    return lambda x: lax.fori_loop(0, 2, lambda _, h: h * number, x.astype(jnp.complex64)).real


@jax.custom_vjp
def tripled(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, h: jnp.sin(h), x)


tripled.defvjp(lambda x: (tripled(x), x), lambda x, gradient: (gradient * 3 * x,))

UNEQUAL: dict[str, Any] = {
    "two scales": applied(scaled, 1.0, 3.0),
    "two keys": applied(dropped, jax.random.key(0), jax.random.key(1)),
    "maps over constants": applied(mapped, 1.0, 2.0),
    "two windows": applied(windowed, 1, 3),
    "two results of a scan": both(lambda x: lax.fori_loop(0, 3, lambda _, c: (jnp.tanh(c[0]), jnp.sin(c[1])), (x, x))),
    "swapped carries": both(lambda x: lax.fori_loop(0, 3, lambda _, c: (c[1] * 2, jnp.sin(c[0])), (x, x))),
    "two results of a callback": twice(lambda x: of_host(x)[0], lambda x: of_host(x)[1]),
    "two results of svd": both(lambda x: jnp.linalg.svd(lax.stop_gradient(gram(x)))[::2]),
    "two results of qr": both(lambda x: jnp.linalg.qr(gram(x))),
    "two loops": twice(
        lambda x: lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h), x), lambda x: lax.fori_loop(0, 3, lambda _, h: h * 2, x)
    ),
    "two numbers of trips": twice(*(partial(lax.fori_loop, 0, n, lambda _, h: jnp.sin(h)) for n in (2, 3))),
    "max and min": twice(lambda x: x.max(0), lambda x: x.min(0)),
    "max and min of one map": twice(lambda x: lax.map(jnp.max, x), lambda x: lax.map(jnp.min, x)),
    "argmax and argmin": twice(lambda x: x + x.argmax(0), lambda x: x + x.argmin(0)),
    "pools": twice(pooled(-np.inf, lax.max), pooled(np.inf, lax.min)),
    "windows of pools": twice(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "SAME"),
        lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME"),
    ),
    "cumulative": twice(lambda x: jnp.cumsum(x, 0), lambda x: jnp.cumprod(x, 0)),
    "cumulative along": twice(lambda x: jnp.cumsum(x, 0), lambda x: lax.cumsum(x, 0, reverse=True)),
    "up and down": twice(ordered(False), ordered(True)),
    "scatters": twice(placed("set"), placed("add")),
    "branches": twice(branched(jnp.sin, jnp.cos), branched(jnp.sin, jnp.tanh)),
    "order of branches": twice(branched(jnp.sin, jnp.cos), branched(jnp.cos, jnp.sin)),
    "results of a conditional": both(lambda x: lax.cond(x.sum() > 0, lambda x: (x, x * 2), lambda x: (x * 3, x), x)),
    "convolutions": twice(convolved(("NWC", "WIO", "NWC")), convolved(("NWC", "WOI", "NWC"))),
    "complex factors": twice(to_complex(1 + 2j), to_complex(1 - 2j)),
    "keys of random bits": twice(
        *(lambda x, key=key: x * jax.random.uniform(jax.random.key(key, impl="rbg"), x.shape) for key in (0, 1))
    ),
    "custom derivatives": twice(tripled, lambda x: lax.fori_loop(0, 3, lambda _, h: jnp.sin(h), x)),
    "checkpointed layers": lambda w, x: tuple(
        jax.checkpoint(lambda h, scale: jnp.sin(mark(scaled(h, scale))))(x @ w, scale) for scale in (1.0, 3.0)
    ),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_is_not_equal_is_not_taken_for_equal(name: str) -> None:
    check_pair(UNEQUAL[name])


def test_random_numbers_of_the_device_are_drawn_twice() -> None:
    """`rng_uniform` of equal arguments makes other numbers each time: the marks are two stages, not one."""
    layer = jax.jit(lambda x: mark(x * lax.rng_uniform(0.0, 1.0, x.shape)))

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"] @ params[0]
        return jnp.sum((layer(x) - layer(x)) ** 2)

    step = partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2))
    _, losses = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))(weights(1), batch(2))
    assert np.all(np.asarray(losses) > 0)


def scan_of_invariants(w: jax.Array, x: jax.Array) -> jax.Array:
    """JAX computes `2 * w` in front of the loop of the backward, and in each trip of that of the forward."""
    return lax.scan(lambda h, scale: (jnp.tanh(h @ (w * 2) * scale), None), x, jnp.arange(1.0, 3.0))[0]


def scan_of_scans(w: jax.Array, x: jax.Array) -> jax.Array:
    def outer(h: jax.Array, add: jax.Array) -> Any:
        h = lax.scan(lambda h, scale: (jnp.tanh(h @ w * scale + add), None), h, jnp.arange(1.0, 3.0))[0]
        return jnp.sin(h), h.sum()

    return lax.scan(outer, x, jnp.arange(1.0, 3.0))[0]


def two_carries(w: jax.Array, x: jax.Array) -> jax.Array:
    def body(carry: Any, scale: jax.Array) -> Any:
        a, b = carry
        return (jnp.tanh(b @ w * scale), jnp.sin(a @ w)), (a * b).sum()

    (a, b), sums = lax.scan(body, (x, x + 1), jnp.arange(1.0, 3.0))
    return a * b + sums.sum()


def branch_in_a_scan(w: jax.Array, x: jax.Array) -> jax.Array:
    def body(h: jax.Array, least: jax.Array) -> Any:
        return lax.cond(h.sum() > least, lambda h: jnp.tanh(h @ w), lambda h: jnp.sin(h) * least, h), None

    return lax.scan(body, x, jnp.arange(1.0, 3.0))[0]


def told(w: jax.Array, x: jax.Array) -> jax.Array:
    def body(h: jax.Array, scale: jax.Array) -> Any:
        jax.debug.callback(lambda _: None, h.sum())
        return jnp.tanh(h @ w * scale), None

    return lax.scan(body, x, jnp.arange(1.0, 3.0))[0]


def looked_up(w: jax.Array, x: jax.Array) -> jax.Array:
    return of_host(x @ w)[1] * (x @ w)


EQUAL: list[Any] = [
    scan_of_invariants,
    scan_of_scans,
    two_carries,
    branch_in_a_scan,
    told,
    looked_up,
    lambda w, x: jnp.sort(x @ w, axis=0),  # the gradient sorts positions too
    lambda w, x: jnp.cumprod(jnp.tanh(x @ w) + 1, axis=0),
    lambda w, x: jnp.abs((x @ w) * (1 + 2j)),
    lambda w, x: jnp.zeros((5, x.shape[1])).at[jnp.array([0, 2, 2, 4])].add(x @ w)[:4],
    lambda w, x: jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), x @ w, 0),
    lambda w, x: jax.checkpoint(lambda x: jnp.tanh(x @ w) @ w)(x),
]


@pytest.mark.parametrize("number", range(len(EQUAL)))
def test_what_is_computed_again_is_one_mark(number: int) -> None:
    check_again(EQUAL[number])


@pytest.mark.parametrize(
    "wrap",
    [
        functools.partial(jax.checkpoint, prevent_cse=False),
        lambda loss: jax.checkpoint(jax.checkpoint(loss)),
        lambda loss: jax.checkpoint(jax.jit(loss)),
        jax.jit,
    ],
)
def test_whatever_is_around_the_model(wrap: Any) -> None:
    check_again(scan_of_invariants, wrap)
