"""A part of the tests of each file, for `--part K/N`: all N parts together are all tests."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import pytest


def numbers(text: str) -> tuple[int, int]:
    """The numbers of `K/N`."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"expected one of N parts, such as 1/4 or 4/4, found {text!r}")
    return int(found[1]), int(found[2])


def of(items: Sequence[pytest.Item], part: tuple[int, int]) -> list[pytest.Item]:
    """The tests of a part, in their order.

    The cases of a test take turns, and so do the tests of a file: each part has some of the cases of each test, where
    there are so many. A part that would have nothing of a file has its first test.
    """
    number, parts = part
    cases: dict[Path, dict[str, list[pytest.Item]]] = {}
    for item in items:
        cases.setdefault(item.path, {}).setdefault(item.nodeid.partition("[")[0], []).append(item)
    taken: set[pytest.Item] = set()
    for path, tests in cases.items():
        turn = len(path.name)  # else the first part would have most tests of the files with few
        own = [
            item
            for first, each in enumerate(tests.values(), turn)
            for place, item in enumerate(each, first)
            if place % parts == number - 1
        ]
        taken.update(own or next(iter(tests.values()))[:1])
    return [item for item in items if item in taken]
