"""Fixed seeds of runs of the tools, in a process of their own, which a crash would end."""

from fuzz import tool_trial
from fuzz.tool_trial import Outcome
from fuzz.worker import Worker

SEEDS = [
    *(seed for seed in range(1, 56) if seed % tool_trial.STEPS_EVERY),
    506,  # a step that is refused as it is made
]


def test_runs_of_the_tools_end_with_a_result_or_one_message() -> None:
    worker = Worker(tool_trial.serve, 120)
    try:
        tried = [Outcome(**worker.run(seed)) for seed in SEEDS]
    finally:
        worker.stop()
    assert not [outcome.line for outcome in tried if outcome.wrong]
    assert any(outcome.ran for outcome in tried)
    assert any(outcome.refused for outcome in tried)
