"""What the search is measured against: brute force agrees with the oracle, no published schedule beats an optimum."""

import importlib
import math
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from jaxpp import schedules as S
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.problem import make_problem
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.search.alone import alone
from jaxpp.schedules.search.bounds import lower_bound
from jaxpp.schedules.search.effort import Effort

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RELEASES = ("W", "B", "half")
OBJECTIVES = ("makespan", "longest_stage")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_no_published_schedule_beats_an_optimum(script: Any) -> None:
    search = script("search")
    cases, optima = {str(case): case for case in search.cases()}, search.optima()
    assert optima.keys() <= cases.keys()
    for key, value in list(optima.items())[::4]:
        published = search.best_of_library(cases[key])
        assert published is None or cases[key].value(published) >= value - 1e-9, f"{key}: {published.name}"


def test_bounds_are_below_the_optima_and_prove_most(script: Any) -> None:
    search = script("search")
    optima = search.optima()
    chosen = [case for case in search.cases() if str(case) in optima][::6]
    proven = 0
    for case in chosen:
        memory, optimum = MemoryLimits((case.memory,) * case.meshes, case.released_at), optima[str(case)]
        problem = make_problem(case.where, case.microbatches, case.times, memory, case.objective, case.split)
        bound = lower_bound(problem)
        for mesh in range(case.meshes):
            if bound < optimum * (1 - 1e-9):
                bound = max(bound, alone(problem, mesh, Effort(0.5), optimum))
        assert bound <= optimum * (1 + 1e-9), str(case)
        proven += bound >= optimum * (1 - 1e-9)
    assert proven >= 0.7 * len(chosen)


@pytest.mark.parametrize(
    ("placement", "microbatches", "split"),
    [
        (S.Placement.linear(2), 2, True),
        (S.Placement.linear(3), 2, False),
        (S.Placement.waves(1, 2), 2, False),
        (S.Placement.of(0, 1, 0), 1, True),
        (S.Placement.of(0, 1, 1), 1, True),
    ],
    ids=str,
)
def test_the_oracle_agrees_with_brute_force(
    script: Any, placement: S.Placement, microbatches: int, split: bool
) -> None:
    pytest.importorskip("ortools")
    oracle = script("oracle")
    uneven = [[0.5, 1, 1.5], [1.5, 0.75, 2], [1, 2, 0.5]]
    costs = S.Costs(*(times[: placement.stages] for times in uneven), hop=0.25)
    reports = every_report(placement, microbatches, split, costs)
    for limit, release, objective in product((0.5, 1, 1.5, 2, math.inf), RELEASES, OBJECTIVES):
        fits = [report for report in reports if max(report.peak_activations(release)) <= limit]
        best = min((getattr(report, objective) for report in fits), default=math.inf)
        found = oracle.optimum(placement, microbatches, costs, limit, release, objective, split)
        assert found.proven
        assert found.value == pytest.approx(best), f"memory {limit}, {release}, {objective}"


def test_the_oracle_starts_from_a_schedule_and_refuses_what_it_cannot_tell(script: Any) -> None:
    pytest.importorskip("ortools")
    oracle = script("oracle")
    hint = S.make("zb-v", meshes=2, microbatches=4)
    found = oracle.optimum(hint.placement, 4, S.Costs(), 2, objective="longest_stage", hint=hint, bound=12)
    assert found[:3] == (12, 12, True)  # ZB-V has no bubble
    with pytest.raises(ValueError, match=r"denominator of at most 1000, found 3\.14"):
        oracle.optimum(S.Placement.linear(2), 2, S.Costs(hop=math.pi))
    with pytest.raises(ValueError, match=r"the first stages must be on different meshes, found 0 0 1"):
        oracle.optimum(S.Placement.of(0, 0, 1), 2, S.Costs(), objective="longest_stage")
    with pytest.raises(ValueError, match=r"on one mesh, found 0\+1 1\+0"):
        oracle.optimum(S.Placement.of((0, 1), (1, 0)), 2, S.Costs())


def every_report(placement: S.Placement, microbatches: int, split: bool, costs: S.Costs) -> list[Report]:
    """The runs of all schedules that there are, whatever the order of microbatches."""
    kinds = ("forward", "input_grad", "weight_grad") if split else ("forward", "backward")
    rows: list[list[tuple[S.Task, ...]]] = []
    for mesh in range(placement.meshes):
        # Each microbatch of a stage runs its kinds in order: shuffle whose turn it is.
        turns = [pair for pair in product(placement.stages_of(mesh), range(microbatches)) for _ in kinds]
        rows.append([tasks_in(turn, kinds) for turn in dict.fromkeys(permutations(turns))])
    reports: list[Report] = []
    for orders in product(*rows):
        try:
            reports.append(S.simulate(S.Schedule.of("any", placement, orders), costs))
        except S.ScheduleError:  # it deadlocks
            continue
    return reports


def tasks_in(turns: tuple[tuple[int, int], ...], kinds: tuple[str, ...]) -> tuple[S.Task, ...]:
    """Of each stage and microbatch the next kind of task, whenever it is its turn."""
    return tuple(S.Task(kinds[turns[:place].count(turn)], *turn) for place, turn in enumerate(turns))
