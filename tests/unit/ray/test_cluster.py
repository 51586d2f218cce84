"""A step on two actors: numbers, handles, what is refused, and actors that are killed, stopped or fail."""

import functools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import PartitionSpec
from unit.ray import steps

import jaxpp
from jaxpp.schedules.rewrites.tasks import insert

pytest.importorskip("ray", reason="Ray is not installed")

WATCHDOG = 2.0
"""Seconds after which a silent actor is frozen, in the test of one."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with jaxpp.ray.Cluster(actors=2, devices=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def step(cluster: Any) -> Any:
    """The step on two meshes, one per actor, of two devices each."""
    mesh = cluster.mesh((2, 2), ("mpmd", "data"), "mpmd")
    shardings = (PartitionSpec(), PartitionSpec(None, "data"))
    return jaxpp.mpmd_jit_with_loop(steps.train_step, mesh, in_shardings=shardings, donate_argnums=0)


def test_trains_as_jax_jit_does(step: Any) -> None:
    weights, losses = steps.init(2), list[Any]()
    for number in range(3):
        weights, value = step(weights, steps.batch(number))
        losses.append(value)
    expected_weights, expected_losses = steps.expected(2, 3)
    np.testing.assert_allclose(jax.device_get(losses), expected_losses, rtol=1e-6)
    for found, wanted in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_arrays_that_lie_in_columns(step: Any) -> None:
    """A layout of the driver's is no actor's; a step beside plain `jax.jit` too."""

    def turned(array: Any) -> jax.Array:
        array = jnp.asarray(array)
        return jax.device_put(array, Format(Layout(tuple(reversed(range(array.ndim)))), array.sharding))

    weights, batch = [turned(each) for each in steps.init(2)], turned(steps.batch(0))
    for found, wanted in zip(step(weights, batch)[0], steps.expected(2, 1)[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    assert jaxpp.compare(step, [turned(each) for each in steps.init(2)], batch).is_rounding


def test_weight_gradients_left_out(cluster: Any) -> None:
    mesh = cluster.mesh((2, 1), ("mpmd", "data"), "mpmd")
    schedule = jaxpp.schedules.make("zb-h1", meshes=2, microbatches=steps.MICROBATCHES)
    step = jaxpp.mpmd_jit_with_loop(functools.partial(steps.train_step, schedule=schedule), mesh)
    with jaxpp.frozen({0: 1.0}):
        weights, _ = step(steps.init(2), steps.batch(0))
    np.testing.assert_array_equal(weights[0], steps.init(2)[0])
    np.testing.assert_allclose(weights[1], steps.expected(2, 1)[0][1], rtol=1e-5, atol=1e-7)
    with jaxpp.frozen({2: 1.0}), pytest.raises(ValueError, match="frozen: the program has no backward of stage 2"):
        step(steps.init(2), steps.batch(0))


def test_meshes_of_different_sizes(cluster: Any) -> None:
    mesh = cluster.meshes([(1,), (2,), (4,)], ("data",))
    assert cluster.owners([1, 2, 4]) == [0, 0, 1]
    step = jaxpp.mpmd_jit_with_loop(steps.train_step, mesh, in_shardings=(PartitionSpec(), PartitionSpec(None, "data")))
    weights, value = step(steps.init(3), steps.batch(0))
    expected_weights, expected_losses = steps.expected(3, 1)
    assert float(value) == pytest.approx(expected_losses[0])
    for found, wanted in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_a_result_is_a_handle_that_is_fetched_when_its_numbers_are_needed(step: Any) -> None:
    weights, value = step(steps.init(2), steps.batch(0))
    assert repr(weights[1]) == "RemoteArray(float32[8, 8], P(), on mesh 1)"
    assert (value.shape, value.dtype, value.ndim, value.size, value.nbytes) == ((), np.float32, 0, 1, 4)
    assert weights[0].sharding.spec == PartitionSpec()
    wanted = steps.expected(2, 1)[1][0]
    assert isinstance(np.asarray(value), np.ndarray)
    assert float(value) == pytest.approx(wanted)
    assert f"{value:.3f}" == f"{wanted:.3f}"
    np.testing.assert_allclose(1 + value * 2, 1 + wanted * 2, rtol=1e-6)
    assert bool(value < 100)
    assert weights[0][2].shape == (8,)
    np.testing.assert_array_equal(jnp.asarray(weights[0]), jax.device_get(weights)[0])
    assert jax.block_until_ready(weights)[1] is weights[1]


def test_donated_handles_are_deleted(step: Any) -> None:
    weights, _ = step(steps.init(2), steps.batch(0))
    step(weights, steps.batch(1))
    assert weights[0].is_deleted()
    assert "deleted" in repr(weights[0])
    with pytest.raises(
        RuntimeError, match=r"argument `weights\[0\]` was donated to an earlier call: its array is deleted"
    ):
        step(weights, steps.batch(2))
    with pytest.raises(RuntimeError, match="was donated"):
        np.asarray(weights[0])


def test_one_array_given_and_donated_twice_is_refused(step: Any) -> None:
    weights, _ = step(steps.init(2), steps.batch(0))
    with pytest.raises(
        ValueError, match=r"arguments `weights\[0\]` and `weights\[1\]` are one array, which is donated"
    ):
        step([weights[0], weights[0]], steps.batch(1))


def test_a_wrong_argument_is_refused_before_an_actor_hears_of_it(cluster: Any, step: Any) -> None:
    compiled = step.compile(steps.init(2), steps.batch(0))
    weights, _ = compiled(steps.init(2), steps.batch(0))
    with pytest.raises(ValueError, match=r"argument `batch` is float32\[3, 4, 8\]; .* compiled for float32\[4, 4, 8\]"):
        compiled(weights, steps.batch(0)[:3])
    with pytest.raises(ValueError, match=r"argument `weights\[1\]` is float32\[\]; the program was compiled for"):
        compiled([weights[0], compiled(steps.init(2), steps.batch(0))[1]], steps.batch(0))
    with pytest.raises(
        TypeError, match="found 1 positional argument, expected 2: weights, batch: the step was compiled"
    ):
        compiled(weights)
    with pytest.raises(TypeError, match="argument `batch` is of type str, not an array"):
        compiled(weights, "a batch")
    compiled(weights, steps.batch(1))


def test_an_array_that_is_elsewhere_is_moved(step: Any) -> None:
    weights, _ = step(steps.init(2), steps.batch(0))
    swapped, _ = step(weights[::-1], steps.batch(1))
    first, _ = steps.expected(2, 1)
    wanted, _ = jax.jit(steps.train_step)(first[::-1], steps.batch(1))
    for found, expected in zip(swapped, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_more_meshes_than_actors(cluster: Any) -> None:
    mesh = cluster.mesh((4, 2), ("mpmd", "data"), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(steps.train_step, mesh, donate_argnums=0)
    weights, value = step(steps.init(4), steps.batch(0))
    expected_weights, losses = steps.expected(4, 1)
    assert float(value) == pytest.approx(losses[0])
    np.testing.assert_allclose(weights[2], expected_weights[2], rtol=1e-5, atol=1e-7)


def test_functions_of_the_user_run_in_the_actors(cluster: Any, tmp_path: Any) -> None:
    """As tasks of the schedule: each in the process that runs its mesh."""
    log = jaxpp.schedules.Operation.parse("log: forward")
    schedule = insert(jaxpp.schedules.Std1F1B(2).build(steps.MICROBATCHES), log, after="forward")
    mesh = cluster.mesh((2, 2), ("mpmd", "data"), "mpmd")

    def write(task: jaxpp.schedules.Task, residuals: list[jax.Array]) -> None:
        (tmp_path / str(task)).write_text(f"{os.getpid()} {len(residuals)}")

    function = functools.partial(steps.train_step, schedule=schedule)
    step = jaxpp.mpmd_jit_with_loop(function, mesh, options=jaxpp.StepOptions(operations={"log": write}))
    _, value = step(steps.init(2), steps.batch(0))
    assert float(value) == pytest.approx(steps.expected(2, 1)[1][0])
    written = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert {*written} == {f"{stage}log{microbatch}" for stage in range(2) for microbatch in range(4)}
    processes = [{written[f"{stage}log{microbatch}"][0] for microbatch in range(4)} for stage in range(2)]
    assert [len(each) for each in processes] == [1, 1]
    assert len({str(os.getpid())}.union(*processes)) == 3
    assert all(int(written[f"0log{microbatch}"][1]) for microbatch in range(4))


def test_a_hang_is_explained(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A function of the user does not return in one actor, and the other one waits for a value of it."""

    def log(task: jaxpp.schedules.Task, residuals: list[jax.Array]) -> None:
        del residuals
        while task.stage == 1 and not (tmp_path / "go on").exists():
            time.sleep(0.05)

    schedule = jaxpp.schedules.Std1F1B(2).build(steps.MICROBATCHES)
    schedule = insert(schedule, jaxpp.schedules.Operation.parse("log: forward"), after="forward")
    function = functools.partial(steps.train_step, schedule=schedule)
    mesh = cluster.mesh((2,), ("mpmd",), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(function, mesh, options=jaxpp.StepOptions(operations={"log": log}))
    monkeypatch.setattr(cluster.calls, "patience", 2.0)
    told: list[str] = []

    def release() -> None:
        end = time.monotonic() + 60
        while "go on: " not in "".join(told) and time.monotonic() < end:
            time.sleep(0.1)
            told.append(capfd.readouterr().err)
        (tmp_path / "go on").touch()

    releasing = threading.Thread(target=release)
    releasing.start()
    _, value = step(steps.init(2), steps.batch(0))
    assert float(value) == pytest.approx(steps.expected(2, 1)[1][0])
    releasing.join()
    report = (
        r"jaxpp: process 1 \(\S+, pid \d+\) is at \S*/test_cluster\.py:\d+, in log; process 0 waits for it; "
        r"nothing has moved for \d+ s\n  process 0 has waited \d+ s for receive on channel \d+ .* from process 1, .*\n"
        r"  go on: see what the code at this line waits for: .*\n"
    )
    assert re.search(report, "".join(told)), told


def test_a_step_is_traced_on_all_actors(step: Any) -> None:
    compiled = step.compile(steps.init(2), steps.batch(0))
    (_, value), events = compiled.trace(steps.init(2), steps.batch(0))
    assert float(value) == pytest.approx(steps.expected(2, 1)[1][0])
    assert {event.mesh for event in events} == {0, 1}
    assert compiled.costs(events)


def test_the_actors_tell_what_their_tasks_take(step: Any) -> None:
    compiled = step.compile(steps.init(2), steps.batch(0))
    assert all(each is not None and each.peak_memory_in_bytes > 0 for each in compiled.memory_analysis())
    assert len(compiled.cost_analysis()) == 2
    assert compiled.executable.compile_seconds.keys() == compiled.executable.program.functions.keys()
    assert "all" in [line.split()[0] for line in compiled.summary().splitlines() if line]


def test_stacked_layers_are_split_over_the_actors(cluster: Any) -> None:
    def loss(stack: Any, batch: Any) -> Any:
        def layer(hidden: Any, weight: Any) -> tuple[Any, None]:
            return jaxpp.mark_stage_end(jnp.tanh(hidden @ weight)), None

        return jnp.mean(jax.lax.scan(layer, batch, stack)[0] ** 2)

    def train_step(stack: Any, batches: Any) -> Any:
        gradient = functools.partial(jax.value_and_grad(loss), stack)
        operation = (jaxpp.Add, jaxpp.Add)
        value, gradients = jaxpp.treduce(gradient, batches, schedule=jaxpp.schedules.Std1F1B(4), operation=operation)
        return stack - 0.1 * gradients, value

    mesh = cluster.mesh((4,), ("mpmd",), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, donate_argnums=0)
    stack: Any = np.stack(steps.init(4))
    plain = stack
    for number in range(2):
        stack, value = step(stack, steps.batch(number))
        plain, wanted = jax.jit(train_step)(plain, steps.batch(number))
        assert float(value) == pytest.approx(float(wanted))
    assert stack.sharding.spec == PartitionSpec("mpmd")
    np.testing.assert_allclose(stack, plain, rtol=1e-5, atol=1e-6)


def test_random_keys_stay_keys(cluster: Any) -> None:
    def draw(key: Any, value: Any) -> Any:
        key, now = jax.random.split(key)
        return key, jaxpp.mark_stage_end(value) + jax.random.normal(now, (2,))

    step = jaxpp.mpmd_jit_by_yield(draw, cluster.mesh((2,), ("mpmd",), "mpmd"))
    key: Any = jax.random.key(3)
    plain = key
    for _ in range(2):
        key, found = step(key, np.ones(2, np.float32))
        plain, wanted = draw(plain, np.ones(2, np.float32))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert key.dtype == plain.dtype
    assert jax.random.key_data(key.fetch()).tolist() == jax.random.key_data(plain).tolist()


def test_nothing_stays_on_the_actors_that_nobody_has_a_handle_of(cluster: Any, step: Any) -> None:
    weights = steps.init(2)
    for number in range(20):
        weights, _ = step(weights, steps.batch(number))
    jax.block_until_ready(weights)
    held = cluster.calls.get([cluster.call(actor, "count") for actor in (0, 1)], "counting")
    assert max(held) <= 6


@pytest.mark.parametrize(
    ("shape", "names", "message"),
    [
        (
            (5, 2),
            ("mpmd", "data"),
            "meshes of 2, 2, 2, 2, 2 devices: 2 actors have 4 devices each, and a mesh is on one",
        ),
        ((2, 8), ("mpmd", "data"), "meshes of 8, 8 devices: 2 actors have 4 devices each, and a mesh is on one"),
        ((0, 2), ("mpmd", "data"), r"a mesh of shape \(0, 2\) .* and sizes of at least 1"),
        ((2,), ("stage",), r"the axes \('stage',\): expected one name per axis, 'mpmd' among them"),
    ],
)
def test_a_mesh_that_the_actors_cannot_hold(cluster: Any, shape: Any, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cluster.mesh(shape, names, "mpmd")


def test_actors_that_get_no_gpus(cluster: Any) -> None:
    with pytest.raises(
        ValueError, match=r"did not start within 1 s: it asks for .*'num_gpus': 8}; free in the Ray cluster: "
    ):
        jaxpp.ray.Cluster(1, devices=8, platform="cuda", patience=1.0)


def test_an_actor_without_enough_devices(cluster: Any) -> None:
    with pytest.raises(jaxpp.ray.ActorError, match=r"actor 0 failed: .* it has 0 cuda devices, and is to have 1$"):
        jaxpp.ray.Cluster(1, platform="cuda", options={"num_cpus": 0, "num_gpus": 0})


def test_an_actor_with_another_version_of_jax(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"jax": "0.9.0", "jaxlib": "0.9.0", "jaxpp": "0.1.0"}
    monkeypatch.setattr("jaxpp.ray.pool.versions", lambda: own)
    with pytest.raises(ValueError, match=rf"actor 0 \(process .*\) has jax {jax.__version__}, the driver has 0.9.0"):
        jaxpp.ray.Cluster(1, options={"num_cpus": 0})


def test_a_function_that_cannot_be_shipped(cluster: Any) -> None:
    here = threading.Lock()

    def take(_: Any) -> None:
        here.acquire()

    def draw(value: Any) -> Any:
        jax.debug.callback(take, value)
        return jaxpp.mark_stage_end(value) * 2

    step = jaxpp.mpmd_jit_by_yield(draw, cluster.mesh((2,), ("mpmd",), "mpmd"))
    with pytest.raises(TypeError, match=r"a function that the step calls back can't be sent to the actors: .*lock"):
        step(np.ones(2, np.float32))


def test_a_cluster_that_was_shut_down(cluster: Any) -> None:
    with jaxpp.ray.Cluster(1, options={"num_cpus": 0}) as ended:
        step = jaxpp.mpmd_jit_with_loop(steps.train_step, ended.mesh((1,), ("mpmd",), "mpmd"))
        weights, _ = step(steps.init(1), steps.batch(0))
    with pytest.raises(jaxpp.ray.ActorError, match="the cluster was shut down"):
        step(weights, steps.batch(1))
    with pytest.raises(jaxpp.ray.ActorError, match="the cluster was shut down"):
        np.asarray(weights[0])


def made_step(cluster: Any) -> Any:
    """The step over two meshes of one device each."""
    return jaxpp.mpmd_jit_with_loop(steps.train_step, cluster.mesh((2,), ("mpmd",), "mpmd"), donate_argnums=0)


@pytest.mark.parametrize("where", ["in files", "in memory"])
def test_a_killed_actor_is_replaced_and_no_step_is_lost_or_made_twice(
    cluster: Any, step: Any, tmp_path: Path, where: str
) -> None:
    """Without the files the other actor goes on alone, until the one that was killed is back."""
    pytest.importorskip("orbax.checkpoint", reason="orbax is not installed")
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
    cluster.calls.patience = WATCHDOG
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(jaxpp.ray.ActorError) as error:
        jax.block_until_ready(step(state, steps.batch(1)))
    assert WATCHDOG <= time.monotonic() - start
    assert f"actor 0 (mesh 0, process {pid} on " in str(error.value)
    assert "gave no sign of life for 2 s" in str(error.value)
    assert "in receive on channel 0 on mesh 1" in str(error.value)
    assert cluster.recover() == [0]
    _, value = step(steps.init(2), steps.batch(0))
    np.testing.assert_allclose(float(value), steps.expected(2, 1)[1][0], rtol=1e-6)
