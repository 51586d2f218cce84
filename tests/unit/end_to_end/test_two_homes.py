"""Stages on several meshes, and microbatches in any order: whatever the step does with what it accumulates."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, layers, loss, make_mesh, sgd_step, weights
from unit.end_to_end.test_loops import scan_step

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules import Placement, Schedule, Task

CHIMERA = "chimera"


@pytest.mark.parametrize(("meshes", "microbatches"), [(2, 2), (4, 2), (4, 10)])
def test_few_and_many_microbatches(meshes: int, microbatches: int) -> None:
    step = partial(sgd_step, schedule=CHIMERA)
    check(step, (weights(meshes), batch(microbatches)), make_mesh(meshes), steps=2, feed=feed_state)


@pytest.mark.parametrize("order", [("mpmd", "data", "model"), ("data", "mpmd", "model")], ids="-".join)
def test_each_home_has_several_devices(order: tuple[str, ...]) -> None:
    mesh = make_mesh(2, data=2, model=2, order=order)
    shardings = (P(None, "model"), P(None, "data"))
    step = partial(sgd_step, schedule=CHIMERA)
    found, _ = check(
        step, (weights(2), batch(4)), mesh, in_shardings=shardings, steps=2, feed=feed_state, donate_argnums=0
    )
    assert all(w.sharding.spec == P(None, "model") and len(w.devices()) == 8 for w in found)


def test_explicit_axes() -> None:
    mesh = make_mesh(2, data=2, explicit=True)

    def reference(params: Any, batch: Any) -> Any:
        with jax.set_mesh(mesh.lowering_mesh()):
            return jax.jit(sgd_step)(jax.device_put(params, P()), jax.device_put(batch, P(None, "data")))

    step = partial(sgd_step, schedule=CHIMERA)
    check(step, (weights(2), batch(4)), mesh, in_shardings=(P(), P(None, "data")), reference=reference)


@pytest.mark.parametrize("data", [1, 2])
def test_every_operation_and_type(data: int) -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        y = layers(params, microbatch["x"])
        return jnp.mean((y - microbatch["y"]) ** 2), y

    def step(params: Any, batch: Any) -> Any:
        def one(microbatch: Any) -> Any:
            (value, y), gradients = jax.value_and_grad(of_one, has_aux=True)(params, microbatch)
            sums = (y + 1j * microbatch["y"], jnp.sum(y > 0))
            maxima = (y, (y > 0.5).any(), y.astype(jnp.bfloat16), jnp.int8(10 * y[0, 0]))
            return value, gradients, sums, maxima, (y, y, y)

        stacks = (jaxpp.Concat(0), jaxpp.Concat(1), jaxpp.Concat(-1))
        operation = (jaxpp.Concat(), jaxpp.Add, jaxpp.Add, jaxpp.Max, stacks)
        return jaxpp.treduce(one, batch, schedule=CHIMERA, operation=operation)

    check(step, (weights(2), batch(4)), make_mesh(2, data=data), in_shardings=(P(), P(None, "data")))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    check(partial(scan_step, reverse=reverse), (weights(2), batch(4)), make_mesh(2), schedule=CHIMERA)


def test_sums_that_start_from_an_argument() -> None:
    def step(total: Any, params: Any, batch: Any) -> Any:
        def accumulate(total: Any, microbatch: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(params, microbatch)
            return jax.tree.map(jnp.add, total, gradients), value

        return jax.lax.scan(accumulate, total, batch)

    check(step, (weights(2), weights(2), batch(4)), make_mesh(2), schedule=CHIMERA)


@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
def test_the_forward_and_the_backward_of_a_stage_add_to_one_sum(schedule: str) -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        hidden = jnp.tanh(microbatch["x"] @ params[0])
        x = layers(params[1:], jaxpp.mark_stage_end(hidden))
        return jnp.mean((x - microbatch["y"]) ** 2), hidden

    def step(params: Any, batch: Any) -> Any:
        def accumulate(carry: Any, microbatch: Any) -> Any:
            (value, hidden), gradients = jax.value_and_grad(of_one, has_aux=True)(params, microbatch)
            total, both, largest = carry
            both = (both + hidden.sum(0)) + gradients[0].sum(0)
            largest = jnp.maximum(jnp.maximum(largest, jnp.exp(hidden).max(0)), gradients[0].max(0))
            return (jax.tree.map(jnp.add, total, gradients), both, largest), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(accumulate, (zeros, jnp.zeros(8), jnp.zeros(8)), batch)

    check(step, (weights(2), batch(4)), make_mesh(2), schedule=schedule)


def test_optimizer_state_is_on_the_first_home() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-3))

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        one = partial(jax.value_and_grad(loss), params)
        losses, gradients = jaxpp.treduce(one, batch, schedule=CHIMERA)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), losses.mean()

    params = weights(4)
    args = ((params, optimizer.init(params)), batch(4))
    found, _ = check(step, args, make_mesh(4), steps=3, feed=feed_state, tolerance=1e-4, donate_argnums=0)
    adam = found[1][1][0]
    assert [[device.id for device in moment.devices()] for moment in adam.nu] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("backwards", [[3, 2, 1, 0], [2, 0, 3, 1]])
def test_microbatches_in_any_order(backwards: list[int]) -> None:
    order = [Task("forward", 0, k) for k in range(4)] + [Task("backward", 0, k) for k in backwards]
    rows = [[Task(task.kind, stage, task.microbatch) for task in order] for stage in range(3)]
    schedule = Schedule.of("any", Placement.linear(3), rows)
    check(partial(sgd_step, schedule=schedule), (weights(3), batch(4)), make_mesh(3), steps=2, feed=feed_state)


def test_forward_and_backward_on_different_homes() -> None:
    text = "schedule: odd\nplacement: 0+1 1+0\nmesh 0: 0F0 0F1 .   .   1B0 1B1 0B0\nmesh 1: .   .   1F0 1F1 .   0B1"
    step = partial(sgd_step, schedule=schedules.parse(text))
    check(step, (weights(2), batch(2)), make_mesh(2), steps=2, feed=feed_state)


@pytest.mark.parametrize("data", [1, 2])
def test_single_stages_of_microbatches_at_other_homes(data: int) -> None:
    """A long stage that is at home on two of three meshes: a search shares its microbatches out, unevenly."""
    start = schedules.make("1f1b", meshes=3, microbatches=6)
    start = Schedule.of("shared", Placement.of((0, 2), 1, (2, 0)), start.cells)
    costs = schedules.Costs(forward=[1, 1, 3], input_grad=[1, 1, 3], weight_grad=[1, 1, 3], hop=0.1)
    schedule = schedules.improve(start, costs, change=["homes"], seconds=0.3)
    counts = [sum(task.kind == "forward" for task in order if task.stage == 2) for order in schedule.orders]
    assert counts[0] > 0 < counts[2]
    mesh, shardings = make_mesh(3, data=data), (P(), P(None, "data"))
    step = partial(sgd_step, schedule=schedule)
    check(step, (weights(3), batch(6)), mesh, in_shardings=shardings, steps=2, feed=feed_state)


def test_forward_only() -> None:
    built = schedules.make(CHIMERA, meshes=2, microbatches=4)
    forward = [[task for task in row if task.kind == "forward"] for row in built.orders]
    schedule = Schedule.of("forward", built.placement, forward)

    def evaluate(params: Any, batch: Any) -> Any:
        outputs = partial(_outputs, params)
        return jaxpp.treduce(outputs, batch, schedule=schedule, operation=jaxpp.Concat)

    check(evaluate, (weights(2), batch(4)), make_mesh(2))


def _outputs(params: Any, microbatch: Any) -> Any:
    return layers(params, microbatch["x"])
