"""Fixed seeds of runs of the tools, in a process of their own, which a crash would end."""

from collections.abc import Iterator

import pytest
from fuzz import tool_trial
from fuzz.tool_trial import Outcome
from fuzz.worker import Worker

SEEDS = [seed for seed in range(1, 56) if seed % tool_trial.STEPS_EVERY]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    started = Worker(tool_trial.serve, 120)
    yield started
    started.stop()


@pytest.mark.parametrize("first", SEEDS[::10])
def test_a_run_of_a_tool_ends_with_a_result_or_one_message(first: int, worker: Worker) -> None:
    tried = [Outcome(**worker.run(seed)) for seed in SEEDS if first <= seed < first + 11]
    assert not [outcome.line for outcome in tried if outcome.wrong]
    assert any(outcome.ran for outcome in tried)
    assert any(outcome.refused for outcome in tried)
