"""The choice of what is kept and what is done again, against all choices of small computations."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp.ir.recomputation import OpNode, Recomputation, ValueNode


@st.composite
def computations(draw: st.DrawFn) -> Recomputation:
    """Two values from outside and up to six steps, some with two results, some that must not be done again."""
    values = [ValueNode(draw(st.integers(0, 40))) for _ in range(2)]
    steps: list[OpNode] = []
    for number in range(draw(st.integers(1, 6))):
        operands = draw(st.lists(st.integers(0, len(values) - 1), max_size=3, unique=True))
        steps.append(OpNode(operands, draw(st.one_of(st.none(), st.integers(0, 30)))))
        values += [ValueNode(draw(st.integers(0, 40)), number) for _ in range(draw(st.integers(1, 2)))]
    wanted = draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=4, unique=True))
    pairs = st.tuples(st.integers(0, len(values) - 1), st.integers(0, len(steps) - 1))
    return Recomputation(values, steps, wanted, draw(st.lists(pairs, max_size=2)))


def choices(problem: Recomputation) -> Iterator[set[int]]:
    allowed = [number for number, step in enumerate(problem.steps) if step.flops is not None]
    every = (set(each) for count in range(len(allowed) + 1) for each in combinations(allowed, count))
    return (again for again in every if not any(map(partial(is_torn, problem, again), problem.ties)))


def is_torn(problem: Recomputation, again: set[int], tie: tuple[int, int]) -> bool:
    return tie[0] in problem.kept(again) and tie[1] in again


@settings(max_examples=60, deadline=None)
@given(computations(), st.one_of(st.none(), st.integers(0, 60)))
def test_fewest_bytes(problem: Recomputation, flops: int | None) -> None:
    found = problem.fewest_bytes(flops)
    within = [each for each in choices(problem) if flops is None or problem.flops(each) <= flops]
    assert found in within
    assert problem.kept_bytes(found) == min(map(problem.kept_bytes, within))


@settings(max_examples=200, deadline=None)
@given(computations())
def test_minimum_cut(problem: Recomputation) -> None:
    """Ties of values that nobody wants are left out: the cut keeps to them even where such a value is not kept."""
    problem = replace(problem, ties=[tie for tie in problem.ties if tie[0] in problem.wanted])
    found, every = problem.cut(), list(choices(problem))
    assert found in every
    least = min(map(problem.kept_bytes, every))
    assert problem.kept_bytes(found) == least
    assert all(found <= each for each in every if problem.kept_bytes(each) == least)


@settings(max_examples=60, deadline=None)
@given(computations(), st.integers(0, 120))
def test_fewest_flops(problem: Recomputation, size: int) -> None:
    found = problem.fewest_flops(size)
    within = [each for each in choices(problem) if problem.kept_bytes(each) <= size]
    if not within:
        assert found is None
    else:
        assert found in within
        assert problem.flops(found) == min(map(problem.flops, within))


def test_of_two_equal_choices_the_one_with_less_to_do() -> None:
    """The result of a step is as large as its operand."""
    problem = Recomputation([ValueNode(8), ValueNode(8, 0)], [OpNode([0], 5)], [1])
    assert problem.fewest_bytes() == set()
    assert problem.kept(set()) == [1]


def test_nothing_is_wanted() -> None:
    assert Recomputation([ValueNode(8), ValueNode(8, 0)], [OpNode([0], 5)], []).fewest_bytes() == set()
    assert Recomputation([], [], []).fewest_flops(0) == set()


@pytest.mark.parametrize(("size", "expected"), [(30, set[int]()), (20, {1}), (10, {0, 1}), (9, None)])
def test_layers_under_a_limit(size: int, expected: set[int] | None) -> None:
    """AdaPipe's question: which of two layers of one input are done again, so that the rest fits."""
    problem = Recomputation(
        [ValueNode(10), ValueNode(10, 0), ValueNode(20, 1)], [OpNode([0], 3), OpNode([0], 9)], [1, 2]
    )
    assert problem.fewest_flops(size) == expected


def test_what_the_solver_takes_for_nothing_is_above_the_limit() -> None:
    """It keeps to limits within a millionth of the sum of all; we keep to them, even if then nothing is found."""
    large, less = 10**12, 10**12 - 10**6
    problem = Recomputation([ValueNode(less), ValueNode(large, 0), ValueNode(large)], [OpNode([0], large)], [1, 2])
    assert problem.fewest_flops(2 * large - 1) == {0}
    assert problem.fewest_bytes(large - 1) == set()
    close = Recomputation([ValueNode(large - 1), ValueNode(large, 0), ValueNode(large)], [OpNode([0], large)], [1, 2])
    assert close.fewest_flops(2 * large - 1) in ({0}, None)
