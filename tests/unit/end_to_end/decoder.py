"""A small decoder whose loss scans over slices of the sequence, with keys and values that go from slice to slice."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from unit.end_to_end.transformer import cross_entropy, softmax

import jaxpp.api as jaxpp
from jaxpp.models import scan_slices, slice_attention

WIDTH, TOKENS, LENGTH = 8, 11, 12
SLICES: dict[str, int] = {"seq1f1b": 1, "seq1f1b-i": 2, "seq1f1b-zb": 1}
"""The schedules with slices, and how many stages a mesh holds."""


def parameters(stages: int) -> dict[str, Any]:
    """One block per stage, the embedding, the head."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / shape[-2] ** 0.5).astype(np.float32)

    names = "query", "key", "value", "up"
    blocks = [{name: normal(WIDTH, WIDTH) for name in names} for _ in range(stages)]
    return {"tokens": normal(TOKENS, WIDTH), "head": normal(WIDTH, TOKENS), "blocks": blocks}


def batch(microbatches: int) -> np.ndarray:
    """Tokens, (microbatches, sequences, length + 1)."""
    return np.random.default_rng(1).integers(0, TOKENS, (microbatches, 2, LENGTH + 1)).astype(np.int32)


def block(weights: Any, x: jax.Array, cache: tuple[jax.Array, jax.Array], start: jax.Array) -> tuple[jax.Array, Any]:
    """Attention to all that came before, and a layer; the keys and values with those of `x`, from `start` on."""
    keys, values = (
        lax.dynamic_update_slice(old, x @ weights[name], (0, start, 0))
        for old, name in zip(cache, ("key", "value"), strict=True)
    )
    scores = jnp.einsum("btw,bsw->bts", x @ weights["query"], keys) / WIDTH**0.5
    seen = jnp.arange(keys.shape[1]) <= start + jnp.arange(x.shape[1])[:, None]
    mixed = jnp.einsum("bts,bsw->btw", softmax(jnp.where(seen, scores, -1e30)), values)
    x = x + mixed
    return x + jnp.tanh(x @ weights["up"]), (keys, values)


def attending(
    weights: Any, x: jax.Array, cache: Any, start: jax.Array, *, exchange: bool = True
) -> tuple[jax.Array, Any]:
    """The same block, with two heads, in `slice_attention`."""

    def heads(name: str) -> jax.Array:
        return (x @ weights[name]).reshape(*x.shape[:2], 2, -1)

    cache = tuple(
        lax.dynamic_update_slice_in_dim(old.reshape(*old.shape[:2], 2, -1), heads(name), start, 1).reshape(old.shape)
        for old, name in zip(cache, ("key", "value"), strict=True)
    )
    keys, values = (each.reshape(*each.shape[:2], 2, -1) for each in cache)
    mixed = slice_attention(heads("query"), keys, values, start, exchange=exchange)
    x = x + mixed.reshape(x.shape)
    return x + jnp.tanh(x @ weights["up"]), cache


def of_slice(
    params: Any,
    caches: Any,
    text: Any,
    start: jax.Array,
    *,
    last: bool = True,
    block: Callable[..., Any] = block,
) -> tuple[Any, jax.Array]:
    """The keys and values behind a slice, and its loss. last: whether the loss is marked."""
    inputs, targets = text
    x, new = params["tokens"][inputs], list[Any]()
    for stage, (weights, cache) in enumerate(zip(params["blocks"], caches, strict=True)):
        x, cache = block(weights, x, cache, start)
        new.append(cache)
        if stage < len(caches) - 1:
            x = jaxpp.mark_stage_end(x)
    loss = cross_entropy(x @ params["head"], targets)
    return new, jaxpp.mark_stage_end(loss) if last else loss


def empty(params: Any, sequences: int) -> Any:
    """The keys and values before the first slice."""
    zeros = jnp.zeros((sequences, LENGTH, WIDTH))
    return [(zeros, zeros) for _ in params["blocks"]]


def loss(params: Any, text: jax.Array, *, slices: int, one: Callable[..., Any] = of_slice) -> jax.Array:
    """The mean cross-entropy of the next tokens."""
    xs = text[:, :-1], text[:, 1:]
    _, losses = scan_slices(partial(one, params), empty(params, len(text)), xs, slices)
    return losses.mean()


def plain_scan(params: Any, text: jax.Array, *, slices: int) -> jax.Array:
    """The same, as `lax.scan` says it: the loss is a sum that the slices hand on, and so is the position."""
    part = LENGTH // slices

    def body(carry: Any, xs: Any) -> Any:
        total, start, caches = carry
        caches, loss = of_slice(params, caches, xs, start)
        return (total + loss, start + part, caches), None

    xs = tuple(jnp.swapaxes(each.reshape(-1, slices, part), 0, 1) for each in (text[:, :-1], text[:, 1:]))
    first = jnp.float32(0), jnp.int32(0), empty(params, len(text))
    return lax.scan(body, first, xs)[0][0] / slices


def train_step(
    params: Any, texts: jax.Array, *, schedule: Any = None, slices: int = 3, loss: Callable[..., Any] = loss
) -> Any:
    """(new parameters, the losses of the microbatches)."""
    losses, grads = jaxpp.treduce(
        partial(jax.value_and_grad(partial(loss, slices=slices)), params),
        texts,
        schedule=schedule,
        operation=(jaxpp.Concat(), jaxpp.Add),
    )
    return jax.tree.map(_descend, params, grads), losses


def _descend(weight: jax.Array, gradient: jax.Array) -> jax.Array:
    return weight - 0.1 * gradient
