"""Faults that are planted into one generated step: `make faults` takes many."""

from fuzz import faults

SEED = 5
"""A small chain."""
KINDS = ("swapped operands", "a wrong constant", "a value of another microbatch")


def test_planted_faults_are_found_in_their_pass_and_task() -> None:
    outcome = faults.run(SEED, KINDS)
    assert (outcome.left_out, outcome.alarm) == ("", "")
    assert [each.kind for each in outcome.faults] == list(KINDS)
    for fault in outcome.faults:
        assert fault.wrong == ""
        assert fault.cause, fault
        assert fault.is_located, fault
