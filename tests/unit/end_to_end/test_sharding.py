"""Stages over several devices: data and tensor parallelism inside a stage, whatever the place of the mpmd axis."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import (
    assert_same,
    batch,
    check,
    check_compiled,
    feed_state,
    layers,
    lowered,
    make_mesh,
    sgd_step,
    weights,
)

import jaxpp.api as jaxpp
from jaxpp import PassError
from jaxpp.ir.read_program import ProgramReader
from jaxpp.runtime.measuring.analysis import parameters, sent_bytes

ORDERS = [("mpmd", "data", "model"), ("data", "mpmd", "model"), ("data", "model", "mpmd")]
SCHEDULE = jaxpp.Std1F1B(2)


def two_matrices() -> list[tuple[jax.Array, jax.Array]]:
    """An up and a down projection for each of two stages."""
    keys = jax.random.split(jax.random.key(0), (2, 2))
    return [(jax.random.normal(a, (8, 16)) / 3, jax.random.normal(b, (16, 8)) / 4) for a, b in keys]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_batch_and_weights_by_in_shardings(order: tuple[str, ...]) -> None:
    mesh = make_mesh(2, data=2, model=2, order=order)
    step = partial(sgd_step, schedule=SCHEDULE)
    in_shardings = (P(None, "model"), {"x": P(None, "data"), "y": NamedSharding(mesh.jax_mesh, P(None, "data"))})
    found, _ = check(step, (weights(2), batch(4)), mesh, in_shardings=in_shardings, steps=2, feed=feed_state)
    assert [w.sharding for w in found] == [NamedSharding(sub, P(None, "model")) for sub in mesh.unstack]


def test_the_approximately_largest_of_sharded_rows() -> None:
    """XLA refuses a sharding of this operation."""

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x, places = jax.lax.approx_max_k(jaxpp.mark_stage_end(microbatch["x"] @ params[0]), 4)
        return jnp.sum(jaxpp.mark_stage_end(x * places @ params[1][:4]) ** 2)

    in_shardings = (P(), P(None, "data"))
    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    check(step, (weights(2), batch(4)), make_mesh(2, data=2), in_shardings=in_shardings)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_largest_of_windows_that_devices_divide(axis: int) -> None:
    """XLA's gradient of it is wrong along a dimension that is divided."""
    window = (2, 1) if axis == 0 else (1, 2)

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x = jaxpp.mark_stage_end(microbatch["x"] @ params[0])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, (1, 1), "SAME")
        return jnp.sum(jaxpp.mark_stage_end(x @ params[1]) ** 2)

    in_shardings = (P(), P(None, "data")) if axis == 0 else (P(None, "data"), P())
    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    check(step, (weights(2), batch(4)), make_mesh(2, data=2), in_shardings=in_shardings)


def test_out_shardings() -> None:
    mesh = make_mesh(2, data=2, model=2)
    out_shardings = ([P("data", "model"), NamedSharding(mesh.jax_mesh, P("model"))], P())
    found, _ = check(partial(sgd_step, schedule=SCHEDULE), (weights(2), batch(4)), mesh, out_shardings=out_shardings)
    assert [w.sharding.spec for w in found] == [P("data", "model"), P("model")]


def with_outputs(params: Any, batch: Any) -> Any:
    """New parameters, and (an entry per example, the batch)."""

    def of_one(params: Any, microbatch: Any) -> Any:
        out = layers(params, microbatch["x"])
        return jnp.mean((out - microbatch["y"]) ** 2), out.mean(-1)

    gradient = partial(jax.value_and_grad(of_one, has_aux=True), params)
    operation = (jaxpp.Add, jaxpp.Concat()), jaxpp.Add
    (_, each), grads = jaxpp.treduce(gradient, batch, schedule="1f1b", operation=operation)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), (each, batch)


@pytest.mark.parametrize(("steps", "state"), [(0, P()), (2, P("data"))])
def test_out_shardings_of_what_has_others(steps: int, state: P) -> None:
    """Results, arguments that are passed through, and the state and metrics of a loop: as plain `jax.jit` has them."""
    mesh = make_mesh(2, data=2)
    every, axes, one_mesh = batch(2), (None, "data"), Mesh(jax.devices()[:2], "data")
    step: Any = with_outputs
    if steps:
        step, axes = jaxpp.train_loop(step, steps), (None, *axes)
        every = jax.tree.map(lambda leaf: jnp.stack([leaf] * steps), every)
    turned = {"x": P(), "y": P(*[None] * len(axes), "data")}
    shardings = state, (P(), turned)
    args = weights(2), every
    pipelined = jaxpp.mpmd_jit_with_loop(step, mesh, in_shardings=(None, P(*axes)), out_shardings=shardings)
    compiled = pipelined.lower(*args).compile()

    def placed(spec: Any) -> Any:
        return jax.tree.map(lambda each: NamedSharding(one_mesh, each), spec, is_leaf=lambda x: isinstance(x, P))

    plain = jax.jit(step, in_shardings=(None, placed(P(*axes))), out_shardings=placed(shardings))
    found, expected = check_compiled(compiled, plain, args), plain(*args)
    for one, said, other in zip(*map(jax.tree.leaves, (found, compiled.out_shardings, expected)), strict=True):
        assert NamedSharding(one_mesh, one.sharding.spec).is_equivalent_to(other.sharding, one.ndim)
        assert one.sharding.spec == said.spec


