"""Checkpoints of two processes, really started, and really killed."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from unit.checkpoint import jobs
from unit.checkpoint.training import STEPS, batch, bits, first_state, run, train_step
from unit.runtime.processes import together

import jaxpp
from jaxpp import checkpoint


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def undisturbed(directory: Path) -> tuple[Any, list[float]]:
    """The end of a training with plain jax.jit, saved on the way, and its losses after that."""
    step = jax.jit(partial(train_step, jaxpp.schedules.Std1F1B(2), 2))
    state = first_state()
    for number in range(3):
        state, _ = step(state, batch(number))
    checkpoint.save(directory / "training", 3, state)
    return run(step, state, 3)


@pytest.fixture(scope="module")
def results(directory: Path, undisturbed: Any) -> list[list[Any]]:
    """What the jobs returned in each of two processes, started once."""
    del undisturbed  # its checkpoint has to be there
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIRECTORY", str(directory))
        found = together.run([jobs.exchange, jobs.go_on, jobs.until_told], processes=2, devices=2, seconds=300)
    return [[each[number] for each in found] for number in range(3)]


def test_one_process_restores_what_two_hold(results: list[list[Any]], directory: Path) -> None:
    assert results[0] == [[2, 0, 2, 2, 0, 2, 0], [0, 2, 2, 2, 2, 0, 2]]
    found = checkpoint.restore(directory / "exchanged")
    for k, name in enumerate(("first", "second", "on both", "stacked")):
        np.testing.assert_array_equal(found[name], jobs.NUMBERS + k)
    assert found["bfloat16"].dtype.name == "bfloat16"
    assert jax.random.key_data(found["keys"]).tolist() == np.arange(8).reshape(4, 2).tolist()
    assert (found["empty"].shape, found["number"], found["numpy"].tolist()) == ((0, 6), 3, [0, 1, 2, 3, 4, 5])


def test_two_processes_go_on_with_the_training_of_one(
    undisturbed: tuple[Any, list[float]], results: list[list[Any]], directory: Path
) -> None:
    expected, losses = undisturbed
    np.testing.assert_allclose(results[1][0] + results[1][1], losses, rtol=1e-5)
    found = bits(checkpoint.restore(directory / "training", first_state(), step=STEPS))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)


def test_all_processes_end_after_the_same_step(results: list[list[Any]], directory: Path) -> None:
    step = checkpoint.latest_step(directory / "preempted")
    assert results[2] == [[step], [step]]


def ended(job: Callable[[], None]) -> tuple[list[int], str]:
    """Run a job in two processes, of which the second dies; returns their codes, and what the first one said."""
    name = f"{jobs.__name__}:{job.__name__}"
    begin = time.monotonic()
    with together.started([[name], [name]], devices=2) as (children, outputs):
        codes = [child.wait(300) for child in children]
        text = Path(outputs[0]).read_text(encoding="utf-8")
        took = time.monotonic() - begin
    assert took < 80, "JAX alone takes 100 s to find out"
    return codes, text


def test_a_death_as_a_save_begins_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRECTORY", str(tmp_path))
    codes, text = ended(jobs.killed_as_it_begins)
    assert codes == [3, -9], text
    assert re.search(r"^told: process 1 \(.*\) died; ", text, re.MULTILINE)
    assert re.search(r"^closed: \S+: step 2 is not saved: process 1 \(.*\) died; ", text, re.MULTILINE)
    assert checkpoint.all_steps(tmp_path) == [1]


def test_a_half_written_checkpoint_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRECTORY", str(tmp_path))
    codes, text = ended(jobs.killed)
    assert codes == [1, -9], text
    # A slow machine sees the death before orbax has begun the save: then it is a note of the error of `save`.
    assert re.search(r"^(OSError|jaxpp): \S+: step 2 is not saved: process 1 \(.*\) died; ", text, re.MULTILINE)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["1", "2.orbax-checkpoint-tmp"]
    assert checkpoint.all_steps(tmp_path) == [1]
    np.testing.assert_array_equal(checkpoint.restore(tmp_path)["first"], jobs.NUMBERS)
    checkpoint.Saver(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["1"], "what was left is tidied up"
