"""A script as users of NVIDIA's JaxPP write them: Explicit axes, stage-owned state; compile, place, run, score."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, make_mesh, weights

import jaxpp.api as jaxpp

STAGES = 4
OPTIMIZER = optax.adam(1e-2)


def hidden(params: Any, x: Any, mark: Callable[[Any], Any]) -> Any:
    for stage, each in enumerate(params):
        x = jnp.tanh(x @ each["w"] + each["b"])
        if stage < STAGES - 1:
            x = mark(x)
    return x


def loss(params: Any, microbatch: Any) -> Any:
    error = hidden(params, microbatch["x"], jaxpp.mark_stage_end) - microbatch["y"]
    return jaxpp.mark_stage_end((jnp.mean(error**2), {"worst": jnp.max(jnp.abs(error)), "sum": jnp.sum(error)}))


def train_step(state: Any, batches: Any) -> Any:
    """Adam per stage; gradients are clipped by a norm over all stages."""
    params, moments = state
    operation = ((jaxpp.Add, {"worst": jaxpp.Max, "sum": jaxpp.Add}), jaxpp.Add)
    (value, metrics), grads = jaxpp.treduce(
        partial(jax.value_and_grad(loss, has_aux=True), params),
        batches,
        schedule=jaxpp.Std1F1B(num_stages=STAGES),
        operation=operation,
    )
    squares = [sum(jnp.sum(g**2) for g in jax.tree.leaves(stage)) for stage in grads]
    scale = jnp.minimum(1.0, 0.1 / jnp.sqrt(jaxpp.cross_mpmd_all_reduce(*squares)))
    stages: list[Any] = []
    for each, moment, grad in zip(params, moments, grads, strict=True):
        updates, moment = OPTIMIZER.update(jax.tree.map(partial(jnp.multiply, scale), grad), moment, each)
        stages.append((optax.apply_updates(each, updates), moment))
    return (tuple(p for p, _ in stages), tuple(m for _, m in stages)), {**metrics, "loss": value}


def score(params: Any, microbatch: Any) -> Any:
    return jaxpp.mark_stage_end(hidden(params, microbatch["x"], jaxpp.mark_stage_end))


def place(mesh: jaxpp.MpmdMesh, value: Any, target: jaxpp.MpmdSharding) -> Any:
    """The value, wrapped, where a compiled step wants it."""
    if not target.mesh_ids:
        return value
    source = value.first_mpmd_replica if isinstance(value, jaxpp.MpmdArray) else value
    wanted = [NamedSharding(mesh.unstack[k], target.spec) for k in sorted(target.mesh_ids)]
    copies = [jax.device_put(source, each) for each in wanted]
    return jaxpp.MpmdArray(copies, target, shape=value.shape, dtype=value.dtype)


def test_a_script() -> None:
    mesh = make_mesh(STAGES, data=2, explicit=True)
    params = tuple({"w": w, "b": jnp.zeros(len(w))} for w in weights(STAGES))
    owner = [jaxpp.MpmdSharding(mesh, mesh_ids={stage}, spec=P(None)) for stage in range(STAGES)]
    owners = tuple({"w": where, "b": where} for where in owner)
    placed = jaxpp.spmd_to_mpmd_reshard(mesh, params, owners, threshold=0)
    state = placed, tuple(OPTIMIZER.init(each) for each in placed)
    whole = jax.tree.map(np.asarray, state)
    state_specs = jax.tree.map(lambda _: P(), state)
    data, data_spec = batch(6), P(None, "data")
    nowhere: Any = None

    step = jaxpp.mpmd_jit_with_loop(
        train_step,
        mpmd_mesh=mesh,
        in_specs=(state_specs, data_spec),
        out_specs=(state_specs, P()),
        donate_argnums=(0,),
    )
    with jax.set_mesh(nowhere):
        compiled = step.compile(state, data)
    (wanted, wanted_data), _ = compiled.in_shardings
    for stage in range(STAGES):
        assert {each.mesh_ids for part in wanted for each in jax.tree.leaves(part[stage])} == {frozenset({stage})}
    state = jax.tree.map(partial(place, mesh), state, wanted)
    inputs = jaxpp.spmd_to_mpmd_reshard(mesh, data, wanted_data)
    expected = whole
    for _ in range(3):
        state, metrics = compiled(state, inputs)
        expected, of_plain = jax.jit(train_step)(expected, data)
        assert_same(metrics, of_plain)
        assert_same(state, expected, tolerance=1e-4)

    one = jax.tree.map(lambda each: each[0], data)
    scorer = jaxpp.mpmd_jit_by_yield(
        score,
        mpmd_mesh=mesh,
        target_num_stages=STAGES,
        in_shardings=(state_specs[0], P("data")),
        out_shardings=P("data"),
    ).compile(state[0], one)
    everywhere = NamedSharding(mesh.jax_mesh, P("data", None))
    scores = jaxpp.mpmd_to_spmd_reshard(mesh, scorer(state[0], one), everywhere, threshold=0)
    assert scores.sharding == everywhere
    np.testing.assert_allclose(scores, jax.jit(score)(expected[0], one), rtol=1e-4, atol=1e-5)
