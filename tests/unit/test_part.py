"""`--part K/N`: all parts together are all tests, and each has something of each file."""

from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import part
import pytest


@dataclass(frozen=True, eq=False)
class Collected:
    """What `part` asks a test for."""

    path: Path
    nodeid: str


def items(**files: Sequence[int]) -> list[Any]:
    """Tests of these files: each number is one test with so many cases, 0 a test without parameters."""
    return [
        Collected(Path(name), f"{name}::test_{test}{case}")
        for name, tests in files.items()
        for test, count in enumerate(tests)
        for case in ([f"[{number}]" for number in range(count)] if count else [""])
    ]


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_together_they_are_all_tests(parts: int) -> None:
    every = items(of_many=[7, 0, 0, 3, 0, 12], of_few=[0, 2], of_one=[0])
    found = [part.of(every, (number, parts)) for number in range(1, parts + 1)]
    assert {item for each in found for item in each} == set(every)
    for each in found:
        assert each == [item for item in every if item in each]  # in their order
        assert {str(item.path) for item in each} == {"of_many", "of_few", "of_one"}
    of_many = [Counter(str(item.path) for item in each)["of_many"] for each in found]
    assert sum(of_many) == 25
    assert max(of_many) - min(of_many) <= 6  # one for each of its tests


def test_each_part_has_cases_of_each_test_that_has_enough() -> None:
    every = items(of_cases=[3, 4, 9])
    for number in (1, 2, 3):
        assert len({item.nodeid.partition("[")[0] for item in part.of(every, (number, 3))}) == 3


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "1/0", "a/b", "1/3/3", "-1/3", " 1/3"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^expected one of N parts, such as 1/4 or 4/4, found '"):
        part.numbers(text)
    assert part.numbers("2/3") == (2, 3)
