"""Fixed seeds of the generator: one of each family, and those that once were wrong."""

import pytest
from fuzz import trial

FAST = (
    *(0, 2, 5, 6, 7, 8, 10, 12, 14, 15, 16, 17, 19, 20, 22, 25, 28, 29, 30, 31, 32, 34),
    *(37, 46, 49, 54, 55, 57, 60, 61, 63, 65, 66, 68, 69, 70, 71, 72),
    120574,  # rows of a weight whose gradients the loop sums apart, and that are left out
)
"""Seeds of most families that take little time."""


@pytest.mark.parametrize("seed", FAST)
def test_a_seed_is_equal_to_plain_jit_or_refused_by_name(seed: int) -> None:
    assert not trial.run(seed).wrong
