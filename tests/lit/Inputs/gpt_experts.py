"""Writes gpt_experts.mlir: the model of gpt.py with two experts in place of each MLP, one on each device of a stage.

Each device has half of the sequence; half of its tokens go to each expert, by an all-to-all in a `shard_map`.

    python tests/lit/Inputs/gpt_experts.py
"""

import os
from functools import partial
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"

import jax
import jax.numpy as jnp
import numpy as np
from gpt import BATCH, HEADS, MICROBATCHES, SEQUENCE, STAGES, VOCABULARY, WIDTH, norm
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxpp

MESH = Mesh(np.array(jax.devices()).reshape(STAGES, 2), ("mpmd", "expert"))
SIZES = {
    "qkv": (WIDTH, 3, HEADS, WIDTH // HEADS),
    "out": (HEADS, WIDTH // HEADS, WIDTH),
    "up": (2, WIDTH, 2 * WIDTH),
    "down": (2, 2 * WIDTH, WIDTH),
}
SPECS = {name: P("expert") if name in ("up", "down") else P() for name in SIZES}


def experts(up, down, x):
    exchange = partial(jax.lax.all_to_all, axis_name="expert", split_axis=1, concat_axis=1, tiled=True)
    inputs = jaxpp.mark_unit_end(exchange(x))
    return jaxpp.mark_unit_end(exchange(jax.nn.relu(inputs @ up[0]) @ down[0]))


def block(p, x):
    q, k, v = jnp.einsum("btd,dnhe->nbhte", norm(x), p["qkv"])
    scores = jax.nn.softmax(jnp.einsum("bhte,bhse->bhts", q, k))
    x = x + jnp.einsum("bhts,bhse,hed->btd", scores, v, p["out"])
    tokens = P(None, "expert")
    mapped = jax.shard_map(experts, mesh=MESH, in_specs=(P("expert"), P("expert"), tokens), out_specs=tokens)
    return x + mapped(p["up"], p["down"], norm(x))


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
        "blocks": [{name: jnp.ones(size) for name, size in SIZES.items()} for _ in range(STAGES)],
    }
    specs = {"embed": P(), "blocks": [SPECS] * STAGES}
    step = jaxpp.mpmd_jit_with_loop(
        train_step, jaxpp.MpmdMesh(MESH, "mpmd"), in_shardings=(specs, P()), donate_argnums=0
    )
    text = step.lower(parameters, np.zeros((MICROBATCHES, BATCH, SEQUENCE + 1), np.int32)).as_text()
    Path(__file__).with_suffix(".mlir").write_text(f"// Written by gpt_experts.py.\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
