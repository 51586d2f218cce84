"""docs/ten-minutes.md: the script of one device, the pipeline, and all lines in which they differ."""

import difflib
import importlib
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
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
    page = (ROOT / "docs" / "ten-minutes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    single, pipelined = (
        (FOLDER / name).read_text(encoding="utf-8").split("\n") for name in ("single.py", "pipelined.py")
    )
    start = single.index("import argparse"), pipelined.index("import argparse")  # below the docstrings
    differences = [*difflib.unified_diff(single[start[0] :], pipelined[start[1] :], n=1, lineterm="")][2:]
    expected = "\n".join(line for line in differences if not line.startswith("@@"))
    assert "".join(blocks).strip("\n") == expected, f"docs/ten-minutes.md must show\n\n{expected}"
    assert sum(line.startswith("+") for line in differences) <= 20
