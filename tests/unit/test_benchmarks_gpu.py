"""The parts of `benchmarks/gpu.py` that need no GPU, without their times."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxpp import schedules

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


def test_kernels_are_found_on_the_lines_of_streams() -> None:
    """Also on one that has copied: its name says all that ever ran there. Only what goes to the host is left out."""

    def line(name: str, *events: tuple[str, int, int]) -> Any:
        made = [SimpleNamespace(name=name, start_ns=begin, end_ns=end) for name, begin, end in events]
        return SimpleNamespace(name=name, events=made)

    streams = [
        line("Stream #13(Memset,MemcpyD2D,MemcpyD2H,Compute)", ("gemm_fusion_dot", 0, 4), ("MemcpyD2H", 4, 9)),
        line("Stream #13(Memset,MemcpyD2D,MemcpyD2H,Compute)", ("MemcpyD2D", 9, 10), ("Memset", 10, 11)),
        line("Stream #15(MemcpyH2D)", ("MemcpyH2D", 2, 30)),
        line("XLA Modules", ("jit_forward", 0, 40)),
        line("CUPTI overhead", ("Overhead", 0, 40)),
    ]
    host = SimpleNamespace(name="/host:CPU", lines=[line("python", ("step", 0, 50))])
    planes = [SimpleNamespace(name="/device:GPU:0", lines=streams), host]
    assert parts._computing(SimpleNamespace(planes=planes)) == [(0, 4), (9, 10), (10, 11)]


def test_each_schedule_is_made() -> None:
    made = parts.small_schedules()
    assert made.keys() == set(schedules.names())
    assert {kind["stages"] for _, kind in made.values()} == {4, 8}


def test_tests_that_did_not_run_are_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "TESTS", ("that_there_is_not",))
    parts.tests({"seconds": 60})
    (row,) = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("["))
    assert row == ["tests with all stages on one device", "no test ran", "none failed"]


def test_a_gradient_that_is_wrong_shows() -> None:
    schedule, kind = parts.small_schedules()["gpipe"]
    sizes = {**gpu.SMALL, "width": 16, "sequence": 8, "batch": 1, "microbatches": schedule.microbatches}
    gpt = parts.Gpt(sizes, dtype="float32", rate=100.0, **kind)
    expected = gpt.plain()(gpt.parameters(), gpt.text)
    gpt.rate *= 1 + 1e-3
    assert parts.difference(gpt.pipeline(schedule)(gpt.parameters(), gpt.text), expected) > 1e-4
    gpt.rate /= 1 + 1e-3
    assert parts.difference(gpt.pipeline(schedule)(gpt.parameters(), gpt.text), expected) < 1e-5


def test_each_transport_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """With the loss of one process."""
    parts.processes({**gpu.SMALL, "width": 16, "sequence": 8, "microbatches": 2, "repeat": 1})
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {what: value for what, value, _ in rows}
    for transport in ("pull", "device_put", "pair"):
        assert f"two processes by {transport}, over one" in found
        assert float(found[f"the loss by {transport}, off"]) <= 1e-5


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
