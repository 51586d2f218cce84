"""What the dialogues of pages show is what happens."""

import doctest
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def check(page: str, examples: int) -> None:
    path = ROOT / "docs" / f"{page}.md"
    assert doctest.testfile(str(path), module_relative=False, optionflags=doctest.ELLIPSIS) == (0, examples)


@pytest.mark.parametrize(
    ("page", "examples"),
    [
        ("schedules", 15),
        ("search", 23),
        ("choose-a-schedule", 2),
        ("graphs", 15),
        ("partition", 9),
        ("steps", 38),
        ("optimistic", 13),
        ("memory", 19),
        ("memory-limit", 14),
        ("frozen", 16),
    ],
)
def test_the_examples_of_a_page(page: str, examples: int) -> None:
    check(page, examples)


def test_the_page_of_operations_writes_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check("operations", 26)
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
