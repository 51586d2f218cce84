"""The models of processes.py: plain functions of plain trees, in two halves, float32, plain SGD.

mlp   8 residual blocks x + gelu(x @ a) @ b, width 512, hidden 2048; 1024 rows a step; mean squared error
tf    8 pre-norm transformer blocks, width 256, 4 heads, hidden 1024; 32 sequences of 64 tokens of 512; cross-entropy
tiny  as mlp with width and hidden 16; 4 rows per microbatch
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, HEADS, TOKENS, LENGTH = 8, 4, 512, 64
Tree = Any


@dataclass(frozen=True)
class Model:
    """A model and the data of a step, [microbatches, ...] each."""

    name: str
    microbatches: int
    width: int
    hidden: int
    batch: int
    rate: float

    @property
    def is_transformer(self) -> bool:
        """Whether it is the transformer."""
        return self.name == "tf"

    def parameters(self) -> tuple[list[Tree], Tree, Tree]:
        """Returns (blocks, parameters before the first, parameters after the last)."""
        random, width = np.random.RandomState(0), self.width

        def normal(rows: int, columns: int, scale: float) -> np.ndarray:
            return (random.randn(rows, columns) * scale).astype(np.float32)

        def norm() -> Tree:
            return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

        def block() -> Tree:
            up = {"w": normal(width, self.hidden, width**-0.5), "b": np.zeros(self.hidden, np.float32)}
            down = {"w": normal(self.hidden, width, 0.5 * self.hidden**-0.5), "b": np.zeros(width, np.float32)}
            if not self.is_transformer:
                return {"up": up, "down": down}
            qkv, out = normal(width, 3 * width, width**-0.5), normal(width, width, 0.5 * width**-0.5)
            return {"up": up, "down": down, "qkv": qkv, "out": out, "first": norm(), "second": norm()}

        blocks = [block() for _ in range(LAYERS)]
        if not self.is_transformer:
            return blocks, {}, {}
        head = normal(width, TOKENS, width**-0.5)
        return blocks, {"tokens": normal(TOKENS, width, 1.0)}, {"norm": norm(), "head": head}

    def data(self) -> tuple[np.ndarray, ...]:
        """Returns inputs and targets."""
        random = np.random.RandomState(1)
        rows = (self.microbatches, self.batch // self.microbatches)
        if self.is_transformer:
            return tuple(random.randint(0, TOKENS, (*rows, LENGTH)).astype(np.int32) for _ in range(2))
        return tuple(random.randn(*rows, self.width).astype(np.float32) for _ in range(2))

    def first(self, before: Tree, x: jax.Array) -> jax.Array:
        """Returns the input of the blocks."""
        return before["tokens"][x] if self.is_transformer else x

    def blocks(self, blocks: list[Tree], x: jax.Array) -> jax.Array:
        """Applies some blocks."""
        for block in blocks:
            if self.is_transformer:
                x = x + attention(block, normalised(block["first"], x))
            y = normalised(block["second"], x) if self.is_transformer else x
            up, down = block["up"], block["down"]
            x = x + (jax.nn.gelu(y @ up["w"] + up["b"], approximate=True) @ down["w"] + down["b"])
        return x

    def loss(self, after: Tree, x: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns the mean loss of one microbatch."""
        if not self.is_transformer:
            return jnp.mean((x - targets) ** 2)
        logs = jax.nn.log_softmax(normalised(after["norm"], x) @ after["head"])
        return -jnp.mean(jnp.take_along_axis(logs, targets[..., None], -1))

    def update(self, parameters: Tree, sums: Tree) -> Tree:
        """Makes one SGD step with the gradients' sums over the microbatches."""
        return jax.tree.map(lambda p, g: p - (self.rate / self.microbatches) * g, parameters, sums)  # pyright: ignore[reportUnknownLambdaType]  # of arrays


def normalised(weights: Tree, x: jax.Array) -> jax.Array:
    """Applies layer normalisation."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * weights["scale"] + weights["bias"]


def attention(weights: Tree, x: jax.Array) -> jax.Array:
    """Applies causal self-attention."""
    rows, length, width = x.shape
    q, k, v = jnp.moveaxis((x @ weights["qkv"]).reshape(rows, length, 3, HEADS, width // HEADS), 2, 0)
    scores = jnp.einsum("bthe,bshe->bhts", q, k) * (width // HEADS) ** -0.5
    scores = jnp.where(jnp.tri(length, dtype=bool), scores, -1e30)
    mixed = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)
    return mixed.reshape(rows, length, width) @ weights["out"]


def make(name: str, microbatches: int) -> Model:
    """Returns the model of a name."""
    sizes = {
        "mlp": (512, 2048, 1024, 1e-3),
        "tf": (256, 1024, 32, 1e-2),
        "tiny": (16, 16, 4 * microbatches, 1e-3),
    }
    return Model(name, microbatches, *sizes[name])
