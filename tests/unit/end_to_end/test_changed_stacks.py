"""Stacked weights that are changed before the stages read their rows: normalised, tied, moved, mixed."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from unit.end_to_end.compare import weights
from unit.end_to_end.everywhere import check_loss, in_turn

import jaxpp.api as jaxpp

Change = Callable[[jax.Array], jax.Array]

PLANS = "interleaved-1f1b", "sharded", "zb-h1"

BY_ROWS: dict[str, Change] = {
    "weight normalisation": lambda w: w / jnp.linalg.norm(w, axis=(1, 2), keepdims=True),
    "standardisation": lambda w: (w - w.mean((1, 2), keepdims=True)) / w.std((1, 2), keepdims=True),
    "scaled by its sum": lambda w: w * jnp.sum(w, axis=(1, 2), keepdims=True),
    "softmax": lambda w: jax.nn.softmax(w, axis=-1),
    "minus its logsumexp": lambda w: w - jax.nn.logsumexp(w, axis=(1, 2), keepdims=True),
    "clipped by its norm": lambda w: w / jnp.maximum(1.0, jnp.sqrt(jnp.sum(w**2, axis=(1, 2), keepdims=True))),
    "spectral norm": lambda w: (
        w / jnp.linalg.norm(jnp.einsum("lij,lj->li", w, jnp.ones((4, 8))), axis=-1)[:, None, None]
    ),
    "a product of itself": lambda w: jnp.einsum("lij,ljk->lik", w, w),
    "mapped": jax.vmap(lambda row: row / jnp.sum(jnp.abs(row))),
    "scaled by layer": lambda w: w * jnp.arange(1.0, 5.0)[:, None, None],
    "half of them frozen": lambda w: w.at[:2].set(lax.stop_gradient(w[:2])),
    "one row scaled": lambda w: w.at[2].multiply(0.5),
    "one row more": lambda w: w.at[1].add(w[0]).at[1].add(w[0]),
    "two rows changed places": lambda w: w.at[jnp.array([1, 2])].set(w[jnp.array([2, 1])]),
    "rolled": lambda w: jnp.roll(w, 1, axis=0),
    "reversed": lambda w: w[::-1],
    "every second one first": lambda w: jnp.concatenate([w[::2], w[1::2]]),
}
"""What makes each row of some rows: every mesh has those that it needs, and no others."""

OF_ALL: dict[str, Change] = {
    "mixed": lambda w: jnp.einsum("kl,lij->kij", jnp.full((4, 4), 0.25), w),
    "softmax over layers": lambda w: jax.nn.softmax(w, axis=0),
    "divided by the norm of all": lambda w: w / jnp.linalg.norm(w),
    "summed up": lambda w: jnp.cumsum(w, axis=0),
    "sorted": lambda w: jnp.sort(w, axis=0),
    "divided by products with one vector": lambda w: w / jnp.linalg.norm(w @ jnp.ones(8), axis=-1)[:, None, None],
    "tied": lambda w: w.at[1].set(w[0] * 2).at[2].set(w[3]),
    "tied ends": lambda w: w.at[-1].set(w[0].T),
    "tied halves": lambda w: jnp.concatenate([w[:2], w[:2]]),
    "normalised again for the gradient": jax.checkpoint(lambda w: w / jnp.linalg.norm(w, axis=(1, 2), keepdims=True)),
}
"""What makes a row of several rows, reads some rows alone, or can't be followed row by row."""


def loss_of(change: Change, scans: bool, params: jax.Array, microbatch: Any) -> jax.Array:
    rows, x = change(params), microbatch["x"]
    if scans:
        x, _ = lax.scan(lambda x, w: (jaxpp.mark_stage_end(jnp.tanh(x @ w)), None), x, rows)
    else:
        for number in range(4):
            x = jaxpp.mark_stage_end(jnp.tanh(x @ rows[number]))
    return jnp.mean((x - microbatch["y"]) ** 2)


@pytest.mark.parametrize("scans", [False, True])
@pytest.mark.parametrize(("name", "plan"), in_turn(BY_ROWS, PLANS))
def test_each_row_by_itself(name: str, plan: str, scans: bool) -> None:
    new, _, _ = check_loss(partial(loss_of, BY_ROWS[name], scans), plan, jnp.stack(weights(4)))
    assert not new.sharding.is_fully_replicated


@pytest.mark.parametrize("scans", [False, True])
@pytest.mark.parametrize(("name", "plan"), in_turn(OF_ALL, PLANS))
def test_rows_of_several_rows(name: str, plan: str, scans: bool) -> None:
    check_loss(partial(loss_of, OF_ALL[name], scans), plan, jnp.stack(weights(4)))


def test_rows_and_factors_in_a_tree() -> None:
    """Low ranks, scales and shifts of each layer."""

    def change(p: Any) -> jax.Array:
        return (p["w"] + p["a"] @ p["b"]) * p["scale"][:, None, None] + p["shift"][:, None, None]

    key = iter(jax.random.split(jax.random.key(0), 4))
    shapes = {"a": (4, 8, 2), "b": (4, 2, 8), "scale": (4,), "shift": (4,)}
    params = {name: jax.random.normal(next(key), shape) for name, shape in shapes.items()} | {
        "w": jnp.stack(weights(4))
    }
    new, _, _ = check_loss(partial(loss_of, change, True), "zb-h1", params)
    assert not any(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(new))
