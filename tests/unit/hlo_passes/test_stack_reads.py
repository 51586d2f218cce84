"""Which mesh has which block of a stack: the choice with which the fewest bytes move."""

from itertools import permutations

import numpy as np
import pytest

from jaxpp.hlo_passes.loop.stack_reads import assigned


@pytest.mark.parametrize("most", [1, 3, 100])
def test_no_other_assignment_gains_more(most: int) -> None:
    """Few different gains have many equal choices, many have rows whose largest ones are in columns of their own."""
    random = np.random.default_rng(most)
    for size in random.integers(1, 5, 30):
        gains = random.integers(0, most + 1, (size, size)) + np.eye(size) / 2
        columns = assigned(gains)
        assert sorted(columns) == list(range(size))
        assert gains[range(size), columns].sum() == max(gains[range(size), p].sum() for p in permutations(range(size)))


def test_among_equal_choices_meshes_stand_in_their_order() -> None:
    assert assigned(np.eye(4) / 2 + 7) == [0, 1, 2, 3]
