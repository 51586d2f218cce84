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
    assert rows == [["round trip through DLPack", "no copy", "no copy"], ["its bits", "equal", "equal"]]


def test_a_part_that_dies_is_a_row(tmp_path: Path) -> None:
    assert {*gpu.PARTS} == parts.PARTS.keys() - {"worker"}
    ((what, found, _),) = gpu.run("dlpack", {}, 60, str(tmp_path))
    assert (what, found) == ("died", "KeyError: 'repeat'")
