"""A decoder-only transformer in plain JAX: parameters are a dict, the model is a function of them.

The only thing here that knows of pipelines is `mark_stage_end`, and without `mpmd_jit_with_loop` it does nothing.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jaxpp

Parameters = dict[str, Any]
Cache = tuple[jax.Array, jax.Array]  # the keys and values of one block, each [sequences, length, heads, width / heads]

# Tensor parallelism is where four weights live; all that follows is the compiler's work. Attention is cut by heads, the
# MLP by hidden units. Leaves are found by name, in any pytree: so an optimizer's moments lie with their weights.
SPECS = {
    "qkv": PartitionSpec(None, None, "model"),
    "out": PartitionSpec("model"),
    "up": PartitionSpec(None, "model"),
    "down": PartitionSpec("model"),
}


@dataclass(frozen=True)
class Config:
    """The sizes of a model.

    Attributes:
        stages: pipeline stages; each holds `layers / stages` blocks. None: each block is marked, and what stands before
            and after them, to be shared out to stages afterwards.
        layers: blocks.
        width: size of an activation; the MLP is 4 times as wide.
        heads: attention heads of `width / heads` each.
        sequence: the longest sequence.
        dtype: what is computed with; parameters, norms and the loss stay float32.
        vocabulary: how many tokens there are; those of the text are bytes.
        slices: into how many the sequence is cut, for a schedule whose tasks are of slices.
        exchange: whether late slices lend a part of their attention to other meshes, for the schedule `slimpipe`.
        shards: into how many the vocabulary is cut, for a schedule that gives each mesh one; 0: the last stage has all.
    """

    stages: int | None
    layers: int
    width: int = 64
    heads: int = 4
    sequence: int = 64
    dtype: str = "float32"
    vocabulary: int = 256
    slices: int = 1
    shards: int = 0
    exchange: bool = False


def specs(tree: Any) -> Any:
    """A PartitionSpec for every leaf of a tree of weights, of their gradients, or of an optimizer's state."""

    def spec(path: tuple[Any, ...], _: Any) -> PartitionSpec:
        return SPECS.get(getattr(path[-1], "key", ""), PartitionSpec()) if path else PartitionSpec()

    return jax.tree_util.tree_map_with_path(spec, tree)


