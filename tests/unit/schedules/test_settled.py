"""Orders that change: what is run in part is as if all had run, and what is refused is as it was."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.test_search import problems

from jaxpp import schedules as S
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.ordered_cells import ordered_cells_of_problem
from jaxpp.schedules.engine.problem import Problem, make_problem
from jaxpp.schedules.engine.settled import Partly
from jaxpp.schedules.model.run import run


def changed_somewhere(now: Partly, random: Random, most: float) -> bool:
    """Put a stretch of some order in another one, where that keeps what needs one another in order."""
    mesh = random.randrange(len(now.rows))
    row = now.rows[mesh]
    first = random.randrange(len(row))
    window = row[first : first + random.randint(2, 5)]
    new = random.sample(window, len(window))
    seen: set[int] = set()
    for cell in new:
        if (now.cells.before[cell] & set(window)) - seen:
            return False
        seen.add(cell)
    return now.has_room(mesh, first, new) and now.change(mesh, first, new, most)


@given(problems(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_what_changes_is_as_if_all_had_run(made: tuple[Problem, S.Costs], random: Random) -> None:
    problem, _ = made
    cells = ordered_cells_of_problem(problem, problem.one_by_one)
    now = Partly(cells)
    for _ in range(25):
        before = [row.copy() for row in now.rows]
        taken = changed_somewhere(now, random, now.cost * random.choice([0.9, 1.0, 1.1, 2.0]))
        assert taken or now.rows == before
        found = run(cells, now.rows)
        assert found.whole
        assert now.end_of[: len(cells.times)] == found.ends
        measured = cells.measured(now.rows, found.ends, found.clocks)
        assert (now.value, now.cost, now.last) == (measured.value, measured.cost, measured.last)
        orders = [[cell // problem.microbatches for cell in row] for row in now.rows]
        fresh = Partly(ordered_cells_of_problem(problem, orders))
        assert now.tails == fresh.tails
        for level, expected in zip(now.levels, fresh.levels, strict=True):
            assert level == pytest.approx(expected)


def test_what_would_wait_for_itself_is_refused() -> None:
    """The first mesh can't run a backward before the forward that the second mesh runs before that backward."""
    memory = MemoryLimits((math.inf, math.inf), "W")
    problem = make_problem(S.Placement.linear(2), 2, S.Costs(), memory, "makespan", False)
    forward, backward = (0, 1), (2, 3)
    orders = [[forward[0], forward[0], backward[0], backward[0]], [forward[1], forward[1], backward[1], backward[1]]]
    now = Partly(ordered_cells_of_problem(problem, orders))
    ends, tails, rows = now.end_of.copy(), now.tails.copy(), [row.copy() for row in now.rows]
    one, other, *_ = now.rows[0][1:3]
    assert not now.change(0, 1, [other, one], math.inf)
    assert (now.end_of, now.tails, now.rows) == (ends, tails, rows)
