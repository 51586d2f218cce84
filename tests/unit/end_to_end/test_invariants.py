"""What the microbatches have in common is computed once per step, with the numbers of plain `jax.jit`."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from unit.end_to_end.compare import assert_same, batch, check, feed_state, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp

SCHEDULE = jaxpp.Std1F1B(2)
mark = jaxpp.mark_stage_end

# jax.jit fuses casts, and so keeps more bits than bfloat16 has between some of them; the pipeline's tasks round there.
# Half a unit in the last place of bfloat16 is 2**-9, about 2e-3; a step goes through a few of them.
BFLOAT16 = 1e-2


def casting_loss(params: Any, microbatch: Any, block: Callable[..., Any] = lambda w, x: jnp.tanh(x @ w)) -> Any:
    """Weights and activations in bfloat16, the loss in float32."""
    x = microbatch["x"].astype(jnp.bfloat16)
    for w in params:
        x = mark(block(w.astype(jnp.bfloat16), x))
    return jnp.mean((x.astype(jnp.float32) - microbatch["y"]) ** 2)


def casts(program: str, function: str) -> int:
    """How many casts of an 8x8 float32 matrix to bfloat16 stand in the functions of this name."""
    bodies = re.findall(rf"func.func private @{function}_\d+\(.*?\n  }}", program, re.DOTALL)
    assert bodies
    return sum(body.count("(tensor<8x8xf32>) -> tensor<8x8xbf16>") for body in bodies)


def test_casts_of_weights_leave_the_loop() -> None:
    step = partial(sgd_step, schedule=SCHEDULE, loss=casting_loss)
    args = weights(2), batch(4)
    program = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2)).lower(*args).program().as_text()
    assert [casts(program, name) for name in ("before", "forward", "backward")] == [2, 0, 0]
    found, _ = check(step, args, make_mesh(2), steps=2, feed=feed_state, tolerance=BFLOAT16)
    assert {w.dtype for w in found} == {jnp.dtype("float32")}


def test_the_accumulated_gradient_of_a_cast_weight_is_float32() -> None:
    """Sums of 64 microbatches: in bfloat16 they would be off by far more than the gradients are."""

    def step(params: Any, batch: Any) -> Any:
        one = partial(jax.grad(casting_loss), params)
        return jaxpp.treduce(one, batch, schedule=SCHEDULE, operation=jaxpp.Add)

    args = weights(2), batch(64)
    found = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))(*args)
    # Rounding each task as the pipeline does: each microbatch by itself, summed in float64.
    one = jax.jit(jax.grad(casting_loss), compiler_options={"xla_allow_excess_precision": False})
    each = [one(args[0], {name: x[k] for name, x in args[1].items()}) for k in range(64)]
    exact = jax.tree.map(lambda *gs: sum(g.astype("float64") for g in map(jax.device_get, gs)), *each)
    assert_same(found, [jnp.asarray(g, jnp.float32) for g in exact], tolerance=2e-3)
    assert {g.dtype for g in found} == {jnp.dtype("float32")}


def test_checkpoint_shares_the_cast_with_the_forward() -> None:
    @jax.checkpoint
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.sin(x @ w.astype(jnp.bfloat16)))

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"].astype(jnp.bfloat16)
        for w in params:
            x = mark(block(w, x))
        return jnp.mean((x.astype(jnp.float32) - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    args = weights(2), batch(4)
    program = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2)).lower(*args).program().as_text()
    assert [casts(program, name) for name in ("before", "forward", "backward")] == [2, 0, 0]
    check(step, args, make_mesh(2), tolerance=BFLOAT16)


@pytest.mark.parametrize("schedule", [jaxpp.Std1F1B(2), jaxpp.GPipe(2)], ids=str)
def test_adapters_are_multiplied_once(schedule: Any) -> None:
    """A low-rank update of each weight: `w + a @ b`, with gradients for `a` and `b`."""
    keys = jax.random.split(jax.random.key(7), 4)
    adapters = [(jax.random.normal(keys[k], (8, 2)), jax.random.normal(keys[k + 2], (2, 8))) for k in range(2)]
    frozen = weights(2)

    def loss(adapters: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w, (a, b) in zip(frozen, adapters, strict=True):
            x = mark(jnp.tanh(x @ (w + a @ b)))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=schedule, loss=loss)
    args = adapters, batch(4)
    program = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2)).lower(*args).program().as_text()
    before = program[program.index("func.func private @before_") :]
    assert before.count("(tensor<8x2xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>") == 2
    assert program.count("(tensor<8x2xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>") == 2
    check(step, args, make_mesh(2), steps=2, feed=feed_state)


def test_tied_weight_cast_for_two_meshes() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        table = params[0].astype(jnp.bfloat16)
        x = mark(jnp.tanh(microbatch["x"].astype(jnp.bfloat16) @ table))
        x = mark(jnp.tanh(x @ params[1].astype(jnp.bfloat16)) @ table.T)
        return jnp.mean((x.astype(jnp.float32) - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=SCHEDULE, loss=loss)
    check(step, (weights(2), batch(4)), make_mesh(2), steps=2, feed=feed_state, tolerance=BFLOAT16)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_each_microbatch_has_its_side_effect(microbatches: int, capfd: pytest.CaptureFixture[str]) -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = mark(jnp.tanh(microbatch["x"] @ params[0]))
        jax.debug.print("norm {}", jnp.linalg.norm(params[1]))
        return jnp.mean((mark(x @ params[1]) - microbatch["y"]) ** 2)

    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE, loss=loss), mpmd_mesh=make_mesh(2))
    jax.block_until_ready(step(weights(2), batch(microbatches)))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("norm ") == microbatches
