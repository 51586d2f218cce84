"""The parts of `benchmarks/truth.py`, without its times."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxpp.planning import Link
from jaxpp.planning.estimate import predict
from jaxpp.runtime import Call

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
truth: Any = importlib.import_module("truth")


def test_a_link_of_two_sizes() -> None:
    found = truth.line([4, 1004], [3.0, 5.0])
    assert (found.bandwidth, found.latency) == (500.0, pytest.approx(2.992))
    assert truth.line([0, 1000], [3.0, 2.0]).latency == 3.0  # noise: the larger message was faster


def test_the_cases_can_be_cut() -> None:
    for case in truth.CASES:
        assert case.processes in (2, 4)
        assert truth.LAYERS % truth.plan_of(case).stages == 0, case
    assert len(set(truth.CASES)) == len(truth.CASES) == 10


def test_a_step_is_traced_and_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on a processor takes at least all tasks, one on a processor for each mesh at least those of a mesh."""
    monkeypatch.setitem(truth.SIZES, "tf", ("tf", 16, 16, 8))
    program, seconds = truth.trace(truth.Case("tf", "1f1b", 2, 4), 1)
    work = [
        sum(seconds[each.function] for each in sequence if isinstance(each, Call)) for sequence in program.sequences
    ]
    assert min(seconds.values()) > 0
    free, slow = Link(1e15, 0.0), Link(1e9, 1e-3)
    fast_network, slow_network = truth.network_of(free, 2), truth.network_of(slow, 2)
    nothing = truth.shared_step(program, seconds, fast_network, free, [0, 1])
    assert max(work) <= nothing < sum(work)
    assert truth.shared_step(program, seconds, fast_network, free, [0, 0]) == pytest.approx(sum(work))
    messages = truth.shared_step(program, seconds, slow_network, free, [0, 1])
    assert messages > nothing + 2e-3
    assert truth.shared_step(program, seconds, slow_network, slow, [0, 1]) > messages
    assert nothing == pytest.approx(max(each.end for each in predict(program, seconds, fast_network)))


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"task": 1e-6, "hop": (1e-3, 4e-4), "predict": 2.0, "steps": [2.0, 2.2, 2.1]}
    monkeypatch.setattr(truth, "spawn", lambda _processes, _devices, job, _options: answers[job[0]])  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(sys, "argv", ["truth.py", "--rows", "0", "9"])
    truth.main()
    printed = capsys.readouterr().out
    assert "| tf | 1f1b | 2 | 2000 | 2100 | 2050, 2150 | 1.050 |" in printed
    assert "| mlp | zb-v | 4 | 2000 | 2100 |" in printed
    assert "error: median 5.0%, largest 5.0%" in printed
