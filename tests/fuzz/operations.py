"""Generated stages: operations by chance, of one layer each, most of which a scan runs over the layers."""

# pyright: reportUnknownLambdaType=false

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LAYERS = 2

Operation = Callable[[jax.Array, Any, jax.Array], jax.Array]
"""Of an input (rows, width), the weights of a layer, and the layer's index as a float."""


def key(number: jax.Array) -> jax.Array:
    """Returns a key of each layer."""
    return jax.random.fold_in(jax.random.key(1), number.astype(jnp.int32))


@jax.custom_vjp
def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns a product, with a gradient of its own that reads what nothing else does."""
    return x * scale


def scaled_backward(kept: Any, gradient: jax.Array) -> Any:
    x, scale, sine = kept
    return gradient * scale * (1 + 0 * sine), (gradient * x).sum(axis=0)


scaled.defvjp(lambda x, scale: (x * scale, (x, scale, jnp.sin(x))), scaled_backward)


@jax.custom_jvp
def straight(x: jax.Array) -> jax.Array:
    """Returns rounded values, whose gradient is that of the values themselves."""
    return jnp.round(4 * x) / 4


straight.defjvps(lambda tangent, result, x: tangent)


def in_chunks(x: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    """Loops over the rows of each layer, and also reads what they have in common."""
    mean = jnp.tanh(x.mean(axis=0) * (1 + i))

    def chunk(total: jax.Array, row: jax.Array) -> Any:
        row = jax.nn.gelu(row @ w["up"]) * jnp.cos(mean)
        return 0.5 * (total + row), (1 - jnp.tanh(row) ** 2) * total

    total, rows = lax.scan(chunk, mean, x, reverse=True)
    return x + 0.1 * (rows + total)


def rotated(x: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    """Returns pairs of values as complex numbers, turned by a constant angle each and by one of the layer."""
    pairs = lax.complex(x[:, ::2], x[:, 1::2])
    turns = np.exp(1j * np.arange(pairs.size).reshape(pairs.shape)).astype(np.complex64)
    pairs *= turns * jnp.exp(1j * i).astype(jnp.complex64)
    return jnp.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def narrow_loop(x: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    """Counts in 8 bits, beyond half of their range."""
    rows = jnp.zeros((6, *x.shape[1:]), x.dtype)

    def body(count: Any) -> Any:
        number, place, rows = count
        return number + jnp.int8(50), place + 1, rows.at[place].set(jnp.sin(x[0] * (1 + place)))

    fixed = lax.while_loop(lambda count: count[0] < 120, body, (jnp.int8(-120), 0, rows))[2]
    return x + 0.1 * lax.stop_gradient(fixed).sum(axis=0)


def switched(x: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    """Chooses one of three ways by the data."""
    ways = [jnp.sin, lambda x: jnp.tanh(x @ w["out"]), lambda x: x * w["scale"]]
    return lax.switch(jnp.clip(jnp.int32(3 * jnp.abs(x[0, 0])), 0, 2), ways, x)


def pooled(x: jax.Array, way: Any, first: float, window: tuple[int, int]) -> jax.Array:
    """Returns what a window has of the columns: of rows that devices divide XLA's gradient is wrong."""
    return lax.reduce_window(x, first, way, window, (1, 1), "SAME")


OPERATIONS: dict[str, Operation] = {
    "product": lambda x, w, i: x @ w["up"],
    "residual": lambda x, w, i: x + jnp.tanh(x @ w["down"]),
    "gelu": lambda x, w, i: jax.nn.gelu(x + w["bias"]),
    "norm": lambda x, w, i: jax.nn.standardize(x) * w["scale"] + w["shift"],
    "count": lambda x, w, i: x * (1 + i),
    "dropout": lambda x, w, i: jnp.where(jax.random.bernoulli(key(i), 0.9, x.shape), x, 0),
    "attention": lambda x, w, i: jax.nn.softmax(x @ x.T) @ x,
    "square": lambda x, w, i: x - 0.1 * x * x,
    "checkpoint": lambda x, w, i: jax.checkpoint(lambda x: jnp.sin(x @ w["out"]))(x),
    "until": lambda x, w, i: x + lax.while_loop(lambda y: y[0, 0] < i, lambda y: y + 0.5, 0 * lax.stop_gradient(x)),
    "narrow": lambda x, w, i: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32) - x,
    "chunks": lambda x, w, i: in_chunks(x, w, i),
    "rule": lambda x, w, i: scaled(x, w["scale"]),
    "straight": lambda x, w, i: straight(x) + w["bias"],
}
"""Operations of most stages."""

CONDITIONALS: dict[str, Operation] = {
    "branch": lambda x, w, i: lax.cond(i > 0, lambda x: jnp.tanh(x @ w["out"]), jnp.cos, x),
    "by data": lambda x, w, i: lax.cond(x[0, 0] > 0, lambda x: x @ w["up"], lambda x: jnp.sin(x) * w["scale"], x),
    "switch": switched,
    "nested": lambda x, w, i: lax.cond(i > 0, lambda x: switched(x, w, i), lambda x: 0.5 * x, x),
    "platform": lambda x, w, i: lax.platform_dependent(x, cpu=lambda x: x @ w["out"], default=lambda x: 2 * x),
}

