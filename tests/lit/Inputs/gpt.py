"""Writes gpt.mlir and gpt_data.mlir: the training step of a GPT as `jaxpp` lowers it, the input of the passes.

Two stages of one block (an attention layer and an MLP layer each), four microbatches, 1F1B; embedding tied to the head,
layer norm, clipping by the global norm, AdamW by optax, donated state. In gpt_data.mlir each stage has two devices, and
the batch is sharded over them.

    python tests/lit/Inputs/gpt.py
"""

import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

import jaxpp

STAGES, MICROBATCHES, BATCH, SEQUENCE = 2, 4, 2, 4
VOCABULARY, WIDTH, HEADS = 16, 8, 2

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.0, 1e-3, 10)))


def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def block(p, x):
    q, k, v = jnp.einsum("btd,dnhe->nbhte", norm(x), p["qkv"])
    scores = jnp.einsum("bhte,bhse->bhts", q, k) * (WIDTH // HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool)), scores, -1e9)
    x = x + jnp.einsum("bhts,bhse,hed->btd", jax.nn.softmax(scores), v, p["out"])
    return x + jax.nn.relu(norm(x) @ p["up"]) @ p["down"]


def loss_fn(parameters, tokens):
    x = parameters["embed"][tokens[:, :-1]] + parameters["position"]
    for p in parameters["blocks"]:
        x = jaxpp.mark_stage_end(block(p, x))
    logits = norm(x) @ parameters["embed"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()


def train_step(state, batch):
    parameters, optimizer_state = state
    losses, gradients = jaxpp.treduce(
        lambda tokens: jax.value_and_grad(loss_fn)(parameters, tokens), batch, schedule=jaxpp.schedules.Std1F1B(STAGES)
    )
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
    return (optax.apply_updates(parameters, updates), optimizer_state), losses.mean()


def main():
    blocks = [
        {
            "qkv": jnp.ones((WIDTH, 3, HEADS, WIDTH // HEADS)),
            "out": jnp.ones((HEADS, WIDTH // HEADS, WIDTH)),
            "up": jnp.ones((WIDTH, 2 * WIDTH)),
            "down": jnp.ones((2 * WIDTH, WIDTH)),
        }
        for _ in range(STAGES)
    ]
    parameters = {"embed": jnp.ones((VOCABULARY, WIDTH)), "position": jnp.ones((SEQUENCE, WIDTH)), "blocks": blocks}
    state = parameters, optimizer.init(parameters)
    batch = np.zeros((MICROBATCHES, BATCH, SEQUENCE + 1), np.int32)
    for name, data in ("gpt", 1), ("gpt_data", 2):
        devices = np.array(jax.devices()[: STAGES * data]).reshape(STAGES, data)
        step = jaxpp.mpmd_jit_with_loop(
            train_step,
            mpmd_mesh=jaxpp.MpmdMesh(Mesh(devices, ("mpmd", "data")), "mpmd"),
            in_shardings=(None, PartitionSpec(None, "data")) if data > 1 else None,
            donate_argnums=0,
        )
        text = step.lower(state, batch).as_text()
        Path(__file__).with_name(f"{name}.mlir").write_text(f"// Written by gpt.py.\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
