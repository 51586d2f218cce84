"""The parts of `benchmarks/gpu.py` that need no GPU, without their times."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
gpu: Any = importlib.import_module("gpu")
parts: Any = importlib.import_module("gpu_parts")


def test_the_share_of_a_span_in_which_kernels_run() -> None:
    assert parts.busy_share([(0, 4), (1, 2), (6, 8)]) == (0.75, 2)
    assert parts.busy_share([(3, 5)]) == (1, 0)


def test_a_part_prints_rows(capsys: pytest.CaptureFixture[str]) -> None:
    parts.dlpack(gpu.SMALL)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0][0].startswith("round trip through DLPack, by ")
    assert [row[1:] for row in rows] == [["no copy", "no copy"], ["equal", "equal"]]


def test_each_schedule_is_made() -> None:
    made = parts.small_schedules()
    others = {name for name, schedule in made.items() if schedule is None}
    assert all(name.startswith(("seq1f1b", "slimpipe", "vocab")) for name in others)
    assert {schedule.stages for schedule in made.values() if schedule} == {4, 8}


def test_a_part_that_takes_too_long_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu_parts.py").write_text(
        "import subprocess, time\nprint('[1, 2, 3]', flush=True)\n"
        f"subprocess.run(['sh', '-c', 'sleep 5; touch {tmp_path}/late'])\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "gpu.py"))
    rows = gpu.run("step", {}, 1.5, str(tmp_path))
    assert rows == [[1, 2, 3], ["died", "not finished after 2 s", ""]]


def test_a_part_that_dies_is_a_row(tmp_path: Path) -> None:
    assert {*gpu.PARTS} == parts.PARTS.keys() - {"worker"}
    ((what, found, _),) = gpu.run("dlpack", {}, 60, str(tmp_path))
    assert (what, found) == ("died", "KeyError: 'repeat'")
