"""A small GPT with a mark after each block, and its training step: losses, gradients and an accuracy."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpp.api as jaxpp

WIDTH, HEADS, VOCABULARY, LENGTH = 8, 2, 16, 6
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def parameters(stages: int) -> dict[str, Any]:
    """One block per stage, an embedding of tokens and one of positions, and a head."""

    def normal(seed: int, *shape: int) -> jax.Array:
        return jnp.array(_normal(seed, shape))

    return {
        "tokens": normal(0, VOCABULARY, WIDTH),
        "positions": normal(1, LENGTH, WIDTH),
        "blocks": [
            {
                "qkv": normal(10 * stage + 2, WIDTH, 3 * WIDTH),
                "out": normal(10 * stage + 3, WIDTH, WIDTH),
                "up": normal(10 * stage + 4, WIDTH, 2 * WIDTH),
                "down": normal(10 * stage + 5, 2 * WIDTH, WIDTH),
            }
            for stage in range(stages)
        ],
        "head": normal(3, WIDTH, VOCABULARY),
    }


@cache
def _normal(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(jax.random.normal(jax.random.key(seed), shape) * shape[-2] ** -0.5)


def state(stages: int) -> tuple[Any, Any]:
    """The parameters, and the optimizer's moments."""
    made = parameters(stages)
    return made, OPTIMIZER.init(made)


def batch(microbatches: int) -> dict[str, np.ndarray]:
    """Tokens and those that follow, two sequences per microbatch."""
    text = np.random.default_rng(0).integers(0, VOCABULARY, (microbatches, 2, LENGTH + 1)).astype(np.int32)
    return {"inputs": text[..., :-1], "targets": text[..., 1:]}


def loss(weights: Any, microbatch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(mean cross-entropy, the number of right guesses and the largest logit)."""
    x = weights["tokens"][microbatch["inputs"]] + weights["positions"]
    for block in weights["blocks"]:
        x = x + _attention(block, _norm(x))
        x = jaxpp.mark_stage_end(x + jnp.tanh(_norm(x) @ block["up"]) @ block["down"])
    logits = _norm(x) @ (weights["head"] if "head" in weights else weights["tokens"].T)
    targets = microbatch["targets"]
    return cross_entropy(logits, targets), {"right": (logits.argmax(-1) == targets).sum(), "largest": logits.max()}


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Its mean, of small logits, in fewer operations than by `jax.nn`, as many tests trace and compile them."""
    chosen = targets[..., None] == jnp.arange(logits.shape[-1])
    return (jnp.log(jnp.exp(logits).sum(-1)) - jnp.where(chosen, logits, 0.0).sum(-1)).mean()


def softmax(scores: jax.Array) -> jax.Array:
    """Of small numbers, or of what is -inf."""
    likely = jnp.exp(scores)
    return likely / likely.sum(-1, keepdims=True)


def _norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _attention(weights: Any, x: jax.Array) -> jax.Array:
    q, k, v = jnp.split((x @ weights["qkv"]).reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", softmax(scores), v)
    return mixed.reshape(x.shape) @ weights["out"]


def train_step(state: Any, batch: Any, *, schedule: Any = None) -> Any:
    """(new state, losses, gradients, what else the loss returns)."""
    weights, moments = state
    (losses, extra), gradients = jaxpp.treduce(
        partial(jax.value_and_grad(loss, has_aux=True), weights),
        batch,
        schedule=schedule,
        operation=((jaxpp.Concat(), {"right": jaxpp.Add, "largest": jaxpp.Max}), jaxpp.Add),
    )
    updates, moments = OPTIMIZER.update(gradients, moments, weights)
    return (optax.apply_updates(weights, updates), moments), losses, gradients, extra


PLAIN = jax.jit(train_step)
"""What a step with any schedule is compared with: one for all tests, so that it is compiled once per model."""
