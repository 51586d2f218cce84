"""Two jobs and one directory: the second is refused, or the first saves no more."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from jaxpp import checkpoint
from jaxpp.checkpoint import ownership

STATE = {"weight": np.ones(3)}


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def note(directory: Path, **changes: object) -> None:
    """Leave the note of another job."""
    taken = ownership.Ownership(epath.Path(directory))
    path = directory / ownership.NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "token": "other", **changes}))
    del taken


def test_a_second_saver_is_refused_while_the_first_process_runs(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    note(tmp_path, process=process.pid, started=ownership._started(process.pid))
    with pytest.raises(OSError, match=f"^{tmp_path}: process {process.pid} saves there; one Saver has a directory"):
        checkpoint.Saver(tmp_path)
    process.kill()
    process.wait()
    checkpoint.save(tmp_path, 1, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"started": "0"}, {"process": None}, {"job": "the same"}])
def test_what_does_not_run_here_is_taken_over(
    tmp_path: Path, process: subprocess.Popen[bytes], changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of another machine, of a process whose number another one has now, or of the same job."""
    monkeypatch.setenv("JAXPP_RUN_HEAD", "the same")
    note(tmp_path, **{"job": "", "process": process.pid, "started": ownership._started(process.pid), **changes})
    checkpoint.save(tmp_path, 1, STATE)
    assert checkpoint.all_steps(tmp_path) == [1]


def test_whoever_was_taken_over_from_saves_no_more(tmp_path: Path) -> None:
    """Nor does it delete: what it had begun does not become a checkpoint."""
    first = checkpoint.Saver(tmp_path, keep=1)
    first.save(1, STATE)
    first.wait_until_finished()
    note(tmp_path, host="elsewhere", process=os.getpid())
    first.save(2, STATE)
    message = f"^{tmp_path}: step 2 is not saved: {tmp_path}: process {os.getpid()} on elsewhere has taken over this"
    with pytest.raises(OSError, match=message):
        first.close()
    assert checkpoint.all_steps(tmp_path) == [1]
    assert (tmp_path / ownership.NAME).exists(), "it is another job's"


def test_a_half_written_step_is_moved_before_it_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a job that still writes it can't give a part of it the final name."""
    half = tmp_path / "2.orbax-checkpoint-tmp"
    half.mkdir()
    (half / "file").touch()
    seen: list[list[str]] = []
    delete = type(epath.Path(tmp_path)).rmtree

    def rmtree(path: epath.Path) -> None:
        seen.append([each.name for each in tmp_path.iterdir()])
        delete(path)

    monkeypatch.setattr(type(epath.Path(tmp_path)), "rmtree", rmtree)
    checkpoint.Saver(tmp_path).close()
    assert seen
    assert half.name not in seen[0]
    assert list(tmp_path.iterdir()) == []
