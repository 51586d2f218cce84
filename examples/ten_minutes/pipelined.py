"""Trains the model of single.py as a pipeline: four stages of one layer, each on two devices.

    python examples/ten_minutes/pipelined.py
    python examples/ten_minutes/pipelined.py --folder saved    # also writes a checkpoint and a trace

docs/ten-minutes.md shows how it differs from single.py.
"""

# A script without types, as a user writes it:
# pyright: basic

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jaxpp

LAYERS, WIDTH, HEADS, GROUPS, HIDDEN, VOCABULARY, LENGTH = 4, 64, 4, 2, 128, 128, 48
ROWS, STEPS, DROPPED = 32, 20, 0.1
DTYPE = jnp.bfloat16  # what is computed with; the parameters are float32
MEANS = (jaxpp.Mean, {"tokens": jaxpp.Count, "right": jaxpp.Mean})
TEXT = Path(__file__).parents[1] / "data" / "sonnets.txt"
OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0, 1e-2, 5, STEPS), weight_decay=0.1)
)


def init(seed):
    """Returns the parameters: the layers are stacked, and the embedding is the head too."""
    random, size = np.random.default_rng(seed), WIDTH // HEADS
    shapes = {
        "query": (LAYERS, WIDTH, HEADS, size),
        "key": (LAYERS, WIDTH, GROUPS, size),
        "value": (LAYERS, WIDTH, GROUPS, size),
        "out": (LAYERS, HEADS, size, WIDTH),
        "gate": (LAYERS, WIDTH, HIDDEN),
        "up": (LAYERS, WIDTH, HIDDEN),
        "down": (LAYERS, HIDDEN, WIDTH),
        "table": (VOCABULARY, WIDTH),
    }
    layers = {name: (random.normal(size=shape) / WIDTH**0.5).astype(np.float32) for name, shape in shapes.items()}
    table = layers.pop("table")
    layers |= {name: np.ones((LAYERS, WIDTH), np.float32) for name in ("before_attention", "before_mlp")}
    return {"table": table, "layers": layers, "norm": np.ones(WIDTH, np.float32)}


def normalized(x, scale):  # RMSNorm
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def rotated(x):  # RoPE
    size = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None, None] / 10_000 ** (jnp.arange(size) / size)
    one, other, cosine, sine = x[..., :size], x[..., size:], jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([one * cosine - other * sine, one * sine + other * cosine], -1).astype(x.dtype)


def attention(x, w):  # GQA: several queries share a key and a value
    query, key = (rotated(jnp.einsum("btw,whs->bths", x, w[name])) for name in ("query", "key"))
    value = jnp.einsum("btw,whs->bths", x, w["value"])
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return jnp.einsum("bths,hsw->btw", mixed, w["out"])


def mlp(x, w):  # SwiGLU
    return (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]


def dropout(keys, x):
    if keys is None:  # evaluation
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - DROPPED, x.shape[1:]))(keys)
    return jnp.where(kept, x / (1 - DROPPED), 0)


def layer(carry, w):
    x, keys = carry
    w = jax.tree.map(lambda leaf: leaf.astype(DTYPE), w)
    first = second = None
    if keys is not None:
        keys, first, second = jax.vmap(partial(jax.random.split, num=3), out_axes=1)(keys)
    x = x + dropout(first, attention(normalized(x, w["before_attention"]), w))
    x = x + dropout(second, mlp(normalized(x, w["before_mlp"]), w))
    return jaxpp.mark_stage_end((x, keys)), None


def loss(params, rows):
    """Returns the sum of the losses of the valid tokens, and counts."""
    inputs, targets = rows["tokens"][:, :-1], rows["tokens"][:, 1:]
    table = params["table"].astype(DTYPE)
    (x, _), _ = jax.lax.scan(jax.checkpoint(layer), (table[inputs], rows.get("keys")), params["layers"])
    scores = (normalized(x, params["norm"]).astype(DTYPE) @ table.T).astype(jnp.float32)
    valid = targets > 0  # lines are padded with zeros
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, targets)
    right = (scores.argmax(-1) == targets) & valid
    return jnp.sum(losses * valid), {"tokens": jnp.sum(valid), "right": jnp.sum(right)}


def train_step(state, rows):
    params, moments = state
    gradient = partial(jax.value_and_grad(loss, has_aux=True), params)
    (mean, counts), gradients = jaxpp.treduce(gradient, rows, "1f1b", operation=(MEANS, jaxpp.Mean), microbatches=8)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    metrics = {"loss": mean, "accuracy": counts["right"], "norm": optax.tree.norm(gradients)}
    return (optax.apply_updates(params, updates), moments), metrics


def evaluate(params, rows):
    return jaxpp.treduce(partial(loss, params), rows, "1f1b", operation=MEANS, microbatches=8)[0]


def lines(start):
    """Returns lines of the sonnets as bytes, padded with zeros."""
    texts = [line.encode()[: LENGTH + 1] for line in TEXT.read_text().splitlines() if line][start : start + ROWS]
    return np.array([list(text.ljust(LENGTH + 1, b"\0")) for text in texts], np.int32)


def train(folder=None):
    """Returns the losses of all steps, and that of held-out lines."""
    mesh = jaxpp.MpmdMesh.make(mpmd=4, data=2)
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, in_shardings=(P(), P("data")), donate_argnums=0)
    test = jaxpp.mpmd_jit_with_loop(evaluate, mesh, in_shardings=(P(), P("data")))
    params = init(0)
    state = params, OPTIMIZER.init(params)
    losses = []
    for number in range(STEPS):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), number), ROWS)  # each row draws its own masks
        state, metrics = step(state, {"tokens": lines(number * ROWS), "keys": keys})
        losses.append(float(metrics["loss"]))
        print(", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    held_out = float(test(state[0], {"tokens": lines(STEPS * ROWS)}))
    print(f"held out: loss {held_out:.3f}")
    if folder:
        jaxpp.checkpoint.save(folder, STEPS, state)
        with jax.profiler.trace(str(folder)):
            jax.block_until_ready(step(state, {"tokens": lines(0), "keys": keys}))
    return [*losses, held_out]


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # virtual devices; leave these two lines out where there are real ones
    jax.config.update("jax_num_cpu_devices", 8)
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    train(parser.parse_args().folder)
