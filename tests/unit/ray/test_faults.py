"""Actors that are killed, stopped or fail, and a training that goes on."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from unit.ray import steps

import jaxpp

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("orbax.checkpoint", reason="orbax is not installed")

WATCHDOG = 3.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with jaxpp.ray.Cluster(actors=2, devices=2, watchdog=WATCHDOG) as cluster:
        yield cluster


def made_step(cluster: Any) -> Any:
    """The step over two meshes, which one actor can hold if there is no other."""
    return jaxpp.mpmd_jit_with_loop(steps.train_step, cluster.mesh((2,), ("mpmd",), "mpmd"), donate_argnums=0)


@pytest.fixture(scope="module")
def step(cluster: Any) -> Any:
    return made_step(cluster)


@pytest.mark.parametrize("where", ["in files", "in memory"])
def test_a_killed_actor_is_replaced_and_no_step_is_lost_or_made_twice(
    cluster: Any, step: Any, tmp_path: Path, where: str
) -> None:
    """Without the files the other actor goes on alone, until the one that was killed is back."""
    losses: dict[int, float] = {}
    actors: list[int] = []
    directory, every, victims = (tmp_path, 3, {4: 0, 7: 1}) if where == "in files" else (None, 1, {4: 0})

    def fewer(count: int) -> Any:
        with pytest.raises(RuntimeError, match="the step is for 2 actors, and 1 take part: make it anew, over a mesh"):
            step(steps.init(2), steps.batch(0))
        return made_step(cluster)

    def on_step(number: int, value: Any) -> None:
        losses[number] = float(value)
        actors.append(len(cluster.processes))
        if (victim := victims.pop(number, None)) is not None:
            os.kill(cluster.processes[victim], signal.SIGKILL)
        while number == 7 and not directory and not cluster.has_newcomers():
            time.sleep(0.05)

    weights = jaxpp.ray.train(
        cluster,
        step,
        steps.init(2),
        steps.batch,
        10,
        directory=directory,
        every=every,
        on_step=on_step,
        fewer=None if directory else fewer,
    )
    expected_weights, expected_losses = steps.expected(2, 10)
    assert not victims
    changes = [count for k, count in enumerate(actors) if not k or actors[k - 1] != count]
    assert changes == ([2] if directory else [2, 1, 2])
    assert directory or len(actors) <= 11  # one step at most is made again
    np.testing.assert_allclose([losses[number] for number in range(10)], expected_losses, rtol=1e-6)
    for found, wanted in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_dead_actor_is_an_error_within_seconds_that_names_its_mesh(cluster: Any, step: Any) -> None:
    with pytest.raises(ValueError, match=r"^least must be between 1 and the 2 actors of the cluster, not 3$"):
        jaxpp.ray.train(cluster, step, steps.init(2), steps.batch, 1, least=3)
    state, _ = step(steps.init(2), steps.batch(0))
    jax.block_until_ready(state)
    pid = cluster.processes[1]
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(jaxpp.ray.ActorError) as error:
        jax.block_until_ready(step(state, steps.batch(1)))
    assert time.monotonic() - start < 60, "a second where nothing else runs"
    assert f"actor 1 (mesh 1, process {pid} on " in str(error.value)
    assert "died" in str(error.value)
    with pytest.raises(jaxpp.ray.ActorError, match="died"):
        step(steps.init(2), steps.batch(1))
    assert cluster.recover() == [1]
    with pytest.raises(RuntimeError, match=r"`weights\[0\]` was lost when the cluster recovered: restore it"):
        step(state, steps.batch(1))


def test_a_frozen_actor_is_an_error_after_the_watchdog_time(cluster: Any, step: Any) -> None:
    state, _ = step(steps.init(2), steps.batch(0))
    jax.block_until_ready(state)
    pid = cluster.processes[0]
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(jaxpp.ray.ActorError) as error:
        jax.block_until_ready(step(state, steps.batch(1)))
    assert WATCHDOG <= time.monotonic() - start
    assert f"actor 0 (mesh 0, process {pid} on " in str(error.value)
    assert "gave no sign of life for 3 s" in str(error.value)
    assert "in receive on channel 0 on mesh 1" in str(error.value)
    assert cluster.recover() == [0]
    _, value = step(steps.init(2), steps.batch(0))
    np.testing.assert_allclose(float(value), steps.expected(2, 1)[1][0], rtol=1e-6)
