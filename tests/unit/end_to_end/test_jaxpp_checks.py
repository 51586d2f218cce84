"""What the public tests of NVIDIA's JaxPP check, by `jaxpp.api` and with models of our own.

docs/jaxpp-compatibility.md names our test for each of their files.
"""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, make_mesh, weights

import jaxpp.api as jaxpp
from jaxpp.experimental import mpmd


def outputs(layers: Any, x: Any, *, marks_last: bool = False) -> Any:
    """The result of layers, with a mark after each of them but perhaps the last, and what the first one takes."""
    first = x
    for number, (w, bias) in enumerate(layers):
        x = jax.nn.relu(x @ w + bias)
        x = jaxpp.pipeline_enter_stage(x, f"layer {number}") if marks_last or number < len(layers) - 1 else x
    return jax.nn.log_softmax(x), first


def loss(layers: Any, microbatch: Any) -> Any:
    """The loss, and the inputs, which pass through."""
    found, first = outputs(layers, microbatch["x"])
    return jnp.mean((found - microbatch["y"]) ** 2), (found, first, microbatch["y"])


def train_step(layers: Any, batch: Any, *, schedule: Any, is_updated: bool = True) -> Any:
    """Results of the loop, new parameters or gradients, a constant, and an argument as it is."""
    gradient = partial(jax.value_and_grad(loss, has_aux=True), layers)
    results, gradients = jaxpp.treduce(gradient, batch, schedule=schedule)
    updated = jax.tree.map(lambda w, g: w - 0.01 * g, layers, gradients)
    return results, updated if is_updated else gradients, 5, batch["x"]


def layers_of(count: int) -> Any:
    return [(w, w[0] / 8) for w in weights(count)]


@pytest.mark.parametrize(
    ("schedule", "meshes", "microbatches", "is_updated"),
    [
        (jaxpp.Std1F1B(num_stages=1), 1, 4, True),
        (jaxpp.Std1F1B(num_stages=2), 2, 4, True),
        (jaxpp.Eager1F1B(num_stages=3), 3, 5, True),
        (jaxpp.Eager1F1B(num_stages=3), 3, 5, False),  # nothing after the loop
        (jaxpp.Interleaved1F1B(num_stages=1, mpmd_dim=1), 1, 1, True),
        (jaxpp.Interleaved1F1B(num_stages=8, mpmd_dim=4), 4, 1, True),
        (jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2), 2, 12, True),
        (jaxpp.ZeroBubble(num_stages=4), 4, 4, True),
        (jaxpp.ZeroBubble(num_stages=4), 4, 8, True),
        (jaxpp.DualPipeV(num_stages=6, mpmd_dim=3), 3, 6, True),
        (jaxpp.DualPipeV(num_stages=6, mpmd_dim=3), 3, 10, True),
    ],
)
def test_a_step_under_each_schedule(schedule: Any, meshes: int, microbatches: int, is_updated: bool) -> None:
    step = partial(train_step, schedule=schedule, is_updated=is_updated)
    arguments = layers_of(schedule.num_stages), batch(microbatches)
    found = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(meshes))(*arguments)
    assert_same(found, jax.jit(step)(*arguments))
    (_, (_, first, targets)), _, constant, passed = found
    assert int(constant) == 5
    for array, other in ((first, "x"), (targets, "y"), (passed, "x")):
        np.testing.assert_array_equal(array, arguments[1][other])


@pytest.mark.parametrize(
    ("schedule", "microbatches"),
    [(jaxpp.Interleaved1F1B(num_stages=48, mpmd_dim=8), 64), (jaxpp.DualPipeV(num_stages=16, mpmd_dim=8), 18)],
)
def test_a_large_step_is_made(schedule: Any, microbatches: int) -> None:
    """Its program is proven, and runs the tasks of the schedule."""
    lowered = jaxpp.mpmd_jit_with_loop(partial(train_step, schedule=schedule), mpmd_mesh=make_mesh(8)).lower(
        layers_of(schedule.num_stages), batch(microbatches)
    )
    assert lowered.program().schedule == str(schedule.build(microbatches))


def of_an_early_layer(layers: Any, x: Any) -> Any:
    found, first = outputs(layers, x)
    return found, first + layers[1][1]


def of_a_condition(layers: Any, x: Any) -> Any:
    """What to compute from an early value follows from the last one."""
    found, first = outputs(layers, x)
    return jax.lax.cond((found < 0).any(), lambda: first, lambda: 2 * first) + layers[0][1]


