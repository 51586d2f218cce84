"""docs/checkpoints.md shows what happens."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "checkpoints.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.FAIL_FAST
    assert doctest.testfile(str(DOCS), module_relative=False, optionflags=flags).failed == 0