def test_arguments_in_the_memory_of_the_host() -> None:
    """On the whole mesh, or on the mesh that uses them: they are copied to the devices. JAX refuses to add them."""
    mesh = make_mesh(2, data=2)
    whole = NamedSharding(mesh.jax_mesh, P(), memory_kind="pinned_host")
    own = [NamedSharding(each, P("data"), memory_kind="pinned_host") for each in mesh.unstack]
    params, step = weights(2), partial(sgd_step, schedule=SCHEDULE)
    expected = jax.jit(sgd_step)(params, batch(4))
    for shardings in (whole, own):
        for donated in (None, 0):
            held = jax.device_put(params, shardings)
            assert_same(jaxpp.mpmd_jit_with_loop(step, mesh, donate_argnums=donated)(held, batch(4)), expected)
            assert all(w.is_deleted() == (donated == 0) for w in held)


@pytest.mark.parametrize("order", ORDERS[:2], ids="-".join)
def test_tensor_parallel_by_constraints(order: tuple[str, ...]) -> None:
    mesh = make_mesh(2, data=2, model=2, order=order)

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for up, down in params:
            hidden = jax.lax.with_sharding_constraint(
                jnp.tanh(x @ up), NamedSharding(mesh.jax_mesh, P("data", "model"))
            )
            x = jax.lax.with_sharding_constraint(hidden @ down, NamedSharding(mesh.jax_mesh, P("data")))
            x = jaxpp.mark_stage_end(x)
        return jnp.mean((x - microbatch["y"]) ** 2)

    check(partial(sgd_step, schedule=SCHEDULE, loss=loss), (two_matrices(), batch(3)), mesh)


@pytest.mark.parametrize(
    ("names", "shape", "spec"), [("x", [4], P("x")), (["model", "a"], [2, 2], P("a", "model")), ("ab", [2, 2], P("b"))]
)
def test_constraint_over_a_mesh_without_the_mpmd_axis(names: Any, shape: Any, spec: P) -> None:
    """A mesh of the user's own, over the devices of the first stage, stands for that of every stage."""
    mesh = make_mesh(2, data=4) if names == "ab" else make_mesh(2, data=2, model=2)
    own = NamedSharding(Mesh(mesh.unstack[0].devices.reshape(shape), tuple(names)), spec)

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jaxpp.mark_stage_end(jax.lax.with_sharding_constraint(jnp.tanh(x @ w), own))
        return jnp.mean((x - microbatch["y"]) ** 2)

    check(partial(sgd_step, schedule=SCHEDULE, loss=loss), (weights(2), batch(3)), mesh)


def test_constraint_by_partition_spec_alone() -> None:
    mesh = make_mesh(2, data=2, model=2)

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jaxpp.mark_stage_end(jax.lax.with_sharding_constraint(jnp.tanh(x @ w), P("data", "model")))
        return jnp.mean((x - microbatch["y"]) ** 2)

    def reference(*args: Any) -> Any:
        with jax.set_mesh(mesh.jax_mesh):
            return jax.jit(step)(*args)

    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    check(step, (weights(2), batch(3)), mesh, reference=reference)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_shard_map_with_collectives_inside_a_stage(order: tuple[str, ...]) -> None:
    mesh = make_mesh(2, data=2, order=order)

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        mean = jax.lax.psum(jnp.sum(x, 0, keepdims=True), "data") / 4
        return jnp.tanh(x @ w) - mean + jax.lax.axis_index("data")

    sharded = jax.shard_map(layer, mesh=mesh.jax_mesh, in_specs=(P(), P("data")), out_specs=P("data"))

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jaxpp.mark_stage_end(sharded(w, x))
        return jnp.mean((x - microbatch["y"]) ** 2)

    check(partial(sgd_step, schedule=SCHEDULE, loss=loss), (weights(2), batch(3)), mesh)


