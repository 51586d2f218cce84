"""Minimum cuts, beside those of scipy's maximum flows."""

import random

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from jaxpp.ir.min_cut import UNCUTTABLE, min_cut


@pytest.mark.parametrize("seed", range(20))
def test_it_costs_what_the_maximum_flow_brings(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(2, 40)
    pairs = [(chance.randrange(count), chance.randrange(count)) for _ in range(4 * count)]
    edges = [(tail, head, chance.choice([0, 1, 2, 3, 1000])) for tail, head in pairs if tail != head]
    early = min_cut(edges, count)
    assert 0 in early
    assert 1 not in early
    tails, heads, sizes = np.array(edges, np.int32).T
    flow = maximum_flow(csr_matrix((sizes, (tails, heads)), shape=(count, count)), 0, 1)
    assert sum(size for tail, head, size in edges if tail in early and head not in early) == flow.flow_value
    # Of all such cuts that nearest to node 1: the capacity of any other one that has more nodes before it is larger.
    for node in set(range(count)) - early - {1}:
        more = min_cut([*edges, (0, node, UNCUTTABLE)], count)
        cost = sum(size for tail, head, size in edges if tail in more and head not in more)
        assert cost > flow.flow_value


def test_what_cant_be_cut_is_not_cut() -> None:
    assert min_cut([(0, 2, 1), (2, 3, UNCUTTABLE), (3, 1, 2)], 4) == {0}
    assert min_cut([(0, 2, UNCUTTABLE), (2, 3, 5), (3, 1, UNCUTTABLE)], 4) == {0, 2}


def test_equal_cuts_count_to_the_byte_however_large_they_are() -> None:
    large = 1 << 40
    assert min_cut([(0, 2, large), (2, 3, large - 1), (3, 1, large)], 4) == {0, 2}
    assert min_cut([(0, 2, large), (2, 3, large), (3, 1, large)], 4) == {0, 2, 3}
    assert min_cut([(0, 2, 2), (0, 2, 3), (2, 1, 4)], 3) == {0, 2}
