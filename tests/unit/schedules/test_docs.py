"""What docs/schedules.md shows is what happens."""

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_examples_of_the_documentation() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / "schedules.md"), module_relative=False)
    assert tried > 8
    assert failed == 0
