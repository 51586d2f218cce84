"""GPT-3 and Llama 2 70B as shapes: training steps for plans of devices that are not here.

gpt3      96 layers, width 12,288, 96 heads, vocabulary 51,200, sequences of 2,048; 175 billion parameters
llama2    80 layers, width 8,192, 64 heads that share 8 of keys and values, gated hidden units 28,672, vocabulary
          32,000, sequences of 4,096; 69 billion parameters

Parameters and the moments of AdamW are float32, products are in bfloat16. Attention is written out, and so are the
layers of a stage: a scan over them keeps more, and its gradients are summed over the replicas in each microbatch.
Nothing is allocated.
"""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jaxpp
from jaxpp import schedules

Tree = Any


@dataclass(frozen=True)
class Model:
    """The sizes of a model.

    Attributes:
        layers: how many.
        width: of an activation.
        heads: of queries.
        shared: heads of keys and values.
        hidden: units of the MLP.
        vocabulary: how many tokens there are.
        sequence: tokens of one.
        is_llama: whether it has gated units, rotary positions and no biases of norms.
    """

    layers: int
    width: int
    heads: int
    shared: int
    hidden: int
    vocabulary: int
    sequence: int
    is_llama: bool

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads

    def shapes(self) -> dict[str, Tree]:
        """The parameters, each as (shape, what of it is cut for tensor parallelism)."""
        norms = {name: ((self.width,), P()) for name in (("scale",) if self.is_llama else ("scale", "bias"))}
        ups = ("gate", "up") if self.is_llama else ("up",)
        block = {
            "first": norms,
            "second": norms,
            "q": ((self.width, self.heads, self.head), P(None, "model")),
            "k": ((self.width, self.shared, self.head), P(None, "model")),
            "v": ((self.width, self.shared, self.head), P(None, "model")),
            "out": ((self.heads, self.head, self.width), P("model")),
            **{name: ((self.width, self.hidden), P(None, "model")) for name in ups},
            "down": ((self.hidden, self.width), P("model")),
        }
        ends = {
            "tokens": ((self.vocabulary, self.width), P("model")),
            "norm": norms,
            "head": ((self.width, self.vocabulary), P(None, "model")),
        }
        if not self.is_llama:
            ends["positions"] = ((self.sequence, self.width), P())
        return {**ends, "blocks": [block] * self.layers}

    @property
    def parameters(self) -> int:
        """How many there are."""
        return sum(int(np.prod(shape)) for shape, _ in jax.tree.leaves(self.shapes(), is_leaf=_is_leaf))

    def flops(self, sequences: int) -> float:
        """Of the products of a step as papers count them: with all of attention's, a third of them in the forward."""
        dense = self.parameters - self.vocabulary * self.width - (0 if self.is_llama else self.sequence * self.width)
        per_token = 6 * dense + 12 * self.layers * self.width * self.sequence
        return per_token * float(sequences * self.sequence)


MODELS = {
    "gpt3": Model(96, 12288, 96, 96, 4 * 12288, 51200, 2048, is_llama=False),
    "llama2": Model(80, 8192, 64, 8, 28672, 32000, 4096, is_llama=True),
}


def _is_leaf(leaf: Any) -> bool:
    return isinstance(leaf, tuple)


def norm(weights: Tree, x: jax.Array) -> jax.Array:
    """Layer normalisation, or without a bias that by the root of the mean square."""
    wide = x.astype(jnp.float32)
    if "bias" in weights:
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-5) * weights["scale"]
    return (scaled + weights.get("bias", 0.0)).astype(x.dtype)


