"""Schedules whose tasks are of slices of the sequence, on a decoder that hands keys and values from slice to slice."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end import decoder
from unit.end_to_end.compare import assert_same, check, feed_state, make_mesh, sgd_step, weights
from unit.end_to_end.compare import batch as rows

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.program import Call
from jaxpp.runtime import load
from jaxpp.schedules.memory import activations

AROUND = ("before", "after")


def made(name: str, meshes: int, microbatches: int = 4, slices: int = 3) -> schedules.Schedule:
    return schedules.make(name, meshes=meshes, microbatches=microbatches, slices=slices)


def lowered(schedule: schedules.Schedule, step: Callable[..., Any] = decoder.train_step) -> Any:
    function = partial(step, schedule=schedule, slices=schedule.slices)
    arguments = decoder.parameters(schedule.stages), decoder.batch(schedule.microbatches)
    return jaxpp.mpmd_jit_with_loop(function, mpmd_mesh=make_mesh(schedule.meshes)).lower(*arguments)


@pytest.mark.parametrize("name", decoder.SLICES)
def test_the_numbers_are_those_of_whole_sequences(name: str) -> None:
    """Loss and gradients, of the same function and of one slice, under plain `jax.jit`."""
    schedule = made(name, 2)
    arguments = decoder.parameters(schedule.stages), decoder.batch(4)
    found = check(partial(decoder.train_step, schedule=schedule), arguments, make_mesh(2), steps=2, feed=feed_state)
    whole = jax.jit(partial(decoder.train_step, slices=1))
    assert_same(found, whole(whole(*arguments)[0], arguments[1]))


def test_losses_are_equal_bit_for_bit() -> None:
    arguments = decoder.parameters(2), decoder.batch(4)
    step = partial(decoder.train_step, schedule=made("seq1f1b", 2))
    _, found = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2))(*arguments)
    _, expected = jax.jit(decoder.train_step)(*arguments)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", decoder.SLICES)
@pytest.mark.parametrize("slices", [2, 4])
def test_the_slices_of_a_stage_are_one_program(name: str, slices: int) -> None:
    schedule = made(name, 2, slices=slices)
    program = load(lowered(schedule).program().module)
    called = {
        (call.kind, call.stage, call.function)
        for line in program.sequences
        for call in line
        if isinstance(call, Call) and call.tasks
    }
    kinds = {task.kind for task in schedule}
    ending = ("forward", schedule.stages - 1, f"forward_{schedule.stages - 1}_end")
    assert ending in called
    assert sorted(each[:2] for each in called - {ending}) == sorted(
        (kind, stage) for kind in kinds for stage in range(schedule.stages)
    )


@pytest.mark.parametrize("name", decoder.SLICES)
def test_peaks_are_those_of_the_schedule(name: str) -> None:
    schedule = made(name, 4)
    program = load(lowered(schedule).program().module)
    assert list(map(int, peaks(program))) == activations(schedule)


def test_peaks_are_those_of_the_paper() -> None:
    p, m, n = 4, 4, 3
    program = load(lowered(made("seq1f1b", p, m, n)).program().module)
    assert [peak / n for peak in peaks(program)] == [min(m * n, p - i - 1 + n) / n for i in range(p)]


def peaks(program: Any) -> list[int]:
    from jaxpp.hlo_passes.program.liveness import peaks_of

    return [peak.activations for peak in peaks_of(program)]


def test_a_scan_of_the_users_that_sums_up_the_loss() -> None:
    step = partial(decoder.train_step, schedule=made("seq1f1b", 2), loss=decoder.plain_scan)
    check(step, (decoder.parameters(2), decoder.batch(4)), make_mesh(2))


def test_a_schedule_without_slices_runs_them_all_in_one_task() -> None:
    for schedule in (jaxpp.Std1F1B(2), jaxpp.ZeroBubble(2)):
        step = partial(decoder.train_step, schedule=schedule)
        check(step, (decoder.parameters(2), decoder.batch(3)), make_mesh(2))
