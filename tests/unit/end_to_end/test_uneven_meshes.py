"""Stages on submeshes of different size or sharding: what crosses is resharded, and nothing else is different."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, lowered, make_mesh, sgd_step, weights
from unit.end_to_end.everywhere import gradient_step
from unit.end_to_end.test_stacked_layers import by_stage, stacked
from unit.end_to_end.test_stacks_on_some_meshes import run
from unit.end_to_end.transfers import sends

import jaxpp.api as jaxpp

AXES = ("data", "model")


def uneven(*shapes: tuple[int, int]) -> jaxpp.MpmdMesh:
    """A mesh of each of these (data, model) shapes."""
    devices = iter(jax.devices())
    return jaxpp.MpmdMesh.of(
        [Mesh(np.array([next(devices) for _ in range(a * b)]).reshape(a, b), AXES) for a, b in shapes]
    )


def parameters(stages: int) -> Any:
    """An up and a down projection per stage, a matrix that the first and the last stage share."""
    keys = jax.random.split(jax.random.key(0), (stages + 1, 2))
    layers = [(jax.random.normal(a, (8, 24)) / 3, jax.random.normal(b, (24, 8)) / 5) for a, b in keys[1:]]
    return layers, jax.random.normal(keys[0, 0], (8, 8)) / 3


def parallel_loss(mesh: jaxpp.MpmdMesh, params: Any, microbatch: Any) -> Any:
    """Data and tensor parallel stages, by constraints."""

    def sharded(x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh.jax_mesh, P(*spec)))

    layers, tied = params
    x = sharded(microbatch["x"] @ tied, "data")
    for up, down in layers:
        x = jaxpp.mark_stage_end(x + sharded(jnp.tanh(x @ up), "data", "model") @ down)
    return jnp.mean((x @ tied.T - microbatch["y"]) ** 2)


def adamw_step(loss: Any, schedule: Any, state: Any, batch: Any) -> Any:
    params, moments = state
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2))
    gradient = partial(jax.value_and_grad(loss), params)
    losses, gradients = jaxpp.treduce(gradient, batch, schedule, operation=(jaxpp.Concat(), jaxpp.Add))
    updates, moments = optimizer.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), losses


@pytest.mark.parametrize(
    ("shapes", "schedule", "stages"),
    [
        ([(1, 1), (2, 2)], jaxpp.Std1F1B(2), 2),
        ([(4, 1), (1, 3)], jaxpp.Interleaved1F1B(4, 2), 4),
        ([(2, 1), (1, 1), (1, 2)], jaxpp.ZeroBubble(3), 3),
    ],
    ids=["grows", "other axes", "three sizes"],
)
def test_training(shapes: Any, schedule: Any, stages: int) -> None:
    mesh = uneven(*shapes)
    params = parameters(stages)
    state = params, optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)).init(params)
    step = partial(adamw_step, partial(parallel_loss, mesh), schedule)
    (found, _), _ = check(step, (state, batch(4, rows=12)), mesh, steps=2, feed=feed_state, donate_argnums=0)
    layers, tied = found
    assert len(tied.sharding.device_set) == sum(a * b for a, b in (shapes[0], shapes[-1]))
    assert tied.sharding.is_fully_replicated
    for number, (up, _) in enumerate(layers):
        sharding = up.sharding
        _, model = shapes[number % len(shapes)]
        assert sharding.shard_shape(up.shape) == (8, 24 // model)


def test_weights_stay_sharded_by_the_sizes_of_their_mesh() -> None:
    mesh = uneven((1, 1), (2, 1), (4, 1))
    step = partial(sgd_step, schedule=jaxpp.Std1F1B(3))
    specs = (P("data"), P(None, "data"))
    found, _ = check(step, (weights(3), batch(4)), mesh, in_shardings=specs, steps=2, feed=feed_state)
    assert [w.sharding.shard_shape(w.shape) for w in found] == [(8, 8), (4, 8), (2, 8)]
    assert [w.sharding.mesh for w in found] == mesh.unstack


def test_what_does_not_divide_is_cut_less() -> None:
    """4 rows on 4 devices, and on 3: there each device has all of them."""
    mesh = uneven((4, 1), (3, 1))
    check(
        partial(sgd_step, schedule=jaxpp.Std1F1B(2)), (weights(2), batch(4)), mesh, in_shardings=(P(), P(None, "data"))
    )


@pytest.mark.parametrize(("shapes", "delayed"), [([(1, 1), (4, 1)], False), ([(4, 1), (4, 1)], True)])
def test_sums_are_not_delayed_where_they_would_take_more_memory(shapes: Any, delayed: bool) -> None:
    """One summand per device of the largest mesh would be four on the one device of the smallest."""
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=jaxpp.Std1F1B(2)), mpmd_mesh=uneven(*shapes), in_shardings=(P(), P(None, "data"))
    )
    text = step.lower(weights(2), batch(4)).program().as_text()
    assert ("tensor<4x8x8xf32>" in text) == delayed


def test_trace() -> None:
    mesh = uneven((1, 1), (2, 1))
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=jaxpp.Std1F1B(2)), mpmd_mesh=mesh, in_shardings=(P(), P(None, "data"))
    )
    compiled = step.compile(weights(2), batch(4))
    (_, losses), events = compiled.trace(weights(2), batch(4))
    np.testing.assert_allclose(losses, sgd_step(weights(2), batch(4))[1], rtol=1e-5)
    assert {event.mesh for event in events} == {0, 1}


def test_collectives_over_one_axis_where_another_differs() -> None:
    """They name devices by number."""
    mesh = uneven((2, 2), (1, 2))

    def loss(params: Any, microbatch: Any) -> Any:
        def product(x: Any, w: Any) -> Any:
            return jax.lax.psum(x @ w, "model")

        x = microbatch["x"]
        for w in params:
            over = jax.shard_map(
                product,
                mesh=mesh.jax_mesh,
                in_specs=(P(None, "model"), P("model")),
                out_specs=P(),
                axis_names={"model"},
            )
            x = jaxpp.mark_stage_end(over(x, w))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2)), mpmd_mesh=mesh)
    with pytest.raises(ValueError, match=r"py:\d+:\d+: error: a shard_map with collectives was traced .* has 2 dev"):
        step(weights(2), batch(4))


def test_under_a_mesh_that_the_caller_has_set() -> None:
    mesh = uneven((2, 1), (1, 1))
    with jax.set_mesh(mesh.jax_mesh):
        step = partial(sgd_step, schedule=jaxpp.Std1F1B(2))
        pipelined = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh, in_shardings=(P(), P(None, "data")))
        found, _ = pipelined(weights(2), batch(4))
    expected, _ = jax.jit(step)(weights(2), batch(4))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_weights_that_lie_on_a_mesh_whose_size_divides_them() -> None:
    """The sizes of the mesh that functions are traced for don't: that is no reason to refuse them."""
    mesh = uneven((2, 1), (3, 1))
    params = [jax.device_put(weights(2)[0], NamedSharding(mesh.unstack[0], P("data"))), weights(2)[1]]
    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2))
    found, _ = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh)(params, batch(4))
    expected, _ = jax.jit(step)(weights(2), batch(4))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)


