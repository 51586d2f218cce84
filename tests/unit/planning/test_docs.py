"""The examples of docs/plan.md run."""

import doctest
from pathlib import Path


def test_the_examples_of_the_page() -> None:
    page = Path(__file__).parents[3] / "docs" / "plan.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (found.failed, found.attempted > 10) == (0, True)