def plus_a_parameter(layers: Any, x: Any) -> Any:
    return outputs(layers, x)[0] + layers[1][1]


def of_as_many_marks_as_stages(layers: Any, x: Any) -> Any:
    return outputs(layers, x, marks_last=True)[0] + layers[1][1]


@pytest.mark.parametrize("function", [plus_a_parameter, of_an_early_layer, of_a_condition, of_as_many_marks_as_stages])
def test_inference(function: Any) -> None:
    arguments = layers_of(4), batch(1)["x"][0]
    run = jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=make_mesh(4), target_num_stages=4)
    assert_same(run(*arguments), jax.jit(function)(*arguments))


def test_views_with_a_deleted_array() -> None:
    """A view is deleted as soon as one of its arrays is, and deletes those that are left."""
    mesh = make_mesh(3, data=2)
    arrays = [jax.device_put(jnp.ones(4), NamedSharding(mesh.unstack[k], P("data"))) for k in (0, 2)]
    view = jaxpp.MpmdArray(arrays, jaxpp.MpmdSharding(mesh, {0, 2}, P("data")))
    arrays[0].delete()
    assert view.is_deleted()
    view.delete()
    view.delete()
    assert arrays[1].is_deleted()


def test_a_sum_over_meshes_within_the_mesh_of_one_of_them() -> None:
    mesh = make_mesh(3, data=2)
    terms = [jax.device_put(jnp.float32(3 + k), NamedSharding(mesh.unstack[k], P())) for k in (0, 1)]
    with mesh, jax.set_mesh(mesh.unstack[0]):
        assert float(jaxpp.cross_mpmd_all_reduce(*terms)) == 7


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 4, 2)], ids=["the same mesh", "another mesh"])
@pytest.mark.parametrize("spec", [P(("mpmd", "data"), None), P(None, ("model", "mpmd")), P("model", "data")])
def test_resharding_of_arrays_over_all_axes(spec: Any, sizes: tuple[int, ...]) -> None:
    """The mesh of a stage keeps the other axes of the array."""
    mesh, numbers = make_mesh(2, data=2, model=2), np.arange(128.0, dtype=np.float32).reshape(8, 16)
    before = NamedSharding(Mesh(np.reshape(jax.devices()[:8], sizes), ("mpmd", "data", "model")), spec)
    wanted = jaxpp.MpmdSharding(mesh, {0}, spec)
    (placed,) = jaxpp.spmd_to_mpmd_reshard(mesh, [jax.device_put(numbers, before)], [wanted])
    assert placed.sharding == wanted.sharding
    np.testing.assert_array_equal(placed, numbers)
    after = NamedSharding(mesh.jax_mesh, spec)
    (back,) = jaxpp.mpmd_to_spmd_reshard(mesh, [placed], [after])
    assert back.sharding == after
    np.testing.assert_array_equal(back, numbers)


def test_transfers_both_ways_at_once_and_on() -> None:
    """Two transfers of a value are done in the other order. A sent value is used meanwhile, a received one sent on."""
    mesh = make_mesh(3)
    there = [NamedSharding(each, P()) for each in mesh.unstack]

    def step(x: Any, y: Any) -> Any:
        swapped = mpmd.transfer((x, y), out_shardings=(there[1], there[0])).done()
        made = mpmd.task(jnp.sin, out_shardings=there[0])(x)
        first, second = (mpmd.transfer(made, out_shardings=there[1]) for _ in range(2))
        meanwhile = mpmd.task(jnp.cos, out_shardings=there[0])(made)
        later = mpmd.task(jnp.cos, out_shardings=P())(second.done())
        earlier = first.done()
        on = mpmd.transfer(earlier, out_shardings=there[2]).done()
        return swapped, meanwhile, later, mpmd.task(jnp.exp, out_shardings=P())(on)

    x, y = jnp.arange(8.0), jnp.ones(8)
    found = mpmd.mpmd(mesh, in_shardings=(there[0], there[1]))(step)(x, y)
    assert_same(found, ((x, y), jnp.cos(jnp.sin(x)), jnp.cos(jnp.sin(x)), jnp.exp(jnp.sin(x))))
    assert [each.sharding.mesh for each in jax.tree.leaves(found)] == [mesh.unstack[k] for k in (1, 0, 0, 1, 2)]
