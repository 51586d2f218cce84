"""Generated stages, most of which scan over their layers."""

# pyright: reportUnknownLambdaType=false

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

LAYERS = 2


def key(number: jax.Array) -> jax.Array:
    """A key of each layer."""
    return jax.random.fold_in(jax.random.key(1), number.astype(jnp.int32))


@jax.custom_vjp
def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    """A product, with a gradient of its own that reads what nothing else does."""
    return x * scale


def scaled_backward(kept: Any, gradient: jax.Array) -> Any:
    x, scale, sine = kept
    return gradient * scale * (1 + 0 * sine), (gradient * x).sum(axis=0)


scaled.defvjp(lambda x, scale: (x * scale, (x, scale, jnp.sin(x))), scaled_backward)


def in_chunks(x: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    """A loop over the rows of each layer, which also reads what they have in common."""
    mean = jnp.tanh(x.mean(axis=0) * (1 + i))

    def chunk(total: jax.Array, row: jax.Array) -> Any:
        row = jax.nn.gelu(row @ w["up"]) * jnp.cos(mean)
        return 0.5 * (total + row), (1 - jnp.tanh(row) ** 2) * total

    total, rows = jax.lax.scan(chunk, mean, x, reverse=True)
    return x + 0.1 * (rows + total)


OPERATIONS: dict[str, Callable[[jax.Array, Any, jax.Array], jax.Array]] = {
    "product": lambda x, w, i: x @ w["up"],
    "residual": lambda x, w, i: x + jnp.tanh(x @ w["down"]),
    "gelu": lambda x, w, i: jax.nn.gelu(x + w["bias"]),
    "norm": lambda x, w, i: jax.nn.standardize(x) * w["scale"] + w["shift"],
    "count": lambda x, w, i: x * (1 + i),
    "dropout": lambda x, w, i: jnp.where(jax.random.bernoulli(key(i), 0.9, x.shape), x, 0),
    "attention": lambda x, w, i: jax.nn.softmax(x @ x.T) @ x,
    "square": lambda x, w, i: x - 0.1 * x * x,
    "checkpoint": lambda x, w, i: jax.checkpoint(lambda x: jnp.sin(x @ w["out"]))(x),
    "branch": lambda x, w, i: jax.lax.cond(i > 0, lambda x: jnp.tanh(x @ w["out"]), jnp.cos, x),
    "until": lambda x, w, i: (
        x + jax.lax.while_loop(lambda y: y[0, 0] < i, lambda y: y + 0.5, 0 * jax.lax.stop_gradient(x))
    ),
    "narrow": lambda x, w, i: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32) - x,
    "chunks": lambda x, w, i: in_chunks(x, w, i),
    "rule": lambda x, w, i: scaled(x, w["scale"]),
}


def stage_of(draw: random.Random) -> tuple[tuple[str, ...], Callable[[jax.Array, Any], jax.Array]]:
    """A scan, or its layers one by one, with a loop in each layer at times; and the names of its operations."""
    names = tuple(draw.choices(list(OPERATIONS), k=draw.randint(2, 5)))
    scans, reverse, stacks, inner = (draw.random() < share for share in (0.85, 0.3, 0.3, 0.2))

    def layer(x: jax.Array, each: Any) -> Any:
        w, i = each
        for name in names:
            x = OPERATIONS[name](x, w, i)
        if inner:
            x = jax.lax.scan(lambda x, b: (jnp.sin(x + b), None), x, w["up"][:2])[0]
        return x, jnp.cos(x) if stacks else None

    def stage(x: jax.Array, w: Any) -> jax.Array:
        numbers = jnp.arange(LAYERS, dtype=jnp.float32)
        if scans:
            x, rows = jax.lax.scan(layer, x, (w, numbers), reverse=reverse)
            return x + rows.sum(axis=0) if stacks else x
        for number in range(LAYERS):
            x = layer(x, ({name: leaf[number] for name, leaf in w.items()}, numbers[number]))[0]
        return x

    return names, stage
