"""What a recompute keeps is the user's choice, and the numbers are those of a step that keeps everything."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.activations import peak_activations
from unit.end_to_end import transformer
from unit.end_to_end.compare import (
    assert_same,
    batch,
    check,
    feed_state,
    loss_with_callback,
    lowered,
    make_mesh,
    sgd_step,
    weights,
)

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.errors import PassError
from jaxpp.ir.program import Call, Program
from jaxpp.runtime import load

KEEPS = ["selective", 0.05, 0.3, {0: "selective", 2: 0.2}]


def program(step: Any, arguments: Any, meshes: int, **options: Any) -> tuple[Program, tuple[int, ...]]:
    """The program of a step, and the peak bytes of its meshes."""
    made = lowered(step, arguments, make_mesh(meshes), **options).program()
    return load(made.module), made.peak_bytes


def recomputed(program: Program) -> set[int | None]:
    return {
        each.stage
        for sequence in program.sequences
        for each in sequence
        if isinstance(each, Call) and each.kind == "recompute"
    }


@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_the_same_numbers(keep: Any) -> None:
    schedule = schedules.make("1f1b", meshes=3, microbatches=4)
    step = partial(transformer.train_step, schedule=schedule)
    arguments = (transformer.state(3), transformer.batch(4))
    check(step, arguments, make_mesh(3), steps=2, feed=feed_state, recompute=keep)


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_other_schedules(name: str) -> None:
    """Four stages each."""
    step = partial(transformer.train_step, schedule=schedules.make(name, meshes=2, microbatches=4))
    check(step, (transformer.state(4), transformer.batch(4)), make_mesh(2), recompute="selective")


def test_stages_of_several_devices() -> None:
    step = partial(transformer.train_step, schedule=schedules.make("1f1b", meshes=2, microbatches=4))
    shardings = (P(), P(None, "data"))
    arguments = (transformer.state(2), transformer.batch(4))
    check(step, arguments, make_mesh(2, data=2), in_shardings=shardings, recompute=0.1)


def test_random_numbers_and_checkpoints_of_the_user() -> None:
    """Dropout masks are made again from their keys; what is under `jax.checkpoint` stays in the backward."""

    def block(w: Any, x: Any, key: Any) -> Any:
        hidden = jnp.tanh(x @ w) @ w.T
        return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), jnp.sin(hidden), 0.0)

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x, key = microbatch["x"], jax.random.key(3)
        for stage, w in enumerate(params):
            key = jax.random.fold_in(key, stage)
            x = x + jax.checkpoint(block)(w, x, key)
            x = jaxpp.mark_stage_end(x + block(w, jnp.cos(x), jax.random.fold_in(key, 7)))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=schedules.make("gpipe", meshes=2, microbatches=3), loss=loss)
    arguments = (weights(2), batch(3))
    kept = lowered(step, arguments, make_mesh(2)).compile()(*arguments)
    for keep in ("inputs", "selective", 0.2):
        assert_same(check(step, arguments, make_mesh(2), recompute=keep), kept)


def test_more_flops_fewer_bytes() -> None:
    """All of it is in the verified program: the peak of the first mesh falls as its recompute may do more."""
    step = partial(transformer.train_step, schedule=schedules.make("1f1b", meshes=3, microbatches=4))
    arguments = (transformer.state(3), transformer.batch(4))
    peaks = [program(step, arguments, 3, recompute=keep)[1][0] for keep in (0, 0.02, 0.1, 0.4, 1)]
    assert peaks == sorted(peaks, reverse=True)
    # What takes no FLOP is made again even with 0, and is there beside what it is made of.
    plain = program(step, arguments, 3)[1][0]
    assert plain <= peaks[0] < 1.005 * plain
    assert peaks[-1] <= program(step, arguments, 3, recompute="inputs")[1][0] < peaks[1] < peaks[0]


def test_stages_that_wait_are_recomputed() -> None:
    """In 1F1B the last stage runs each backward right after its forward: there is nothing to gain."""
    step = partial(sgd_step, schedule=schedules.make("1f1b", meshes=3, microbatches=4))
    arguments = (weights(3), batch(4))
    assert recomputed(program(step, arguments, 3, recompute="inputs")[0]) == {0, 1}
    assert recomputed(program(step, arguments, 3, recompute={1: "inputs"})[0]) == {1}
    assert recomputed(program(step, arguments, 3)[0]) == set()


def test_a_schedule_with_recomputes_of_its_own() -> None:
    """What is kept is said about these; a stage that is named gets recomputes besides."""
    schedule = schedules.recompute(schedules.make("1f1b", meshes=3, microbatches=4), 1)
    step = partial(sgd_step, schedule=schedule)
    arguments = (weights(3), batch(4))
    assert recomputed(program(step, arguments, 3, recompute=1.0)[0]) == {1}
    assert recomputed(program(step, arguments, 3, recompute={0: "inputs"})[0]) == {0, 1}


def test_what_has_effects_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """With more than the inputs kept, the result of a callback is kept, and it runs once."""
    calls: list[int] = []

    def look_up(x: Any) -> Any:
        calls.append(1)
        return np.asarray(x) * 2

    loss = partial(loss_with_callback, look_up)
    step = partial(sgd_step, schedule=schedules.make("1f1b", meshes=2, microbatches=4), loss=loss)
    with pytest.raises(PassError, match=r"stage 0 can't be made again: .*\n.*keep more than the stage's inputs"):
        jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2), recompute="inputs").lower(weights(2), batch(4)).program()
    least = r"\.py:\d+:\d+: error: a forward can't keep as little as 16 bytes of a microbatch: 128 is the least\n"
    with pytest.raises(PassError, match=least):
        jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2), recompute="16B").lower(weights(2), batch(4)).program()
    compiled = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2), recompute=1.0)
    found = jax.block_until_ready(compiled(weights(2), batch(4)))
    assert len(calls) == 2 * 4
    assert_same(found, jax.jit(step)(weights(2), batch(4)))


def test_a_stage_that_is_not_there() -> None:
    step = partial(sgd_step, schedule=schedules.make("1f1b", meshes=2, microbatches=4))
    with pytest.raises(PassError, match="there is no stage 2 to recompute: the stages are 0 to 1"):
        program(step, (weights(2), batch(4)), 2, recompute={2: "inputs"})


def test_what_it_reads_is_offloaded() -> None:
    """Fewer bytes are on the devices than with a recompute alone, and on the host than with an offload alone."""
    keep, plain = "selective", schedules.make("gpipe", meshes=3, microbatches=4)
    arguments = (transformer.state(3), transformer.batch(4))
    moving = partial(transformer.train_step, schedule=schedules.offload(plain, 0, 1))
    check(moving, arguments, make_mesh(3), recompute=keep)
    both, again, moved = (
        lowered(step, arguments, make_mesh(3), recompute=each).program()
        for step, each in (
            (moving, keep),
            (partial(transformer.train_step, schedule=plain), keep),
            (moving, None),
        )
    )
    assert both.peak_bytes[1] < again.peak_bytes[1]
    hosts = [each.peak_host_bytes for each in (both, moved)]
    assert max(hosts[0]) < max(hosts[1])
    assert peak_activations(load(both.module)) == peak_activations(load(again.module))


def test_a_choice_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="recompute is 'all', expected 'inputs', 'selective', a share"):
        jaxpp.mpmd_jit_with_loop(sgd_step, mpmd_mesh=make_mesh(2), recompute="all")
