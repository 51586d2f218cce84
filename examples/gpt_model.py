"""A decoder-only transformer in plain JAX: parameters are a dict, the model is a function of them.

The only thing here that knows of pipelines is `mark_stage_end`, and without `mpmd_jit_with_loop` it does nothing.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jaxpp

Parameters = dict[str, Any]

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
    """

    stages: int | None
    layers: int
    width: int
    heads: int
    sequence: int
    dtype: str = "float32"
    vocabulary: int = 256


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
        "head": normal(width, config.vocabulary, fan_in=width),
    }


def loss(config: Config, parameters: Parameters, text: jax.Array) -> jax.Array:
    """The mean cross-entropy, in nats, of each next byte of `text`, int32 [sequences, length + 1].

    One mark per stage: after the last block of a stage, and for the last stage on the loss. Or one for each layer.
    """
    x = embed(config, parameters, text[:, :-1])
    per_stage = config.layers // config.stages if config.stages else 1
    for layer, weights in enumerate(parameters["blocks"]):
        if layer % per_stage == 0 and (layer or not config.stages):
            x = jaxpp.mark_stage_end(x)
        x = block(weights, x)
    if not config.stages:
        x = jaxpp.mark_stage_end(x)
    return jaxpp.mark_stage_end(cross_entropy(parameters, x, text[:, 1:]))


def embed(config: Config, parameters: Parameters, inputs: jax.Array) -> jax.Array:
    """What enters the first block, [sequences, length, width], of tokens [sequences, length]."""
    x = parameters["tokens"][inputs] + parameters["positions"][: inputs.shape[1]]
    return x.astype(config.dtype)


def block(weights: Parameters, x: jax.Array) -> jax.Array:
    """One block of the transformer on x [sequences, length, width]."""
    x = x + _attention(weights, _norm(weights["attention_norm"], x))
    return x + _mlp(weights, _norm(weights["mlp_norm"], x))


def cross_entropy(parameters: Parameters, x: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean over all tokens, in nats, of what the last block made."""
    logits = _norm(parameters["norm"], x) @ parameters["head"].astype(x.dtype)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1))


def _norm(weights: Parameters, x: jax.Array) -> jax.Array:
    """Layer normalisation, in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * weights["scale"] + weights["bias"]).astype(x.dtype)


def _attention(weights: Parameters, x: jax.Array) -> jax.Array:
    """Causal self-attention of x [sequences, length, width]."""
    q, k, v = jnp.einsum("btw,wnhd->nbhtd", x, weights["qkv"].astype(x.dtype))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
    return jnp.einsum("bqhd,hdw->bqw", mixed, weights["out"].astype(x.dtype))


def _mlp(weights: Parameters, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ weights["up"].astype(x.dtype)) @ weights["down"].astype(x.dtype)
