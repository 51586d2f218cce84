"""Trains the model of vision.py as a pipeline: two stages of two blocks, each on two devices.

    JAX_NUM_CPU_DEVICES=4 python examples/models/vision_pipelined.py

docs/models.md shows how it differs from vision.py.
"""

# A script without types, as a user writes it:
# pyright: basic

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpp

LAYERS, WIDTH, HEADS, SIDE, PATCH, CLASSES, ROWS = 4, 32, 4, 16, 4, 4, 32
PATCHES = (SIDE // PATCH) ** 2
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))


def init(seed):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.normal(size=shape, scale=WIDTH**-0.5).astype(np.float32)

    def block():
        return {
            "attention": normal(WIDTH, 3, HEADS, WIDTH // HEADS),
            "out": normal(HEADS, WIDTH // HEADS, WIDTH),
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
        }

    return {
        "patches": normal(PATCH * PATCH, WIDTH),
        "class": normal(WIDTH),
        "places": normal(1 + PATCHES, WIDTH),
        "blocks": [block() for _ in range(LAYERS)],
        "head": normal(WIDTH, CLASSES),
    }


def block(x, w):
    query, key, value = jnp.einsum("btw,wnhs->nbths", jax.nn.standardize(x), w["attention"])
    x = x + jnp.einsum("bths,hsw->btw", jax.nn.dot_product_attention(query, key, value), w["out"])
    return x + jax.nn.gelu(jax.nn.standardize(x) @ w["up"]) @ w["down"]


def loss(params, rows):
    """Returns the mean loss of the pictures, and the share of those whose class is right."""
    patches = rows["pictures"].reshape(-1, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
    patches = patches.swapaxes(2, 3).reshape(-1, PATCHES, PATCH * PATCH) @ params["patches"]
    first = jnp.broadcast_to(params["class"], (len(patches), 1, WIDTH))
    x = jnp.concatenate([first, patches], 1) + params["places"]
    for w in params["blocks"]:
        x = jaxpp.mark_stage_end(block(x, w))
    scores = jax.nn.standardize(x[:, 0]) @ params["head"]
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, rows["classes"])
    return jnp.mean(losses), jnp.mean(scores.argmax(-1) == rows["classes"])


def train_step(state, rows):
    params, moments = state
    gradient = partial(jax.value_and_grad(loss, has_aux=True), params)
    (mean_loss, right), gradients = jaxpp.treduce(gradient, rows, "1f1b", operation=jaxpp.Mean, microbatches=4)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), mean_loss, right


def pictures(seed):
    """Returns pictures with stripes: their class is the direction and the width of these."""
    random = np.random.default_rng(seed)
    classes = random.integers(CLASSES, size=ROWS)
    places = np.arange(SIDE) + random.integers(SIDE, size=(ROWS, 1))
    stripes = np.sin(places * (1 + classes[:, None] // 2))[:, None] + 0.1 * random.normal(size=(ROWS, SIDE, SIDE))
    turned = np.where(classes[:, None, None] % 2, stripes.swapaxes(1, 2), stripes)
    return {"pictures": turned.astype(np.float32), "classes": classes.astype(np.int32)}


def train(steps):
    """Returns the losses, and the parameters."""
    mesh = jaxpp.MpmdMesh.make(mpmd=2, data=2)
    options = {"cuts": [2, 2], "in_shardings": (jax.P(), jax.P("data"))}
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, donate_argnums=0, **options)
    params, losses = init(0), []
    state = params, OPTIMIZER.init(params)
    for number in range(steps):
        state, mean_loss, right = step(state, pictures(number))
        losses.append(float(mean_loss))
        print(f"loss {losses[-1]:.4f}, {right:.0%} right")
    return losses, state[0]


if __name__ == "__main__":
    train(20)
