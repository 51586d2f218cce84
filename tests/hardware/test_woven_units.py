"""What the real compilers make of woven units: the collectives of a fused task stand beside products.

Each test prints how many do, woven and as XLA orders the same task by itself.
"""

# pyright: reportUnknownLambdaType=false

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpp
from jaxpp._absent import compile_only
from jaxpp.runtime import load

sys.path.append(str(Path(__file__).parent))
from overlap import Overlap, overlap

WIDTH, HIDDEN, TOKENS, EXPERTS, CAPACITY = 1024, 4096, 2048, 4, 256
Mark = Callable[[Any], Any]
Layer = Callable[[Any, Any, jax.Array, Mark], jax.Array]


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def mlp(_: Any, weights: Any, x: jax.Array, mark: Mark) -> jax.Array:
    """Two-way tensor parallelism: the hidden units are cut."""
    for layer in range(2):
        hidden = jax.nn.gelu(x @ weights["up"][layer].astype(x.dtype))
        x = mark(x + hidden @ weights["down"][layer].astype(x.dtype))
    return x


def routes(weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[group, token, expert, place]: where each token is sent, and its gate on the way back."""
    gates = jax.nn.softmax((x @ weights["router"].astype(x.dtype)).astype(jnp.float32))
    chosen = jax.nn.one_hot(gates.argmax(-1), EXPERTS, dtype=jnp.int32)
    place = (jnp.cumsum(chosen, 1) * chosen).sum(-1) - 1
    sent = (chosen[..., None] * jax.nn.one_hot(place, CAPACITY, dtype=jnp.int32)[:, :, None]).astype(x.dtype)
    return sent, sent * gates.max(-1)[..., None, None].astype(x.dtype)


def of_experts(up: jax.Array, down: jax.Array, inputs: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(jnp.einsum("egcd,edh->egch", inputs, up.astype(inputs.dtype)))
    return jnp.einsum("egch,ehd->egcd", hidden, down.astype(inputs.dtype))


def experts(put: Any, weights: Any, x: jax.Array, mark: Mark) -> jax.Array:
    """Each device has half of the tokens and half of the experts."""
    sent, back = routes(weights, x)
    inputs = mark(put(put(jnp.einsum("gtec,gtd->egcd", sent, x), None, "model"), "model"))
    outputs = put(of_experts(weights["up"], weights["down"], inputs), "model")
    return x + jnp.einsum("egcd,gtec->gtd", mark(put(outputs, None, "model")), back)


def mapped_experts(put: Any, weights: Any, x: jax.Array, mark: Mark) -> jax.Array:
    """The same with the exchange written out, in a `shard_map`."""

    def of_device(up: jax.Array, down: jax.Array, x: jax.Array, sent: jax.Array, back: jax.Array) -> jax.Array:
        inputs = mark(jax.lax.all_to_all(jnp.einsum("gtec,gtd->egcd", sent, x), "model", 0, 1, tiled=True))
        outputs = mark(jax.lax.all_to_all(of_experts(up, down, inputs), "model", 1, 0, tiled=True))
        return jnp.einsum("egcd,gtec->gtd", outputs, back)

    mapped = jax.shard_map(of_device, mesh=put.keywords["mesh"], in_specs=(P("model"),) * 5, out_specs=P("model"))
    return x + mapped(weights["up"], weights["down"], x, *routes(weights, x))


def constraint(x: jax.Array, *axes: Any, mesh: Any) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))


MODELS: dict[str, tuple[Layer, Any, Any, Any, P]] = {
    "tensor parallel": (
        mlp,
        {"up": shape(2, WIDTH, HIDDEN), "down": shape(2, HIDDEN, WIDTH)},
        {"up": P(None, None, "model"), "down": P(None, "model")},
        shape(4, TOKENS, WIDTH),
        P(),
    ),
    "experts": (
        experts,
        {
            "router": shape(WIDTH, EXPERTS),
            "up": shape(EXPERTS, WIDTH, HIDDEN),
            "down": shape(EXPERTS, HIDDEN, WIDTH),
        },
        {"router": P(), "up": P("model"), "down": P("model")},
        shape(4, 2, TOKENS // 2, WIDTH),
        P(None, "model"),
    ),
}

MODELS["experts in a shard_map"] = (mapped_experts, *MODELS["experts"][1:])

_ASYNC_ALL_REDUCE = {
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
}


def compiled(name: str, options: dict[str, Any], model: str, mark: Mark, compiler_options: dict[str, Any]) -> Overlap:
    """The collectives of the fused task of a training step, two stages of a model, in the order of the compiler."""
    try:
        target = jaxpp.target(name, **options)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    layer, weights, specs, batch, spec = MODELS[model]
    mesh = target.mesh((2, 2), ("mpmd", "model"))
    put = partial(constraint, mesh=mesh.jax_mesh)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.bfloat16)
        for weights in params:
            x = jaxpp.mark_stage_end(layer(put, weights, x, mark))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def train_step(params: Any, batch: jax.Array) -> Any:
        one = partial(jax.grad(loss), params)
        return jaxpp.treduce(one, batch, schedule="dualpipe", operation=jaxpp.Add)

    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, in_shardings=([specs] * 2, spec))
    program = load(step.lower([weights] * 2, batch).program().module)
    fused = next(function for function in program.functions.values() if function.kind == "forward+backward")
    devices = list(mesh.jax_mesh.devices[0].flat)
    executable = compile_only(fused.bytecode, devices, compiler_options)
    return overlap("\n".join(module.to_string() for module in executable.hlo_modules()))


@pytest.mark.parametrize(
    ("name", "options", "model", "compiler_options"),
    [
        ("h200", {"nodes": 2, "gpus": 2}, "tensor parallel", {}),
        ("h200", {"nodes": 2, "gpus": 2}, "experts", {}),
        ("h200", {"nodes": 2, "gpus": 2}, "experts in a shard_map", {}),
        # Of TPUs only v5e has asynchronous all-reduces. What is said here is off by default.
        ("v5e:2x2", {}, "tensor parallel", _ASYNC_ALL_REDUCE),
        ("v5p:2x2x1", {}, "experts", {"xla_tpu_enable_async_all_to_all": True}),
        ("v5p:2x2x1", {}, "experts in a shard_map", {"xla_tpu_enable_async_all_to_all": True}),
    ],
    ids=["h200 tensor parallel", "h200 experts", "h200 mapped", "v5e tensor parallel", "v5p experts", "v5p mapped"],
)
def test_every_collective_has_a_product_beside_it(
    name: str, options: dict[str, Any], model: str, compiler_options: dict[str, Any]
) -> None:
    woven, apart = (
        compiled(name, options, model, mark, compiler_options) for mark in (jaxpp.mark_unit_end, lambda x: x)
    )
    print(f"{name}, {model}: woven {woven.hidden} of {woven.collectives}, else {apart.hidden} of {apart.collectives}")
    assert woven.hidden == woven.collectives > 0
    assert woven.hidden >= apart.hidden
