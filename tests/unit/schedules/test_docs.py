"""What the dialogues of pages about schedules show is what happens."""

import doctest
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_examples_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(ROOT / "docs" / "schedules.md"), module_relative=False)
    assert tried > 8
    assert failed == 0
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]


@pytest.mark.parametrize(
    ("page", "examples"), [("search", 23), ("choose-a-schedule", 2), ("partition", 9), ("steps", 43)]
)
def test_the_examples_of_a_page(page: str, examples: int) -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False)
    assert (failed, tried) == (0, examples)
