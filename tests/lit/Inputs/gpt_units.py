"""Writes gpt_units.mlir: the model of gpt.py on stages of four devices, for the passes that place collectives.

Weights are cut by heads and hidden units over two devices, and once more over the axis of the batch (FSDP). Attention
and MLP are units. The optimizer is plain SGD.

    python tests/lit/Inputs/gpt_units.py
"""

import os
from functools import partial
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import jax
import jax.numpy as jnp
import numpy as np
from gpt import BATCH, HEADS, MICROBATCHES, SEQUENCE, STAGES, VOCABULARY, WIDTH, norm
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpp

SIZES = {
    "qkv": ((WIDTH, 3, HEADS, WIDTH // HEADS), P("data", None, "model")),
    "out": ((HEADS, WIDTH // HEADS, WIDTH), P("model", None, "data")),
    "up": ((WIDTH, 2 * WIDTH), P("data", "model")),
    "down": ((2 * WIDTH, WIDTH), P("model", "data")),
}


MESH = Mesh(np.array(jax.devices()).reshape(STAGES, 2, 2), ("mpmd", "data", "model"))


def unit_end(x):
    return jaxpp.mark_unit_end(jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P("data"))))


def block(p, x):
    q, k, v = jnp.einsum("btd,dnhe->nbhte", norm(x), p["qkv"])
    scores = jax.nn.softmax(jnp.einsum("bhte,bhse->bhts", q, k))
    x = unit_end(x + jnp.einsum("bhts,bhse,hed->btd", scores, v, p["out"]))
    return unit_end(x + jax.nn.relu(norm(x) @ p["up"]) @ p["down"])


def loss(parameters, tokens):
    x = parameters["embed"][tokens[:, :-1]]
    for p in parameters["blocks"]:
        x = jaxpp.mark_stage_end(block(p, x))
    logits = jax.nn.log_softmax(norm(x) @ parameters["embed"].T)
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


def train_step(parameters, batch):
    one = partial(jax.value_and_grad(loss), parameters)
    losses, gradients = jaxpp.treduce(one, batch, schedule=jaxpp.schedules.Std1F1B(STAGES))
    return jax.tree.map(lambda p, g: p - 1e-3 * g, parameters, gradients), losses.mean()


def main():
    parameters = {
        "embed": jnp.ones((VOCABULARY, WIDTH)),
        "blocks": [{name: jnp.ones(size) for name, (size, _) in SIZES.items()} for _ in range(STAGES)],
    }
    specs = {"embed": P(), "blocks": [{name: spec for name, (_, spec) in SIZES.items()}] * STAGES}
    step = jaxpp.mpmd_jit_with_loop(
        train_step, jaxpp.MpmdMesh(MESH, "mpmd"), in_shardings=(specs, P(None, "data")), donate_argnums=0
    )
    text = step.lower(parameters, np.zeros((MICROBATCHES, BATCH, SEQUENCE + 1), np.int32)).as_text()
    Path(__file__).with_suffix(".mlir").write_text(f"// Written by gpt_units.py.\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
