"""What acts besides making its results runs as often as under plain `jax.jit`, wherever it stands in a stage."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from unit.end_to_end.compare import lowered, make_mesh

import jaxpp
from jaxpp import schedules

SEEN: list[float] = []


def note(value: Any) -> None:
    SEEN.append(float(value))


def debug(h: jax.Array) -> jax.Array:
    jax.debug.callback(note, h[0, 0])
    return h


def in_and_out(h: jax.Array) -> jax.Array:
    io_callback(note, None, lax.stop_gradient(h)[0, 0])
    return h


@jax.custom_vjp
def backwards(h: jax.Array) -> jax.Array:
    return h


backwards.defvjp(lambda h: (h, None), lambda _, gradient: (debug(gradient),))


def once(h: jax.Array, w: jax.Array, act: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return act(jnp.tanh(h @ w))


def inside(h: jax.Array, w: jax.Array, act: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return lax.scan(lambda h, _: (once(h, w, act), None), h, None, length=2)[0]


def either(h: jax.Array, w: jax.Array, act: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return lax.cond(jnp.sum(h) > 0, lambda h: once(h, w, act), lambda h: jnp.sin(h @ w), h)


def again(h: jax.Array, w: jax.Array, act: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return jax.checkpoint(once, static_argnums=2)(h, w, act)


def counted(step: Callable[..., Any], *arguments: Any) -> list[float]:
    SEEN.clear()
    jax.block_until_ready(step(*arguments))
    jax.effects_barrier()
    return sorted(SEEN)


CASES = [
    (once, debug, "1f1b"),
    (once, debug, "zb-h1"),
    (once, backwards, "zb-h1"),
    (inside, debug, "dualpipe"),
    (either, in_and_out, "1f1b"),
    (either, backwards, "zb-h1"),
    (again, debug, "zb-h1"),
]


@pytest.mark.parametrize("recompute", [None, "inputs", "selective"])
@pytest.mark.parametrize(("layer", "act", "name"), CASES)
def test_callbacks_in_scans_over_layers(
    layer: Callable[..., jax.Array], act: Callable[[jax.Array], jax.Array], name: str, recompute: Any
) -> None:
    plan = schedules.make(name, meshes=2, microbatches=4)

    def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda h, w: (layer(h, w, act), None), x, w)[0]

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(scanned(jaxpp.mark_stage_end(scanned(x, w[0])), w[1]) ** 2)

    def step(w: jax.Array, batch: jax.Array) -> Any:
        return jaxpp.treduce(
            lambda x: jax.value_and_grad(loss)(w, x), batch, schedule=plan, operation=(jaxpp.Add, jaxpp.Add)
        )

    random = np.random.default_rng(0)
    w, batch = (jnp.asarray(random.normal(size=size), jnp.float32) for size in ((2, 3, 4, 4), (4, 5, 4)))
    expected = counted(jax.jit(step), w, batch)
    assert expected
    found = counted(lowered(step, (w, batch), make_mesh(2), recompute=recompute).compile(), w, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
