"""Does a pipeline pay? GPT-3 on A100s, planned as a pipeline and as FSDP, beside a published comparison.

    python benchmarks/pays.py --chips 384

Published: Megatron-LM, arXiv 2104.04473, table 2, 174.6 B parameters, 1,536 sequences of 2,048 tokens. PTD-P has 12
stages of 1F1B, 8-way tensor parallelism, microbatches of one sequence, and replicas. ZeRO-3 shards all over all GPUs.
Blocks are computed again in the backward, as there. `jaxpp-plan pays:gpt3` in this folder plans other meshes.
"""

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from shared import example, parser

import jaxpp
from jaxpp.tools import plan

SEQUENCES, TOKENS, STAGES, TENSOR, PER_HOST = 1536, 2048, 12, 8, 8

PUBLISHED = {384: (153, 144), 768: (149, 88), 1536: (141, 44)}
"""The TFLOP/s of each GPU, of PTD-P and of ZeRO-3, by the number of GPUs."""


def gpt3(mesh: jaxpp.MpmdMesh, layers: int = 96, width: int = 12288, heads: int = 96) -> Any:
    """Returns the training step for a mesh with the axes mpmd, data and model, and its arguments.

    A mesh without a pipeline shards the weights over the axis "data", and has one microbatch.
    """
    model, stages = example("gpt_model"), mesh.mpmd_dim
    replicas = dict(mesh.jax_mesh.shape)["data"]
    config = model.Config(stages, layers, width, heads, TOKENS, "bfloat16", 51200)
    rows, microbatches = ("data", 1) if stages == 1 else (None, SEQUENCES // replicas)
    specs = {
        "qkv": P(rows, None, "model"),
        "out": P("model", None, rows),
        "up": P(rows, "model"),
        "down": P("model", rows),
        "tokens": P(None, rows),
        "head": P("model", rows),
        "positions": P(None, rows),
    }

    on_rows, rows_of_batch = jax.lax.with_sharding_constraint, NamedSharding(mesh.jax_mesh, P("data"))

    def loss(parameters: Any, text: jax.Array) -> jax.Array:
        x = on_rows(model.embed(config, parameters, text[:, :-1]), rows_of_batch)
        for number, weights in enumerate(parameters["blocks"]):
            if number and number % (layers // stages) == 0:
                x = jaxpp.mark_stage_end(x)
            x = on_rows(jax.checkpoint(model.block)(weights, x), rows_of_batch)
        return jaxpp.mark_stage_end(model.cross_entropy(parameters, x, text[:, 1:]))

    def adam(weight: jax.Array, first: jax.Array, second: jax.Array, gradient: jax.Array) -> tuple[jax.Array, ...]:
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        return weight - 1e-4 * first / (jnp.sqrt(second) + 1e-8), first, second

    def step(state: Any, batch: jax.Array) -> Any:
        gradients = jaxpp.treduce(partial(jax.grad(loss), state[0]), batch, schedule="1f1b", operation=jaxpp.Mean)
        new = jax.tree.map(adam, *state, gradients)
        return jax.tree.transpose(jax.tree.structure(gradients), jax.tree.structure((0, 0, 0)), new)

    def spec(path: tuple[Any, ...], _: object) -> P:
        return specs.get(path[-1].key, P())

    weights = shapes(config)
    placed = jax.tree_util.tree_map_with_path(spec, weights)
    batch = jax.ShapeDtypeStruct((microbatches, SEQUENCES // microbatches, TOKENS + 1), "int32")
    shardings = (placed,) * 3, P(None, "data")
    return jaxpp.mpmd_jit_with_loop(step, mesh, in_shardings=shardings, donate_argnums=0), ((weights,) * 3, batch)


def shapes(config: Any) -> Any:
    """Returns the shapes of the weights, without making them."""
    width, heads = config.width, config.heads

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "float32")

    norm = {"scale": array(width), "bias": array(width)}
    block = {
        "attention_norm": norm,
        "qkv": array(width, 3, heads, width // heads),
        "out": array(heads, width // heads, width),
        "mlp_norm": norm,
        "up": array(width, 4 * width),
        "down": array(4 * width, width),
    }
    tables = {"tokens": array(config.vocabulary, width), "head": array(config.vocabulary, width)}
    return {**tables, "positions": array(TOKENS, width), "blocks": [block] * config.layers, "norm": norm}


def main() -> int:
    """Plans both meshes, and prints what was published of them."""
    options = parser(__doc__, chips=384).parse_args()
    pipeline, sharded = PUBLISHED[options.chips]
    replicas = options.chips // STAGES // TENSOR
    print(f"published: pipeline {pipeline} TFLOP/s, FSDP {sharded} TFLOP/s: {pipeline / sharded:.2f} times as fast")
    hosts, mesh = options.chips // PER_HOST, f"mpmd={STAGES},data={replicas},model={TENSOR}"
    target = ["--target", "a100", "--nodes", str(hosts), "--mesh", mesh]
    other = f"mpmd=1,data={options.chips},model=1"
    return plan.main(["pays:gpt3", *target, "--rehearse", f"tokens={SEQUENCES * TOKENS}", "--against", other])


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