REGIONS: dict[str, Operation] = {
    "most": lambda x, w, i: pooled(x, lax.max, -jnp.inf, (1, 2)),
    "least": lambda x, w, i: pooled(x, lax.min, jnp.inf, (1, 3)),
    "window": lambda x, w, i: pooled(x, lax.add, 0.0, (1, 2)) * 0.5,
    "sort": lambda x, w, i: jnp.sort(x + w["bias"], axis=1),
    "turned": lambda x, w, i: -jnp.sort(-x, axis=0),
    "scatter": lambda x, w, i: x.at[jnp.array([0, 2, 0])].add(jnp.sin(x[:3]) * w["scale"]),
    "highest": lambda x, w, i: x.at[:, 1].max(x[:, 0] * 0.9),
    "sums": lambda x, w, i: 0.3 * jnp.cumsum(x, axis=1),
    "back": lambda x, w, i: 0.3 * lax.cumsum(x, axis=0, reverse=True),
    "products": lambda x, w, i: lax.associative_scan(jnp.multiply, jnp.cos(x), axis=1) + x,
    "first": lambda x, w, i: x + lax.top_k(x, 3)[0].sum(axis=1, keepdims=True) / 8,
    "gather": lambda x, w, i: x + 0.5 * jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1),
    "logs": lambda x, w, i: x - 0.2 * jax.nn.logsumexp(x, axis=1, keepdims=True),
}

TYPES: dict[str, Operation] = {
    "rotated": rotated,
    "spectrum": lambda x, w, i: x + 0.1 * jnp.abs(jnp.fft.fft(x + 0.1)).astype(jnp.float32),
    "constant": lambda x, w, i: x + 0.1 * jnp.abs((x + 2j) * (1.0 + 2.0j)),
    "half": lambda x, w, i: (x.astype(jnp.float16) @ w["up"].astype(jnp.float16)).astype(jnp.float32),
    "brain": lambda x, w, i: jnp.tanh((x.astype(jnp.bfloat16) @ w["up"].astype(jnp.bfloat16)).astype(jnp.float32)),
    "eight": lambda x, w, i: x + 0.1 * jnp.round(8 * x).astype(jnp.int8).astype(jnp.float32),
    "bits": lambda x, w, i: jnp.where(lax.bitcast_convert_type(x, jnp.int32) < 0, 0.5 * x, x),
    "unsigned": lambda x, w, i: x * (jnp.uint8(250) + jnp.arange(x.shape[1], dtype=jnp.uint8)).astype(jnp.float32) / 9,
    "narrow loop": narrow_loop,
}

SLOPES: dict[str, Operation] = {
    "slope": lambda x, w, i: x + 0.1 * jax.grad(lambda x: jnp.sum(jnp.sin(x @ w["up"]) ** 2))(x),
    "curve": lambda x, w, i: x + 0.1 * jax.jvp(jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 3)), (x,), (x,))[1],
    "tangent": lambda x, w, i: jax.jvp(lambda x: jnp.tanh(x @ w["out"]), (x,), (jnp.ones_like(x),))[1] + x,
    "pulled": lambda x, w, i: x + 0.1 * jax.vjp(lambda u: jnp.tanh(x @ u), w["down"])[1](x)[0][0],
}

KINDS = {
    "scans": OPERATIONS,
    "conditionals": CONDITIONALS,
    "regions": REGIONS,
    "types": TYPES,
    "slopes": SLOPES,
}
"""The families of operations."""


def stage_of(draw: random.Random, kind: str) -> tuple[list[str], Callable[[jax.Array, Any], jax.Array]]:
    """Returns a scan, or its layers one by one, with a loop in each layer at times; and the names of its operations."""
    names = draw.choices(list(OPERATIONS), k=draw.randint(1, 4))
    if kind != "scans":
        names.insert(draw.randrange(len(names) + 1), draw.choice(list(KINDS[kind])))
    scans, reverse, stacks, inner = (draw.random() < share for share in (0.7, 0.3, 0.3, 0.2))
    every = {name: each for operations in KINDS.values() for name, each in operations.items()}

    def layer(x: jax.Array, each: Any) -> Any:
        w, i = each
        for name in names:
            x = every[name](x, w, i)
        if inner:
            x = lax.scan(lambda x, b: (jnp.sin(x + b), None), x, w["up"][:2])[0]
        return x, jnp.cos(x) if stacks else None

    def stage(x: jax.Array, w: Any) -> jax.Array:
        numbers = jnp.arange(LAYERS, dtype=jnp.float32)
        if scans:
            x, rows = lax.scan(layer, x, (w, numbers), reverse=reverse)
            return x + rows.sum(axis=0) if stacks else x
        for number in range(LAYERS):
            x = layer(x, ({name: leaf[number] for name, leaf in w.items()}, numbers[number]))[0]
        return x

    return names, stage
