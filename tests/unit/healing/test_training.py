"""A process that waits as a spare: it tries ahead what it does when it takes a place."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxpp
from jaxpp import _jobs, loading
from jaxpp.healing import training
from jaxpp.loading import try_loading
from jaxpp.saved.saved_step import SavedStepError


def saved(folder: Path) -> Path:
    """A folder with the file of one process of one device."""
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()[:1]), ("mpmd",)), "mpmd")

    def loss(weight: Any, x: Any) -> Any:
        return jnp.mean(jaxpp.mark_stage_end(weight * x))

    def step(weight: Any, batch: Any) -> Any:
        one = partial(jax.value_and_grad(loss), weight)
        losses, gradient = jaxpp.treduce(one, batch, schedule=jaxpp.schedules.Std1F1B(1))
        return weight - gradient, losses

    made = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh)
    made.lower(jnp.ones(3), jnp.ones((2, 3))).compile().save(folder / "1_processes")
    return folder


class Training(training._ProcessTraining):
    """The training of a process without a job."""

    def __init__(self, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.made = 0

        def leave() -> None:  # JAX of the tests goes on
            self.left += 1

        def state() -> Any:
            self.made += 1
            return {"weight": np.zeros(3, np.float32)}

        monkeypatch.setattr(training, "Membership", object)
        monkeypatch.setattr(_jobs, "leave_coordination", leave)
        monkeypatch.setattr(_jobs, "wanted_platforms", lambda: ["cpu"])
        super().__init__(lambda: None, state, lambda number: None, 1, 1, 0, None, None, plans)


def test_a_spare_prepares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It loads the programs and makes the state once. Then it leaves JAX, which starts anew in the job."""
    spare = Training(saved(tmp_path), monkeypatch)
    loaded: list[bytes] = []
    load = loading.load_executable

    def note(code: bytes, *rest: Any) -> Any:
        loaded.append(code)
        return load(code, *rest)

    monkeypatch.setattr(loading, "load_executable", note)
    spare._prepare_as_spare(1)
    spare._prepare_as_spare(1)
    assert loaded
    assert (spare.left, spare.made) == (2, 1)
    assert spare.like == {"weight": jax.ShapeDtypeStruct((3,), np.float32)}
    assert capsys.readouterr().err == ""


def test_accelerators_are_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = Training(saved(tmp_path), monkeypatch)
    monkeypatch.setattr(_jobs, "wanted_platforms", lambda: [""])
    monkeypatch.setattr(jax, "local_devices", None)
    monkeypatch.setattr(jax, "process_index", None)
    spare._prepare_as_spare(1)
    assert (spare.left, spare.made, spare.like) == (0, 0, None)


def test_a_spare_that_can_not_prepare_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes on waiting: it may never be needed, and compiles the step otherwise."""
    spare = Training(tmp_path, monkeypatch)
    spare._prepare_as_spare(2)
    assert capsys.readouterr().err == (
        "jaxpp: a spare process can't prepare, and does so when it takes a place: FileNotFoundError: "
        f"{tmp_path}/2_processes: there is no saved step: expected a folder that compiled.save(path) made, and in it "
        "process_0, the file of that process\n"
    )
    assert spare.left == 1


def test_a_damaged_file_is_noticed_ahead(tmp_path: Path) -> None:
    folder = saved(tmp_path) / "1_processes"
    path = folder / "process_0"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SavedStepError, match=r"process_0: it is damaged, or no saved step: it is not as it was"):
        try_loading(folder, 1, on_cpus=True)


def test_another_processor_is_noticed_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path) / "1_processes"
    monkeypatch.setattr("jaxpp.saved.saved_step._features", lambda: "another")
    with pytest.raises(SavedStepError, match=r"process_0: saved with processor .*, here is .* another"):
        try_loading(folder, 1, on_cpus=True)


def test_a_step_that_can_not_be_saved_is_an_error_only_in_the_user_s_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Step:
        def lower(self, *arguments: Any) -> Any:
            return self

        def compile(self) -> Any:
            return self

        def save(self, folder: Path) -> None:
            raise ValueError("save: the step has callbacks")

    own = Step()
    assert training.loaded_or_compiled(own, tmp_path / "no", (1,), must_save=False) is own
    assert capsys.readouterr().err == "jaxpp: the step is not saved for the next time: save: the step has callbacks\n"
    with pytest.raises(ValueError, match="callbacks"):
        training.loaded_or_compiled(own, tmp_path / "no", (1,))