@pytest.mark.parametrize("schedule", [SCHEDULE, jaxpp.ZeroBubble(2)], ids=["whole", "split"])
def test_stages_inside_a_shard_map(schedule: Any) -> None:
    """One `shard_map` around all stages; a zero-bubble schedule splits the backward of what stands in it."""
    mesh = make_mesh(2, data=2)

    def layers(params: Any, x: jax.Array) -> jax.Array:
        for w in params:
            mean = jax.lax.psum(jnp.sum(x, 0, keepdims=True), "data") / 4
            x = jaxpp.mark_stage_end(jnp.tanh(x @ w) - mean + jax.lax.axis_index("data"))
        return x

    sharded = jax.shard_map(layers, mesh=mesh.jax_mesh, in_specs=(P(), P("data")), out_specs=P("data"))

    def loss(params: Any, microbatch: Any) -> Any:
        return jnp.mean((sharded(params, microbatch["x"]) - microbatch["y"]) ** 2)

    check(partial(sgd_step, schedule=schedule, loss=loss), (weights(2), batch(3)), mesh)


def test_a_backward_that_splits_no_shard_map_in_a_scan() -> None:
    mesh = make_mesh(2, data=2)

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) - jax.lax.pmean(x, "data")

    sharded = jax.shard_map(layer, mesh=mesh.jax_mesh, in_specs=(P("data"), P()), out_specs=P("data"))

    def program(unroll: bool) -> Any:
        def loss(params: Any, microbatch: Any) -> Any:
            x = microbatch["x"]
            for w in params:
                scan = jax.lax.scan(lambda x, _, w=w: (sharded(x, w), None), x, None, 2, unroll=unroll)
                x = jaxpp.mark_stage_end(scan[0])
            return jnp.mean((x - microbatch["y"]) ** 2)

        step = partial(sgd_step, schedule=jaxpp.ZeroBubble(2), loss=loss)
        return lowered(step, (weights(2), batch(2)), mesh).program()

    with pytest.raises(PassError, match=r"shard_map makes .*\n  unroll the loop that is in it or around it, or"):
        program(unroll=False)
    assert len(program(unroll=True).peak_bytes) == 2


def cast_layers(params: Any, x: jax.Array, sharded: Any = lambda layer: layer) -> jax.Array:
    """Layers that cast their weights first: each cast has to be in the stage of its layer."""

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return x + jax.lax.psum(jnp.tanh(x @ w.astype(jnp.bfloat16).astype(x.dtype)), "model") / 2

    for w in params:
        x = jaxpp.mark_stage_end(sharded(layer)(w, x))
    return x


def test_stages_inside_a_shard_map_are_those_around_several() -> None:
    """The weights of each stage are on its mesh, and no more is sent than where each layer is a `shard_map`."""
    mesh = make_mesh(3, model=2)
    sharded = partial(jax.shard_map, mesh=mesh.jax_mesh, in_specs=(P(), P("data")), out_specs=P("data"))

    def placed(layers: Any) -> Any:
        def loss(params: Any, microbatch: Any) -> Any:
            return jnp.mean((layers(params, microbatch["x"]) - microbatch["y"]) ** 2)

        step = partial(sgd_step, schedule=jaxpp.Std1F1B(3), loss=loss)
        module = lowered(step, (weights(3), batch(3)), mesh).program().module
        with module.context:
            program = ProgramReader(module).program
        return parameters(program, {0, 1, 2}), [sent_bytes(program, number) for number in range(3)]

    inside = placed(sharded(cast_layers))
    assert inside == placed(partial(cast_layers, sharded=sharded))
    assert inside[0] == dict.fromkeys(range(3), 64)


@pytest.mark.parametrize("first", [P("data"), P(None, "data"), P(), None])
def test_the_first_call_decides_how_later_arguments_are_sharded(first: P | None) -> None:
    """Arguments that come otherwise are moved, and the numbers are the same."""
    mesh, function = make_mesh(2, data=2), partial(sgd_step, schedule=jaxpp.GPipe(2))

    def placed(spec: P | None) -> Any:
        wholes = [None if spec is None else NamedSharding(each, spec) for each in mesh.unstack]
        return [jax.device_put(w, whole) for w, whole in zip(weights(2), wholes, strict=True)], batch(2)

    step, expected = jaxpp.mpmd_jit_with_loop(function, mpmd_mesh=mesh), jax.jit(function)(weights(2), batch(2))
    assert_same(step(*placed(first)), expected)
    for later in (P(), P("data"), P(None, "data"), None):
        found = step(*placed(later))
        assert_same(found, expected)
        assert [w.sharding.spec for w in found[0]] == [first or P()] * 2
    assert "compiled for 1 kinds" in repr(step)


def test_sharded_arguments_keep_their_sharding() -> None:
    mesh = make_mesh(2, data=2)
    params = [jax.device_put(w, NamedSharding(mesh.unstack[1], P("data"))) for w in weights(2)]
    found, _ = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=mesh)(params, batch(3))
    assert_same(found, jax.jit(sgd_step)(weights(2), batch(3))[0])
    assert [w.sharding for w in found] == [NamedSharding(sub, P("data")) for sub in mesh.unstack]
