"""What papers publish of schedules is what ours take: `benchmarks/published.py`."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, without the largest pipelines."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    published = importlib.import_module("published")
    for name, count in (("ZERO_BUBBLE", 8), ("ZERO_BUBBLE_V", 2)):
        few = {size: row for size, row in getattr(published, name).items() if size[0] * size[1] <= 1024}
        assert len(few) == count
        monkeypatch.setattr(published, name, few)
    return published


def test_nothing_differs(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["published.py"])
    assert script.main() == 0
    printed = capsys.readouterr().out
    assert printed.endswith("nothing differs\n")
    assert "zb-2p 16 x 64: bubble rate" in printed
    assert "zb-v 16 x 64: bubble rate, table 8" in printed
    assert all((paper.__doc__ or "").strip() in printed for paper in script.PAPERS.values())


def test_a_difference_is_marked(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(script.PAPERS, "dapple", lambda: iter([script.Row("more", 1, 2), script.Row("less", 1, 0)]))
    monkeypatch.setattr(sys, "argv", ["published.py", "dapple"])
    assert script.main() == 1
    printed = capsys.readouterr().out
    assert printed.count("<- differs") == 2
    assert printed.endswith("2 of the numbers differ\n")
    assert script.Row("less", 1, 0, at_most=True).holds
    assert not script.Row("more", 1, 2, at_most=True).holds


def test_a_paper_that_is_not_there(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["published.py", "nobody"])
    with pytest.raises(SystemExit):
        script.main()
    assert "no paper 'nobody'; there are zero-bubble, " in capsys.readouterr().err
