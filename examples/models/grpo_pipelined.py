"""Trains the model of grpo.py as a pipeline: both models on two stages of two devices, in turns.

    JAX_NUM_CPU_DEVICES=4 python examples/models/grpo_pipelined.py

docs/two-models.md shows how it differs from grpo.py.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp

LAYERS, WIDTH, VOCABULARY, LENGTH, QUESTIONS, SAMPLES = 2, 32, 64, 12, 4, 8


def init(seed):
    random = np.random.default_rng(seed)
    shapes = {"table": (VOCABULARY, WIDTH), "layers": (LAYERS, WIDTH, WIDTH)}
    return {name: random.normal(size=shape, scale=WIDTH**-0.5).astype(np.float32) for name, shape in shapes.items()}


def layer(x, w):
    past = jnp.cumsum(x, axis=1) / jnp.arange(1, LENGTH)[:, None]  # a stand-in for attention
    return jaxpp.mark_stage_end(x + jnp.tanh(past @ w)), None


def log_probabilities(params, tokens):
    """The log-probability of each token after the first one, given the tokens before it."""
    x, _ = jax.lax.scan(layer, params["table"][tokens[:, :-1]], params["layers"])
    scores = jax.nn.log_softmax(x @ params["table"].T)
    return jnp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]


def score(params, tokens):
    of_rows = partial(log_probabilities, params)
    return jaxpp.treduce(of_rows, tokens, "gpipe", operation=jaxpp.Concat(1), microbatches=4).reshape(len(tokens), -1)


def loss(params, rows):
    """The loss of one update per batch of samples, and the divergence from the reference."""
    found = log_probabilities(params, rows["tokens"])
    ratio = jnp.exp(found - jax.lax.stop_gradient(found))
    away = rows["reference"] - found
    penalty = jnp.exp(away) - away - 1  # an estimate of the divergence that is never below zero
    return jnp.mean(0.04 * penalty - ratio * rows["advantage"][:, None]), jnp.mean(penalty)


def train_step(params, rows):
    gradient = partial(jax.value_and_grad(loss, has_aux=True), params)
    (_, divergence), gradients = jaxpp.treduce(gradient, rows, "1f1b", operation=jaxpp.Mean, microbatches=4)
    return jax.tree.map(lambda w, g: w - 5 * g, params, gradients), divergence


def train(steps):
    """Returns the divergences, and the parameters."""
    mesh = jaxpp.MpmdMesh.make(mpmd=2, data=2)
    compiled = partial(jaxpp.mpmd_jit_with_loop, mpmd_mesh=mesh, in_shardings=(jax.P(), jax.P("data")))
    scores, step = compiled(score), compiled(train_step)
    reference = params = init(0)
    divergences = []
    for number in range(steps):
        tokens = np.random.default_rng(number).integers(VOCABULARY, size=(QUESTIONS, SAMPLES, LENGTH), dtype=np.int32)
        rewards = np.mean(tokens % 2, -1, dtype=np.float32)  # of random samples; docs/inference.md draws them
        advantage = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-6)
        rows = {"tokens": tokens.reshape(-1, LENGTH), "advantage": advantage.reshape(-1)}
        params, divergence = step(params, {**rows, "reference": scores(reference, rows["tokens"])})
        divergences.append(float(divergence))
        print(f"divergence from the reference {divergences[-1]:.4f}")
    return divergences, params


if __name__ == "__main__":
    train(5)
