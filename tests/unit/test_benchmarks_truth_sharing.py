"""Activities that share processors."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
sharing: Any = importlib.import_module("truth_sharing")
Activity, times = sharing.Activity, sharing.times


def test_each_waits_for_what_it_is_after() -> None:
    found = times([Activity(1, 0, ()), Activity(2, 1, ()), Activity(3, 0, (0, 1)), Activity(1, None, (2,))])
    assert found == [(0, 1), (0, 2), (2, 5), (5, 6)]


def test_a_processor_is_shared_equally() -> None:
    """Two at once take twice as long; when one is done, the other has the processor alone."""
    assert times([Activity(2, 0, ()), Activity(3, 0, ())]) == [(0, 4), (0, 5)]
    assert times([Activity(2, 0, ()), Activity(3, 1, ())]) == [(0, 2), (0, 3)]
    later = times([Activity(4, 0, ()), Activity(1, None, ()), Activity(1, 0, (1,)), Activity(2, 0, (2,))])
    # From 1 to 3 two share it, then two again until the first is done.
    assert later == [(0, 7), (0, 1), (1, 3), (3, 7)]


def test_three_at_once() -> None:
    assert [end for _, end in times([Activity(n, 0, ()) for n in (1, 2, 3)])] == pytest.approx([3, 5, 6])


def test_what_takes_no_time() -> None:
    found = times([Activity(0, 0, ()), Activity(1, 0, (0,)), Activity(0, 0, (1,)), Activity(0, None, (0,))])
    assert found == [(0, 0), (0, 1), (1, 1), (0, 0)]
    assert times([]) == []
