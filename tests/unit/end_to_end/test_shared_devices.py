"""Several meshes on the same devices, such as a pipeline on one GPU: the results of plain `jax.jit`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from unit.end_to_end import transformer
from unit.end_to_end.compare import batch, check, feed_state, sgd_step, weights
from unit.end_to_end.everywhere import gradient_step
from unit.end_to_end.test_stacked_layers import by_stage, stacked
from unit.end_to_end.test_uneven_meshes import adamw_step, parallel_loss, parameters

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.errors import ProgramError


def device(number: int, count: int = 1) -> Mesh:
    """A mesh of `count` devices."""
    return Mesh(np.array(jax.devices()[number : number + count]).reshape(count, 1), ("data", "model"))


def test_all_stages_on_one_device() -> None:
    """Each weight is on two meshes, and so twice on the device."""
    schedule = schedules.make("chimera", meshes=2, microbatches=4)
    step = partial(transformer.train_step, schedule=schedule)
    mesh = jaxpp.MpmdMesh.of([device(1)] * 2)
    arguments = (transformer.state(schedule.stages), transformer.batch(4))
    found, *_ = check(step, arguments, mesh, steps=2, feed=feed_state, reference=transformer.PLAIN, donate_argnums=0)
    assert {where for leaf in jax.tree.leaves(found) for where in leaf.devices()} == {jax.devices()[1]}


@pytest.mark.parametrize(
    "meshes", [[device(0, 2)] * 3, [device(0), device(1), device(0)], [device(0, 2), device(2), device(0, 2)]]
)
def test_weights_that_several_meshes_update(meshes: list[Mesh]) -> None:
    """The first and the last stage each donate what they have of a shared matrix, and of its optimizer's state."""
    mesh = jaxpp.MpmdMesh.of(meshes)
    params = parameters(3)
    state = params, optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)).init(params)
    step = partial(adamw_step, partial(parallel_loss, mesh), jaxpp.Std1F1B(3))
    (found, _), _ = check(step, (state, batch(6, rows=12)), mesh, steps=3, feed=feed_state, donate_argnums=0)
    assert found[1].devices() == {*meshes[0].devices.flat}


@pytest.mark.parametrize("devices", [1, 2])
def test_stacked_layers_are_cut_and_put_together(devices: int) -> None:
    mesh = jaxpp.MpmdMesh.of([device(0, devices)] * 2)
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=by_stage)
    (params, *_) = check(step, (stacked(), batch(4)), mesh, steps=2, feed=feed_state, donate_argnums=0)
    assert {len(leaf.devices()) for leaf in jax.tree.leaves(params)} == {devices}


def test_stacked_layers_of_meshes_that_share_in_part() -> None:
    mesh = jaxpp.MpmdMesh.of([device(0), device(0), device(1), device(1)])
    step = jaxpp.mpmd_jit_with_loop(
        partial(gradient_step, schedule=jaxpp.Std1F1B(4), loss=partial(by_stage, stages=4)), mpmd_mesh=mesh
    )
    text = (
        "^meshes 0, 1, 2, 3 have a block each of stacked layers, and only some of them share devices: "
        "let all of them share these, or none$"
    )
    with pytest.raises(ProgramError, match=text):
        step(stacked(), batch(4))


def test_tasks_are_traced_and_debugged_as_anywhere() -> None:
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=jaxpp.Std1F1B(2)), mpmd_mesh=jaxpp.MpmdMesh.of([device(0)] * 2)
    )
    compiled = step.compile(weights(2), batch(4))
    (found, losses), events = compiled.trace(weights(2), batch(4))
    expected = jax.jit(sgd_step)(weights(2), batch(4))
    np.testing.assert_allclose(losses, expected[1], rtol=1e-5)
    np.testing.assert_allclose(found[0], expected[0][0], rtol=1e-5, atol=1e-6)
    assert {event.mesh for event in events} == {0, 1}


def test_an_evaluation_uses_what_the_training_left_there() -> None:
    mesh = jaxpp.MpmdMesh.of([device(0)] * 2)

    def forward(params: Any, x: Any) -> Any:
        for w in params:
            x = jaxpp.mark_stage_end(jnp.tanh(x @ w))
        return x

    trained, _ = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), mesh)(weights(2), batch(4))
    found = jaxpp.mpmd_jit_by_yield(forward, mesh)(trained, batch(4)["x"][0])
    np.testing.assert_allclose(found, forward_plain(trained, batch(4)["x"][0]), rtol=1e-5, atol=1e-6)


def forward_plain(params: Any, x: Any) -> Any:
    for w in params:
        x = jnp.tanh(x @ w)
    return x
