"""The linear programme of weight gradients to leave out, against the simulator and all shares of a grid."""

from dataclasses import replace
from itertools import product

import pytest

from jaxpp import schedules as S
from jaxpp.schedules.rewrites.freezing import freeze_ratios
from jaxpp.schedules.rewrites.tasks import split_backward

UNEVEN = S.Costs([1.0, 2.0, 1.0], [1.0, 3.0, 2.0], [1.0, 2.0, 4.0], hop=0.25)


@pytest.mark.parametrize("budget", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "dualpipe", "1f1b"])
def test_its_value_is_that_of_the_simulator(name: str, budget: float) -> None:
    schedule = S.make(name, meshes=4, microbatches=8)
    if name == "1f1b":
        schedule = S.offload(S.recompute(split_backward(schedule, 1, 2), 0), 1)
    if name == "dualpipe":
        schedule = split_backward(schedule)
    costs = S.Costs(hop=0.5, bandwidth=4.0, message_bytes=1.0, copy_bandwidth=10.0, activation_bytes=5.0, fused=0.9)
    found = freeze_ratios(schedule, costs, budget=budget)
    assert S.simulate(schedule, found.costs).makespan == pytest.approx(found.makespan, rel=1e-6)
    assert sum(found.shares.values()) <= budget * schedule.stages + 1e-6
    before = S.simulate(schedule, costs).makespan
    assert found.makespan <= before * (1 + 1e-6)
    if budget == 0:
        assert found.makespan == pytest.approx(before)
    if name != "1f1b" and budget:
        assert found.makespan < before


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "interleaved-zb", "dualpipe"])
def test_it_counts_what_a_mesh_gathers_and_scatters_between_runs(name: str) -> None:
    schedule = split_backward(S.make(name, meshes=4, microbatches=8))
    for gather, scatter in ((0.7, 0.0), (0.0, 0.4), (0.7, 0.4)):
        costs = S.Costs(hop=0.5, gather=gather, scatter=scatter)
        found = freeze_ratios(schedule, costs, budget=0.3)
        assert S.simulate(schedule, found.costs).makespan == pytest.approx(found.makespan, rel=1e-6)
        none = freeze_ratios(schedule, costs, budget=0)
        assert none.makespan == pytest.approx(S.simulate(schedule, costs).makespan)


def test_no_shares_of_a_grid_are_better() -> None:
    schedule, budget = S.make("zb-h1", meshes=3, microbatches=4), 1 / 3
    found = freeze_ratios(schedule, UNEVEN, budget=budget)
    grid = [n / 6 for n in range(7)]
    within = [each for each in product(grid, repeat=3) if sum(each) <= 3 * budget + 1e-9]
    assert UNEVEN.weight_grad == (1.0, 2.0, 4.0)

    def makespan(shares: tuple[float, ...]) -> float:
        times = [max(1 - share, 1e-9) * time for share, time in zip(shares, (1.0, 2.0, 4.0), strict=True)]
        return S.simulate(schedule, replace(UNEVEN, weight_grad=times)).makespan

    best = min(map(makespan, within))
    assert found.makespan <= best * (1 + 1e-6)
    assert found.makespan > 0.8 * best


def test_no_share_of_a_stage_with_whole_backwards() -> None:
    """`jaxpp.frozen` takes what it finds: it refuses microbatches whose backward is whole."""
    plain = S.make("stp", meshes=2, microbatches=4)
    assert {task.kind for task in plain if task.stage == 3} >= {"backward", "weight_grad"}
    found = freeze_ratios(split_backward(plain, 0, 1, 2), budget=1.0)
    assert found.shares[3] == 0
    assert max(found.shares.values()) > 0


def test_it_leaves_out_no_more_than_it_takes() -> None:
    """Stage 1 alone decides how long the schedule is: nothing is gained elsewhere."""
    costs = S.Costs([1.0, 9.0], [1.0, 9.0], [1.0, 9.0])
    found = freeze_ratios(S.make("zb-h1", meshes=2, microbatches=4), costs, budget=0.5, most=0.6)
    assert found.shares == {0: pytest.approx(0, abs=1e-6), 1: pytest.approx(0.6)}


@pytest.mark.parametrize(
    ("schedule", "costs", "shares", "message"),
    [
        (S.make("1f1b", meshes=2, microbatches=2), S.Costs(), {"budget": 0.5}, "1f1b has no weight gradients of"),
        (
            S.make("dualpipe", meshes=2, microbatches=4),
            S.Costs(),
            {"budget": 0.5},
            "dualpipe has whole backwards of each",
        ),
        (S.make("zb-h1", meshes=2, microbatches=2), S.Costs(), {"budget": 1.5}, "budget must be a share from 0 to 1"),
        (S.make("zb-h1", meshes=2, microbatches=2), S.Costs(), {"budget": 1.0, "most": -1}, "most must be a share"),
    ],
)
def test_what_is_refused(schedule: S.Schedule, costs: S.Costs, shares: dict[str, float], message: str) -> None:
    with pytest.raises(S.ScheduleError, match=message):
        freeze_ratios(schedule, costs, **shares)
