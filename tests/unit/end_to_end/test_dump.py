"""`JAXPP_DUMP_DIR`: the lowered module, the schedule and the program of every step as files."""

from functools import partial
from pathlib import Path

import pytest
from unit.end_to_end.compare import batch, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.tools import opt


def test_every_step_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "folder"
    monkeypatch.setenv("JAXPP_DUMP_DIR", str(folder))
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="zb-h1"), make_mesh(2))
    for microbatches in (2, 3):
        step(weights(2), batch(microbatches))
    lowered, *_ = names = sorted(folder.glob("jit_sgd_step.*.lowered.mlir"), key=lambda path: int(path.suffixes[0][1:]))
    assert len(names) == 2
    assert len(list(folder.iterdir())) == 6
    stem = str(lowered).removesuffix("lowered.mlir")
    program = step.lower(weights(2), batch(2)).program()
    assert Path(f"{stem}program.mlir").read_text().strip() == program.as_text().strip()
    grid = Path(f"{stem}schedule.txt").read_text()
    assert schedules.parse(grid) == schedules.make("zb-h1", meshes=2, microbatches=2)
    assert "compare.py" in lowered.read_text()
    assert opt.main([str(lowered), "--pipeline", "mpmd", "--schedule", f"{stem}schedule.txt", "-o", "/dev/null"]) == 0
    assert opt.main([str(lowered), "--pipeline", "mpmd", "-o", "/dev/null"]) == 0  # it says how many meshes there are


def test_a_step_that_is_refused_is_written_as_far_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_DUMP_DIR", str(tmp_path))
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="1f1b", marks=0), make_mesh(2))
    with pytest.raises(jaxpp.PassError, match="found 0 stage marks"):
        step(weights(2), batch(2))
    lowered, schedule = sorted(tmp_path.iterdir())
    assert lowered.name.endswith(".lowered.mlir")
    assert schedules.parse(schedule.read_text()) == schedules.make("1f1b", meshes=2, microbatches=2)
