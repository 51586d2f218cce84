"""Trains the model of decoder.py as a pipeline: two stages of two layers, each on two by two devices.

    JAX_NUM_CPU_DEVICES=8 python examples/models/decoder_pipelined.py

docs/models.md shows how it differs from decoder.py.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.ad_checkpoint import checkpoint_name

import jaxpp

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, LENGTH, ROWS = 4, 32, 4, 64, 64, 16, 16
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
RULES = {"batch": "data", "heads": "model", "hidden": "model", "vocabulary": "model"}  # the other axes are whole
AXES = {
    "table": ("vocabulary", "width"),
    "layers": {
        "norms": ("layers", "two", "width"),
        "attention": ("layers", "width", "three", "heads", "size"),
        "out": ("layers", "heads", "size", "width"),
        "up": ("layers", "width", "two", "hidden"),
        "down": ("layers", "hidden", "width"),
    },
}
LENGTHS = dict(layers=LAYERS, width=WIDTH, heads=HEADS, size=WIDTH // HEADS, hidden=HIDDEN, vocabulary=VOCABULARY)
LENGTHS |= {"two": 2, "three": 3}


def of_axes(function):
    return jax.tree.map(function, AXES, is_leaf=lambda node: isinstance(node, tuple))


def spec(axes):
    return jax.P(*map(RULES.get, axes))


def init(seed):
    random = np.random.default_rng(seed)
    shapes = of_axes(lambda axes: tuple(LENGTHS[axis] for axis in axes))
    params = jax.tree.map(
        lambda shape: random.normal(size=shape, scale=WIDTH**-0.5).astype(np.float32),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    params["layers"]["norms"] = np.ones_like(params["layers"]["norms"])
    return params


def constrained(x, *axes):
    if jax.sharding.get_abstract_mesh().empty:  # on one device
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes))


def normalized(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale


def layer(x, w):
    x = constrained(x, "batch", "length", "width")
    query, key, value = jnp.einsum("btw,wnhs->nbths", normalized(x, w["norms"][0]), w["attention"])
    mixed = constrained(
        jax.nn.dot_product_attention(query, key, value, is_causal=True), "batch", "length", "heads", "size"
    )
    x = x + jnp.einsum("bths,hsw->btw", checkpoint_name(mixed, "mixed"), w["out"])
    gate, up = jnp.einsum("btw,wnh->nbth", normalized(x, w["norms"][1]), w["up"])
    hidden = constrained(jax.nn.silu(gate) * up, "batch", "length", "hidden")
    return jaxpp.mark_stage_end(x + hidden @ w["down"]), None


def loss(params, tokens):
    kept = jax.checkpoint_policies.save_only_these_names("mixed")
    x, _ = jax.lax.scan(jax.checkpoint(layer, policy=kept), params["table"][tokens[:, :-1]], params["layers"])
    scores = constrained(x @ params["table"].T, "batch", "length", "vocabulary")
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:]))


def train_step(state, tokens):
    params, moments = state
    gradient = partial(jax.value_and_grad(loss), params)
    mean_loss, gradients = jaxpp.treduce(gradient, tokens, "1f1b", operation=jaxpp.Mean, microbatches=4)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), mean_loss


def train(steps):
    """Returns the losses, and the parameters."""
    mesh = jaxpp.MpmdMesh.make(mpmd=2, data=2, model=2)
    options = {"cuts": [2, 2], "in_shardings": ((of_axes(spec), None), spec(["batch"]))}
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, donate_argnums=0, **options)
    params, losses = init(0), []
    state = params, OPTIMIZER.init(params)
    for number in range(steps):
        tokens = np.random.default_rng(number).integers(VOCABULARY, size=(ROWS, 1)) + np.arange(LENGTH + 1)
        state, mean_loss = step(state, tokens % VOCABULARY)
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