def test_input_shardings_must_divide_by_the_largest_sizes() -> None:
    mesh = uneven((2, 1), (3, 1))
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=jaxpp.Std1F1B(2)), mpmd_mesh=mesh, in_shardings=(P("data"), P())
    )
    with pytest.raises(ValueError, match=r"into 3 on the mesh .*, which has each axis in its largest size; shape"):
        step(weights(2), batch(4))


@pytest.mark.parametrize("file", [__file__, "<ipython-input-3-a1b2>"])
def test_shard_map_over_an_axis_of_two_sizes(file: str) -> None:
    mesh = uneven((1, 1), (2, 1))
    sharded = jax.shard_map(jnp.matmul, mesh=mesh.jax_mesh, in_specs=(P("data"), P()), out_specs=P("data"))
    names: dict[str, Any] = {"sharded": sharded}
    exec(compile("def over(x, w):\n    return sharded(x, w)\n", file, "exec"), names)  # a cell of a notebook

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jaxpp.mark_stage_end(names["over"](x, w))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2)), mpmd_mesh=mesh)
    with pytest.raises(
        ValueError,
        match=rf"^{re.escape(file)}:2:\d+: error: a shard_map over 'data' was traced for a mesh where 'data' "
        r"has 2 devices; @\w+ is to run on one where it has 1; give the meshes of a shard_map one size$",
    ):
        step(weights(2), batch(4))


PLAIN = jax.jit(partial(sgd_step, marks=1))
SPECS = [P("data"), P("data", "model"), P(), P(None, "data")]


@pytest.mark.parametrize("behind", SPECS, ids=str)
@pytest.mark.parametrize("before", SPECS, ids=str)
def test_the_smaller_shards_cross(before: P, behind: P) -> None:
    mesh = make_mesh(2, data=2, model=2)

    def sharded(x: Any, spec: P) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh.jax_mesh, spec))

    def loss(params: Any, microbatch: Any) -> Any:
        first, second = params
        x = jaxpp.mark_stage_end(sharded(jnp.tanh(microbatch["x"] @ first), before))
        return jnp.mean((jnp.tanh(sharded(x, behind) @ second) - microbatch["y"]) ** 2)

    step = partial(sgd_step, loss=loss, schedule=jaxpp.Std1F1B(2))
    shards = [len(re.findall("'", str(spec))) // 2 for spec in (before, behind)]
    text = lowered(step, (weights(2), batch(2)), mesh).program()
    found = [each for each in sends(text) if each.microbatch >= 0]
    assert len(found) == 4
    with text.module.context:
        receives = re.findall(r"stablehlo\.recv.*per_value<\[<@mesh, \[(.*?)\]>.*tensor<4x8xf32>", text.as_text())
    assert [each.count('"') // 2 for each in receives] == [max(shards)] * 4
    if before != behind:
        check(step, (weights(2), batch(2)), mesh, reference=PLAIN)


def test_stacked_layers_stay_whole() -> None:
    """No `jax.Array` has a block on one device and the other on two."""
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=by_stage)
    (params, *_) = check(step, (stacked(), batch(4)), uneven((1, 1), (2, 1)), steps=2, feed=feed_state)
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(params)} == {P()}


def test_stacked_layers_of_meshes_that_are_alike_are_split() -> None:
    """The embedding has a smaller mesh of its own."""
    mesh = uneven((1, 1), (2, 1), (2, 1))

    def loss(params: Any, microbatch: Any) -> Any:
        x = jaxpp.mark_stage_end(microbatch["x"] @ params["embedding"])
        return jnp.mean((run(x, params["layers"], 2) - microbatch["y"]) ** 2)

    params = {"embedding": weights(1)[0], "layers": stacked()}
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(3), loss=loss)
    (params, *_) = check(step, (params, batch(4)), mesh, steps=2, feed=feed_state)
    for leaf in jax.tree.leaves(params["layers"]):
        assert leaf.sharding.shard_shape(leaf.shape) == (2, *leaf.shape[1:])
        assert leaf.sharding.device_set == {*mesh.unstack[1].devices.flat, *mesh.unstack[2].devices.flat}