def init(config: Config, seed: int) -> Parameters:
    """Random float32 parameters: normal with variance 1 / fan-in, the outputs of blocks scaled down by their number."""
    random = np.random.default_rng(seed)
    width, heads, hidden = config.width, config.heads, 4 * config.width

    def normal(*shape: int, fan_in: int) -> np.ndarray:
        return (random.standard_normal(shape) * fan_in**-0.5).astype(np.float32)

    def norm() -> Parameters:
        return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

    def block_weights() -> Parameters:
        return {
            "attention_norm": norm(),
            "qkv": normal(width, 3, heads, width // heads, fan_in=width),
            "out": normal(heads, width // heads, width, fan_in=2 * config.layers * width),
            "mlp_norm": norm(),
            "up": normal(width, hidden, fan_in=width),
            "down": normal(hidden, width, fan_in=2 * config.layers * hidden),
        }

    return {
        "tokens": normal(config.vocabulary, width, fan_in=width),
        "positions": normal(config.sequence, width, fan_in=width),
        "blocks": [block_weights() for _ in range(config.layers)],
        "norm": norm(),
        "head": normal(width, config.vocabulary, fan_in=width).T.copy(),  # rows of tokens, for those who share them
    }


def loss(config: Config, parameters: Parameters, text: jax.Array) -> jax.Array:
    """The mean cross-entropy, in nats, of each next byte of `text`, int32 [sequences, length + 1]."""
    whole = text[:, :-1], text[:, 1:]
    if config.slices == 1:
        return _of_slice(config, parameters, [None] * config.layers, whole)[1]
    shape = len(text), whole[0].shape[1], config.heads, config.width // config.heads
    zeros = jnp.zeros(shape, config.dtype)
    caches = [(zeros, zeros)] * config.layers
    _, losses = jaxpp.models.scan_slices(partial(_of_slice, config, parameters), caches, whole, config.slices)
    return losses.mean()


def _of_slice(
    config: Config, parameters: Parameters, caches: Any, text: Any, start: jax.Array | None = None
) -> tuple[Any, jax.Array]:
    """The caches behind a slice of the sequence, and its loss; of the whole sequence where it starts nowhere.

    One mark per stage: after the last block of a stage, and for the last stage on the loss. Or one for each layer.
    """
    inputs, targets = text
    x, new = embed(config, parameters, inputs, start), list[Any]()
    per_stage = config.layers // config.stages if config.stages else 1
    for layer, (weights, cache) in enumerate(zip(parameters["blocks"], caches, strict=True)):
        if layer % per_stage == 0 and (layer or not config.stages):
            x = jaxpp.mark_stage_end(x)
        x, cache = _block(weights, x, cache, start, config.exchange)
        new.append(cache)
    if not config.stages:
        x = jaxpp.mark_stage_end(x)
    if config.shards:  # which ends the last stage of layers, and each shard
        hidden, head = _norm(parameters["norm"], x), parameters["head"].astype(x.dtype)
        return new, jaxpp.mark_stage_end(
            jnp.mean(jaxpp.models.vocabulary_cross_entropy(hidden, head, targets, shards=config.shards))
        )
    return new, jaxpp.mark_stage_end(cross_entropy(parameters, x, targets))


def embed(config: Config, parameters: Parameters, inputs: jax.Array, start: jax.Array | None = None) -> jax.Array:
    """What enters the first block, [sequences, length, width], of tokens [sequences, length] from `start` on."""
    positions, length = parameters["positions"], inputs.shape[1]
    here = positions[:length] if start is None else jax.lax.dynamic_slice_in_dim(positions, start, length)
    return (parameters["tokens"][inputs] + here).astype(config.dtype)


def block(weights: Parameters, x: jax.Array) -> jax.Array:
    """One block of the transformer on x [sequences, length, width]."""
    return _block(weights, x, None, None)[0]


def _block(
    weights: Parameters, x: jax.Array, cache: Cache | None, start: jax.Array | None, exchange: bool = False
) -> tuple[jax.Array, Cache | None]:
    """`block`; of a slice also the keys and values up to its end."""
    mixed, cache = _attention(weights, _norm(weights["attention_norm"], x), cache, start, exchange)
    x = x + mixed
    return x + _mlp(weights, _norm(weights["mlp_norm"], x)), cache


def cross_entropy(parameters: Parameters, x: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean over all tokens, in nats, of what the last block made."""
    logits = _norm(parameters["norm"], x) @ parameters["head"].T.astype(x.dtype)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1))


def _norm(weights: Parameters, x: jax.Array) -> jax.Array:
    """Layer normalisation, in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * weights["scale"] + weights["bias"]).astype(x.dtype)


def _attention(
    weights: Parameters, x: jax.Array, cache: Cache | None, start: jax.Array | None, exchange: bool
) -> tuple[jax.Array, Cache | None]:
    """Causal self-attention of x [sequences, length, width]; a slice also sees the cache, and writes its own rows."""
    q, k, v = jnp.einsum("btw,wnhd->nbthd", x, weights["qkv"].astype(x.dtype))
    if cache is not None and start is not None:
        cache = _written(cache[0], k, start), _written(cache[1], v, start)
        mixed = jaxpp.models.slice_attention(q, *cache, start, exchange=exchange)
    else:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
    return jnp.einsum("bqhd,hdw->bqw", mixed, weights["out"].astype(x.dtype)), cache


def _written(cache: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    """The cache with the rows of a slice, [sequences, length of the slice, heads, width / heads]."""
    return jax.lax.dynamic_update_slice_in_dim(cache, rows, start, axis=1)


def _mlp(weights: Parameters, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ weights["up"].astype(x.dtype)) @ weights["down"].astype(x.dtype)
