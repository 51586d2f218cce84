"""What differential testing once found wrong, or without a helpful message."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, check, feed_state, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(3)
mark = jaxpp.mark_stage_end


# test_loops.py
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_treduce_with_a_schedule_by_name(schedule: str) -> None:
    check(sgd_step, (weights(3), batch(4)), make_mesh(3), schedule=schedule)


# test_sharding.py
def test_explicit_axes() -> None:
    mesh = make_mesh(2, data=2, model=2, explicit=True)

    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for up, down in params:
            hidden = jnp.tanh(jnp.einsum("bi,ij->bj", x, up))
            x = mark(jnp.einsum("bi,ij->bj", hidden, down, out_sharding=P("data", None)))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2), loss=of_one)
    keys = jax.random.split(jax.random.key(0), (2, 2))
    params = [(jax.random.normal(a, (8, 16)) / 3, jax.random.normal(b, (16, 8)) / 4) for a, b in keys]
    specs = ([(P(None, "model"), P("model", None))] * 2, P(None, "data"))

    def reference(*args: Any) -> Any:
        with jax.set_mesh(mesh.lowering_mesh()):
            return jax.jit(step)(*(jax.device_put(arg, spec) for arg, spec in zip(args, specs, strict=True)))

    check(step, (params, batch(3)), mesh, in_shardings=specs, reference=reference, steps=2, feed=feed_state)


# test_sharding.py
def test_explicit_axes_data_parallel() -> None:
    mesh = make_mesh(2, data=2, explicit=True)

    def reference(params: Any, batch: Any) -> Any:
        with jax.set_mesh(mesh.lowering_mesh()):
            return jax.jit(sgd_step)(jax.device_put(params, P()), jax.device_put(batch, P(None, "data")))

    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2))
    check(step, (weights(2), batch(3)), mesh, in_shardings=(P(), P(None, "data")), reference=reference)


# test_sharding.py
def test_constraint_over_the_lowering_mesh() -> None:
    mesh = make_mesh(2, data=2)

    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = mark(jax.lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh.lowering_mesh(), P("data"))))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2), loss=of_one)
    check(step, (weights(2), batch(3)), mesh, reference=jax.jit(sgd_step))


# test_calls.py
def test_static_arguments_of_other_types_are_others() -> None:
    def step(params: Any, batch: Any, n: Any) -> Any:
        return *sgd_step(params, batch, schedule=jaxpp.GPipe(1)), jnp.asarray(n)

    ours = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(1), static_argnums=2)
    plain = jax.jit(step, static_argnums=2)
    for n in (1, 1.0, True):
        assert_same(ours(weights(1), batch(2), n), plain(weights(1), batch(2), n))


# test_calls.py
def test_method() -> None:
    class Trainer:
        scale = 2.0

        @partial(jaxpp.mpmd_jit_with_loop, mpmd_mesh=make_mesh(1), static_argnums=0)
        def step(self, params: Any, batch: Any) -> Any:
            params, losses = sgd_step(params, batch, schedule=jaxpp.GPipe(1))
            return params, losses * self.scale

    params, losses = sgd_step(weights(1), batch(2))
    trainer: Any = Trainer()
    assert_same(trainer.step(weights(1), batch(2)), (params, losses * 2))


# test_bad_input.py
def test_a_mesh_that_is_no_mpmd_mesh() -> None:
    mesh: Any = make_mesh(3).jax_mesh
    with pytest.raises(TypeError, match="MpmdMesh"):
        jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=mesh)(weights(3), batch(2))


# test_bad_input.py
def test_schedule_class_instead_of_a_schedule() -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B), mpmd_mesh=make_mesh(3))
    with pytest.raises((TypeError, ValueError, jaxpp.PassError), match=r"Std1F1B.*(stages|schedule)"):
        step(weights(3), batch(2))


# test_bad_input.py
def test_inside_jax_jit() -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=make_mesh(3))
    with pytest.raises((TypeError, ValueError, jaxpp.PassError), match="mpmd_jit_with_loop"):
        jax.jit(step)(weights(3), batch(2))


# test_models.py
CAPTURES = {
    "cond": lambda early, value: jax.lax.cond(value > 0.5, lambda: jnp.sum(early) * value, lambda: early[0, 0]),
    "scan": lambda early, value: jax.lax.scan(
        lambda c, x: (c + jnp.sum(early @ early.T) * x, None), value, jnp.arange(3.0)
    )[0],
    "while": lambda early, value: jax.lax.while_loop(lambda c: c < 10, lambda c: c + 1 + jnp.sum(early**2), value),
}


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_value_that_a_region_captures(capture: str) -> None:
    """No stage needs it: it is computed with its first user, which has it in a region, and used by another directly."""

    def step(params: Any, batch: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(params, microbatch)
            early = jnp.tanh(microbatch["x"])
            gradients = [gradients[0] * jnp.sum(early), *gradients[1:]]
            return value, gradients, CAPTURES[capture](early, value)

        operation = (jaxpp.Concat(), jaxpp.Add, jaxpp.Add)
        return jaxpp.treduce(of_one, batch, schedule=SCHEDULE, operation=operation)

    check(step, (weights(3), batch(4)), make_mesh(3))


def test_a_callback_outside_of_the_loop_runs_once() -> None:
    calls: list[int] = []

    def count(value: Any) -> Any:
        calls.append(int(value))
        return np.int32(2)

    def step(params: Any, batch: Any, n: Any) -> Any:
        twice = jax.experimental.io_callback(count, jax.ShapeDtypeStruct((), jnp.int32), n)
        jax.experimental.io_callback(count, jax.ShapeDtypeStruct((), jnp.int32), n + 1)
        losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch, schedule=SCHEDULE)
        return [w - 0.1 * twice * g for w, g in zip(params, gradients, strict=True)], losses

    found = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3))(weights(3), batch(2), jnp.int32(7))
    jax.block_until_ready(found)
    assert sorted(calls) == [7, 8]
    assert_same(found, jax.jit(step)(weights(3), batch(2), jnp.int32(7)))


# test_models.py
def test_a_long_elementwise_chain() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            y = jnp.tanh(x @ w)
            x = y
            for _ in range(40):
                y = y + 0.01 * x
            x = mark(y)
        return jnp.mean((x - microbatch["y"]) ** 2)

    check(partial(sgd_step, schedule=jaxpp.Std1F1B(2), loss=of_one), (weights(2), batch(2)), make_mesh(2))
