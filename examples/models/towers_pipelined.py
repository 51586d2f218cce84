"""Trains the encoders of towers.py as a pipeline: four stages of one layer, two for each encoder.

    JAX_NUM_CPU_DEVICES=4 python examples/models/towers_pipelined.py

A pair is told from the other pairs of its group. docs/models.md shows how it differs from towers.py.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpp

WIDTH, PIXELS, VOCABULARY, LENGTH, GROUPS, PAIRS = 32, 64, 64, 8, 4, 16
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def init(seed):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.normal(size=shape, scale=shape[-2] ** -0.5).astype(np.float32)

    return {
        "pixels": normal(PIXELS, WIDTH),
        "words": normal(VOCABULARY, WIDTH),
        "pictures": normal(2, WIDTH, WIDTH),
        "texts": normal(2, WIDTH, WIDTH),
        "temperature": np.float32(1),
    }


def encoded(layers, x):
    for w in layers:
        x = jaxpp.mark_stage_end(x + jnp.tanh(x @ w))
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def loss(params, pairs):
    pictures = encoded(params["pictures"], pairs["pictures"] @ params["pixels"])
    texts = encoded(params["texts"], params["words"][pairs["texts"]].mean(1))
    scores = jnp.exp(params["temperature"]) * pictures @ texts.T
    right = jnp.arange(len(scores))
    both = (optax.softmax_cross_entropy_with_integer_labels(each, right) for each in (scores, scores.T))
    return jnp.mean(sum(both)) / 2


def train_step(state, groups):
    params, moments = state
    gradient = partial(jax.value_and_grad(loss), params)
    mean_loss, gradients = jaxpp.treduce(gradient, groups, "1f1b", operation=jaxpp.Mean)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), mean_loss


def pairs(seed):
    """Returns texts, and pictures that are made from their words, in groups."""
    random = np.random.default_rng(seed)
    texts = random.integers(VOCABULARY, size=(GROUPS, PAIRS, LENGTH), dtype=np.int32)
    looks = np.random.default_rng(0).normal(size=(VOCABULARY, PIXELS)).astype(np.float32)
    return {"pictures": looks[texts].mean(2), "texts": texts}


def train(steps):
    """Returns the losses, and the parameters."""
    mesh = jaxpp.MpmdMesh.make(mpmd=4)
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, donate_argnums=0)
    params, losses = init(0), []
    state = params, OPTIMIZER.init(params)
    for number in range(steps):
        state, mean_loss = step(state, pairs(number))
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
