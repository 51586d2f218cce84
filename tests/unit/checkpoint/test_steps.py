"""Steps in a directory: which there are, which are kept, and how a training ends between two of them."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpp import checkpoint
from jaxpp.checkpoint import handler

STATE = {"weight": np.ones(3)}


def test_the_latest_are_kept(tmp_path: Path) -> None:
    assert checkpoint.latest_step(tmp_path / "none") is None
    with checkpoint.Saver(tmp_path / "new" / "folder", keep=2) as saver:
        for step in (2, 10, np.int64(7), jnp.int32(30)):
            saver.save(step, {"weight": np.full(3, step)})
    assert checkpoint.all_steps(tmp_path / "new" / "folder") == [10, 30]
    assert checkpoint.restore(tmp_path / "new" / "folder")["weight"].tolist() == [30, 30, 30]
    assert checkpoint.restore(tmp_path / "new" / "folder", step=10)["weight"].tolist() == [10, 10, 10]


def test_in_a_bucket_the_latest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "is_bucket", lambda _: True)  # pyright: ignore[reportUnknownLambdaType]
    with checkpoint.Saver(tmp_path, keep=1) as saver:
        saver.save(1, STATE)
        saver.save(2, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.save("here", 1, STATE)
    assert checkpoint.latest_step(tmp_path / "here") == 1


def test_what_is_no_step(tmp_path: Path) -> None:
    for step in range(8):
        checkpoint.save(tmp_path, step, STATE)
    messages = {
        f"{tmp_path} has no checkpoint of step 9; the latest are 3, 4, 5, 6, 7": (tmp_path, 9),
        f"{tmp_path}/7 has no checkpoint": (tmp_path / "7", None),
        f"{tmp_path}/none does not exist": (tmp_path / "none", None),
    }
    for message, (directory, step) in messages.items():
        with pytest.raises(FileNotFoundError) as caught:
            checkpoint.restore(directory, step=step)
        assert str(caught.value) == message
    with pytest.raises(FileExistsError, match=f"^{tmp_path} has a checkpoint of step 7 already$"):
        checkpoint.save(tmp_path, 7, STATE)
    with pytest.raises(ValueError, match=r"^step must be at least 0, not -1$"):
        checkpoint.save(tmp_path, -1, STATE)
    with pytest.raises(ValueError, match=r"^keep must be at least 1, not 0$"):
        checkpoint.Saver(tmp_path, keep=0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        checkpoint.save(tmp_path / "file" / "folder", 1, STATE)


def test_no_space(tmp_path: Path) -> None:
    """A step that could not be written is an error of the next one, which is written if there is space again."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with checkpoint.Saver(tmp_path, keep=1) as saver:
        saver.save(1, STATE)
        saver.wait_until_finished()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            saver.save(2, {"weight": np.random.default_rng(0).normal(size=1 << 18)})
            with pytest.raises(OSError, match=f"^{tmp_path}: step 2 is not saved: .*File too large"):
                saver.save(3, STATE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert checkpoint.all_steps(tmp_path) == [1]
        saver.save(3, STATE)
    assert checkpoint.all_steps(tmp_path) == [3]


def test_preempted_in_one_process() -> None:
    previous = signal.getsignal(signal.SIGTERM)
    with checkpoint.Preemption() as preemption:
        reached = [preemption.reached(0)]
        signal.raise_signal(signal.SIGTERM)
        reached.append(preemption.reached(1))
    assert reached == [False, True]
    assert signal.getsignal(signal.SIGTERM) == previous


def test_jaxpp_works_without_orbax() -> None:
    script = (
        "import sys; sys.modules['orbax'] = None; import jaxpp; jaxpp.Add\n"
        "try: jaxpp.checkpoint\nexcept ModuleNotFoundError as error: print(error)"
    )
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output == "jaxpp.checkpoint needs orbax-checkpoint: pip install 'jaxpp[checkpoint]'\n"
