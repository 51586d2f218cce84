"""docs/ten-minutes.md: the script of one device, the pipeline, and all lines in which they differ."""

import importlib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from unit.pairs import ROOT, added, difference, shown

FOLDER = ROOT / "examples" / "ten_minutes"


def test_both_scripts_compute_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In float32, as bfloat16 rounds; a checkpoint and a trace are written, too."""
    monkeypatch.syspath_prepend(str(FOLDER))
    found: list[Any] = []
    for name in ("single", "pipelined"):
        script = importlib.import_module(name)
        monkeypatch.setattr(script, "DTYPE", jnp.float32)
        monkeypatch.setattr(script, "STEPS", 3)
        found.append(script.train(tmp_path / name if name == "pipelined" else None))
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert (tmp_path / "pipelined" / "3").exists()
    assert [*tmp_path.rglob("*.xplane.pb")]


def test_the_page_has_the_lines_in_which_they_differ() -> None:
    lines = difference(FOLDER / "single.py", FOLDER / "pipelined.py")
    assert shown("ten-minutes") == [lines], f"docs/ten-minutes.md must show\n\n{lines}"
    assert added(lines) <= 20
