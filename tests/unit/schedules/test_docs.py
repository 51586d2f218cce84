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


def test_the_examples_of_searching() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / "search.md"), module_relative=False)
    assert (failed, tried) == (0, 23)


def test_the_examples_of_choosing() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / "choose-a-schedule.md"), module_relative=False)
    assert (failed, tried) == (0, 2)


def test_the_examples_of_partition() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / "partition.md"), module_relative=False)
    assert (failed, tried) == (0, 9)


def test_the_examples_of_steps() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / "steps.md"), module_relative=False)
    assert (failed, tried) == (0, 43)
