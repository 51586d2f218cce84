"""The stage programs of a model with tensor, data and expert axes, under all schedules that such a model can have.

Those of slices, of a vocabulary on all meshes and of several steps are in `test_every_model.py`.
"""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.test_schedules import LIBRARY

import jaxpp
from jaxpp import schedules
from jaxpp.planning.backend import PlannedProgram

AXES = ("mpmd", "data", "model", "expert")
WIDTH, HIDDEN, EXPERTS, HEADS, TOKENS, VOCABULARY = 128, 256, 4, 4, 128, 256
SPECS = {
    "qkv": P(None, None, "model"),
    "out": P("model"),
    "router": P(),
    "up": P("expert", None, "model"),
    "down": P("expert", "model"),
}


def shape(*sizes: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


BLOCK = {
    "qkv": shape(WIDTH, 3, WIDTH),
    "out": shape(WIDTH, WIDTH),
    "router": shape(WIDTH, EXPERTS),
    "up": shape(EXPERTS, WIDTH, HIDDEN),
    "down": shape(EXPERTS, HIDDEN, WIDTH),
}


def block(put: Any, weights: Any, x: jax.Array) -> jax.Array:
    """Attention cut by heads, and experts of which each device has some, with some of their hidden units."""
    weights = jax.tree.map(lambda each: each.astype(x.dtype), weights)
    q, k, v = jnp.split(jnp.einsum("btd,dce->btce", x, weights["qkv"]).reshape(*x.shape[:2], 3 * HEADS, -1), 3, 2)
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ weights["out"]
    gates = jax.nn.softmax(x @ weights["router"])
    sent = put(jnp.einsum("bte,btd->ebtd", gates, x), "expert", "data")
    hidden = jax.nn.gelu(jnp.einsum("ebtd,edh->ebth", sent, weights["up"]))
    return x + put(jnp.einsum("ebth,ehd->btd", hidden, weights["down"]), "data")


def train_step(put: Any, schedule: Any, state: Any, batch: Any) -> Any:
    """(new state, losses), by momentum."""

    def loss(weights: Any, tokens: jax.Array) -> jax.Array:
        x = weights["table"][tokens].astype(jnp.bfloat16)
        for each in weights["blocks"]:
            x = jaxpp.mark_stage_end(block(put, each, x))
        return (x.astype(jnp.float32) @ weights["table"].T).std()

    weights, moments = state
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), weights), batch, schedule=schedule)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
    return (jax.tree.map(lambda w, m: w - 0.1 * m, weights, moments), moments), losses


@pytest.mark.parametrize(("name", "meshes", "options"), LIBRARY)
def test_its_stage_programs_compile(
    name: str, meshes: int, options: dict[str, Any], absent: list[PlannedProgram]
) -> None:
    schedule = schedules.make(name, meshes=meshes, **{"microbatches": 4, **options})
    devices = np.array(jax.devices()[: 8 * meshes]).reshape(meshes, 2, 2, 2)
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(devices, AXES), "mpmd")

    def put(x: jax.Array, *axes: Any) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh.jax_mesh, P(*axes)))

    weights = {"table": shape(VOCABULARY, WIDTH), "blocks": [BLOCK] * schedule.stages}
    specs = {"table": P(), "blocks": [SPECS] * schedule.stages}
    batch = shape(schedule.microbatches, 4, TOKENS, dtype=np.int32)
    step = jaxpp.mpmd_jit_with_loop(
        partial(train_step, put, schedule), mesh, in_shardings=((specs, specs), P(None, "data")), donate_argnums=0
    )
    step.lower((weights, weights), batch).compile()
    (planned,) = absent
    for each in planned.plan.programs:
        assert each.alias_bytes > 0 or each.kind in ("forward", "before", "input_grad", "recompute"), each.name