def rotated(x: jax.Array) -> jax.Array:
    """Queries or keys [sequences, tokens, heads, head] with rotary positions."""
    tokens, head = x.shape[1], x.shape[-1]
    angles = np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(0, head, 2) / head)
    cos, sin = (jnp.asarray(each[:, None], x.dtype) for each in (np.cos(angles), np.sin(angles)))
    one, other = x[..., : head // 2], x[..., head // 2 :]
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def attention(model: Model, weights: Tree, x: jax.Array) -> jax.Array:
    """Causal self-attention of x [sequences, tokens, width]."""
    q, k, v = (jnp.einsum("btw,wnh->btnh", x, weights[name].astype(x.dtype)) for name in "qkv")
    if model.is_llama:
        q, k = rotated(q), rotated(k)
    q = q.reshape(*q.shape[:2], model.shared, -1, model.head)
    scores = jnp.einsum("bqnrh,bknh->bnrqk", q, k).astype(jnp.float32) * model.head**-0.5
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    mixed = jnp.einsum("bnrqk,bknh->bqnrh", jax.nn.softmax(scores).astype(x.dtype), v)
    mixed = mixed.reshape(*mixed.shape[:2], model.heads, model.head)
    return jnp.einsum("bqnh,nhw->bqw", mixed, weights["out"].astype(x.dtype))


def mlp(weights: Tree, x: jax.Array) -> jax.Array:
    """Two layers, gated or not."""
    up = x @ weights["up"].astype(x.dtype)
    hidden = jax.nn.silu(x @ weights["gate"].astype(x.dtype)) * up if "gate" in weights else jax.nn.gelu(up)
    return hidden @ weights["down"].astype(x.dtype)


def loss(model: Model, stages: int, parameters: Tree, text: jax.Array) -> jax.Array:
    """The mean cross-entropy of `text` [sequences, tokens + 1]."""
    x = parameters["tokens"][text[:, :-1]]
    x = (x if model.is_llama else x + parameters["positions"]).astype(jnp.bfloat16)
    for number, weights in enumerate(parameters["blocks"]):
        if number and number % (model.layers // stages) == 0:
            x = jaxpp.mark_stage_end(x)
        x = x + attention(model, weights, norm(weights["first"], x))
        x = x + mlp(weights, norm(weights["second"], x))
    logits = norm(parameters["norm"], x) @ parameters["head"].astype(x.dtype)
    chosen = jax.nn.log_softmax(logits.astype(jnp.float32))
    return jaxpp.mark_stage_end(-jnp.mean(jnp.take_along_axis(chosen, text[..., 1:, None], axis=-1)))


def make_step(
    model: Model, mesh: jaxpp.MpmdMesh, plan: schedules.Schedule, sequences: int, **options: Any
) -> tuple[Any, tuple[Any, ...]]:
    """A training step for a mesh with axes mpmd, data and model, and the shapes of its arguments.

    sequences: of one microbatch, on all devices of a mesh together.
    options: of `mpmd_jit_with_loop`.
    """
    shapes = model.shapes()
    parameters = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf[0], jnp.float32), shapes, is_leaf=_is_leaf)
    specs = jax.tree.map(lambda leaf: leaf[1], shapes, is_leaf=_is_leaf)
    optimizer = optax.adamw(1e-4)
    moments = jax.eval_shape(optimizer.init, parameters)
    gradient: Callable[..., Any] = jax.value_and_grad(partial(loss, model, plan.stages))

    def train_step(parameters: Tree, moments: Tree, batch: jax.Array) -> Any:
        losses, gradients = jaxpp.treduce(
            partial(gradient, parameters), batch, schedule=plan, operation=(jaxpp.Concat(), jaxpp.Add)
        )
        updates, moments = optimizer.update(gradients, moments, parameters)
        return optax.apply_updates(parameters, updates), moments, jnp.mean(losses)

    state_specs = optax.tree_utils.tree_map_params(optimizer, lambda _, spec: spec, moments, specs)
    state_specs = jax.tree.map(lambda leaf: leaf if isinstance(leaf, P) else P(), state_specs)
    step = jaxpp.mpmd_jit_with_loop(
        train_step, mesh, in_shardings=(specs, state_specs, P(None, "data")), donate_argnums=(0, 1), **options
    )
    batch = jax.ShapeDtypeStruct((plan.microbatches, sequences, model.sequence + 1), jnp.int32)
    return step, (parameters, moments, batch)
