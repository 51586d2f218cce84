"""The search: what it finds is valid, fits the memory, is never worse than what is published, and is reproducible."""

import gc
import importlib
import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp import schedules as S
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.engine.problem import Orders, Problem, make_problem
from jaxpp.schedules.search import Found
from jaxpp.schedules.search.alone import alone
from jaxpp.schedules.search.anneal import anneal_orders
from jaxpp.schedules.search.beam import Beam, Taste
from jaxpp.schedules.search.bounds import least_memory, lower_bound
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.rules import by_rules, dispatch
from jaxpp.schedules.search.waves import waves

SHAPES: dict[str, Callable[[int], S.Placement]] = {
    "linear": S.Placement.linear,
    "v": lambda meshes: S.Placement.waves(meshes, 2),
    "looped": lambda meshes: S.Placement.looped(meshes, 2),
    "waves": lambda meshes: S.Placement.waves(meshes, 3),
}
TIMES = st.floats(0.1, 3.0)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, S.Costs]:
    """Any placement, uneven costs, hops, a memory limit per mesh, fused or split."""
    meshes = draw(st.integers(1, 4))
    placement = SHAPES[draw(st.sampled_from(sorted(SHAPES)))](meshes)
    times = st.lists(TIMES, min_size=placement.stages, max_size=placement.stages)
    costs = S.Costs(draw(times), draw(times), draw(times), hop=draw(st.sampled_from([0.0, 0.3])))
    limits = draw(st.lists(st.sampled_from([1.0, 1.5, 2.5, math.inf]), min_size=meshes, max_size=meshes))
    memory = MemoryLimits(tuple(limits), draw(st.sampled_from(["W", "B", "half"])))
    objective: Any = draw(st.sampled_from(["makespan", "longest_stage"]))
    return make_problem(placement, draw(st.integers(1, 5)), costs, memory, objective, draw(st.booleans())), costs


def check_orders(problem: Problem, costs: S.Costs, orders: Any) -> None:
    """They are a valid schedule with the value that the simulator gives, within the limits, above the bound."""
    schedule = problem.schedule("made", orders)
    S.check(schedule)
    report = S.simulate(schedule, costs)
    assert problem.value(orders) == pytest.approx(getattr(report, problem.objective), rel=1e-9)
    assert problem.value(orders) >= lower_bound(problem) * (1 - 1e-9)
    assert problem.fits(orders)
    assert problem.orders(schedule) == [list(order) for order in orders]


def annealed(problem: Problem, orders: Orders, seconds: float) -> Orders:
    """What annealing makes of these orders."""
    for better in anneal_orders(problem, orders, Effort(math.inf), seconds, Random(0)):
        assert problem.value(better) < problem.value(orders)
        orders = better
    return orders


@given(problems())
@settings(deadline=None, max_examples=40)
def test_whatever_is_made_is_valid(made: tuple[Problem, S.Costs]) -> None:
    problem, costs = made
    check_orders(problem, costs, problem.one_by_one)
    check_orders(problem, costs, dispatch(problem, range(problem.types), [problem.microbatches] * problem.stages))
    check_orders(problem, costs, by_rules(problem, Effort(0.5)))
    check_orders(problem, costs, annealed(problem, problem.one_by_one, 0.05))
    in_waves = waves(problem, Effort(math.inf))
    if in_waves is not None:
        check_orders(problem, costs, in_waves)
    orders = Beam(problem, Taste(8, -0.05, -0.05, 1), Effort(math.inf)).run()
    if orders is not None:
        check_orders(problem, costs, orders)


@given(problems())
@settings(deadline=None, max_examples=40)
def test_a_beam_only_looks_below_its_bound(made: tuple[Problem, S.Costs]) -> None:
    problem, _ = made
    best = Beam(problem, Taste(20), Effort(math.inf)).run()
    if best is not None:
        better = Beam(problem, Taste(20), Effort(math.inf), below=problem.value(best)).run()
        assert better is None or problem.value(better) < problem.value(best)
        assert Beam(problem, Taste(20), Effort(math.inf), below=lower_bound(problem)).run() is None


@given(problems())
@settings(deadline=None, max_examples=40)
def test_no_orders_beat_what_a_mesh_can_do_alone(made: tuple[Problem, S.Costs]) -> None:
    problem, _ = made
    beam = Beam(problem, Taste(20), Effort(math.inf)).run()
    best = min(problem.value(orders) for orders in (problem.one_by_one, beam) if orders)
    for mesh in range(problem.meshes):
        bound = alone(problem, mesh, Effort(0.1), math.inf)
        assert bound <= best * (1 + 1e-9)
        # With something to stay below, it is the same or less work.
        assert alone(problem, mesh, Effort(0.1), best) >= min(bound, best) * (1 - 1e-9)


def test_what_waits_for_its_weight_gradient_alone_may_be_smaller_than_all_else() -> None:
    """Mesh 0 ends with all of stages 0 and 2 to do, and with a weight gradient that fits beside them."""
    hops = [[0, 0, 50], [0, 0, 0], [50, 0, 0]]
    bytes_: dict[str, Any] = {"activation_bytes": [1.0] * 4, "weight_grad_bytes": [1, 1, 0.9, 1]}
    costs = S.Costs([6, 0.001, 6, 0.001], [1, 6, 0.8, 0.001], [9, 0.001, 6, 0.001], hop=hops, **bytes_)
    memory = MemoryLimits((2.9, math.inf, math.inf), None)
    problem = make_problem(S.Placement.of(0, 1, 0, 2), 2, costs, memory, "makespan", True)
    orders = [[0, 2, 6, 0, 4, 8, 2, 10, 6, 10, 4, 8], [1, 5, 9, 1, 5, 9], [3, 7, 11, 3, 7, 11]]
    check_orders(problem, costs, orders)


# Optima proven by an exact solver (benchmarks/search.py): placement, microbatches, limit, release, value.
PROVEN = [
    ("v", 4, 8, 3.0, "W", 26.5),
    ("v", 4, 8, 2.5, "W", 28.0),
    ("v", 4, 8, 4.0, "W", 25.5),
    ("looped", 4, 8, 1.5, "W", 41.5),
    ("looped", 4, 8, 2.5, "W", 28.5),
    ("looped", 4, 8, 4.0, "W", 25.5),
    ("linear", 4, 8, 2.5, "W", 41.0),
    ("v", 4, 8, 2.5, "half", 28.0),
]


def _chunks(shape: str) -> dict[str, Any]:
    return {} if shape == "linear" else {"chunks": 2}


@pytest.mark.parametrize(("shape", "meshes", "microbatches", "limit", "release", "optimum"), PROVEN)
def test_small_pipelines_are_optimal(
    shape: str, meshes: int, microbatches: int, limit: float, release: Any, optimum: float
) -> None:
    found = S.search(
        meshes, microbatches, memory_limit=limit, placement=shape, released_at=release, seconds=2, **_chunks(shape)
    )
    assert found.value == pytest.approx(optimum)
    report = S.simulate(found)
    assert report.makespan == pytest.approx(found.value)
    assert max(report.peak_activations(release)) <= limit
    assert found.lower_bound <= found.value


@pytest.mark.parametrize(
    ("meshes", "limit", "value", "bound"),
    [(32, 17.0, 1288.5, 1263.2), (16, 8.0, 685.2, 657.0)],
    ids=["a little more", "half, in the first part of each round"],
)
def test_waves_are_near_the_bound_in_half_of_the_memory_of_1f1b(
    meshes: int, limit: float, value: float, bound: float
) -> None:
    """Of any number of meshes; a beam is 10 % worse."""
    skewed = S.Costs(forward=1, input_grad=1.25, weight_grad=0.75, hop=0.1)
    memory = MemoryLimits((limit,) * meshes, "W")
    problem = make_problem(S.Placement.linear(meshes), 8 * meshes, skewed, memory, "makespan", True)
    orders = waves(problem, Effort(math.inf))
    assert orders
    assert problem.value(orders) == pytest.approx(value)
    assert lower_bound(problem) == pytest.approx(bound)


def test_annealing_goes_on_where_published_schedules_end() -> None:
    costs = S.Costs(forward=10, input_grad=12, weight_grad=8, hop=1)
    memory = MemoryLimits((3.0,) * 6, "W")
    problem = make_problem(S.Placement.waves(6, 2), 12, costs, memory, "makespan", True)
    orders = problem.orders(S.make("v-min", meshes=6, microbatches=12))
    assert orders
    assert problem.fits(orders)
    assert problem.value(orders) == 592
    assert problem.value(annealed(problem, orders, 1)) <= 545


def test_annealing_finds_longest_stages_without_a_bubble() -> None:
    """All meshes work for 24; the last one begins and ends later than the first."""
    memory = MemoryLimits((math.inf,) * 3, "W")
    problem = make_problem(S.Placement.linear(3), 6, S.Costs(weight_grad=2), memory, "longest_stage", True)
    orders = problem.orders(S.make("zb-h1", meshes=3, microbatches=6))
    assert orders
    assert problem.value(orders) == 26
    assert problem.value(annealed(problem, orders, 0.3)) == 24


def test_v_half_and_v_min_are_beaten_or_met_in_their_memory() -> None:
    for name, limit in (("v-min", 2.0), ("v-half", 3.0), ("zb-v", 4.0)):
        published = S.simulate(S.make(name, meshes=4, microbatches=12)).makespan
        found = S.search(4, 12, memory_limit=limit, placement="v", seconds=1)
        assert found.value <= published


def test_linear_with_the_memory_of_1f1b_is_zero_bubble() -> None:
    found = S.search(8, 32, memory_limit=8.0, seconds=5)
    assert (found.value, found.lower_bound, found.gap) == (103.0, 103.0, 0.0)


@given(problems(), st.integers(0, 3))
@settings(deadline=None, max_examples=25)
def test_a_search_is_reproducible_and_no_worse_than_the_library(made: tuple[Problem, S.Costs], seed: int) -> None:
    problem, costs = made
    split = len(problem.kinds) > 2
    arguments: dict[str, Any] = {
        "costs": costs,
        "memory_limit": problem.limits,
        "placement": problem.placement,
        "objective": problem.objective,
        "split_backward": split,
        "seed": seed,
        "seconds": 0.15,
    }
    found = S.search(problem.meshes, problem.microbatches, **arguments)
    assert found == S.search(problem.meshes, problem.microbatches, **arguments)
    S.check(found)
    assert S.parse(str(found)).orders == found.orders
    report = S.simulate(found, costs)
    assert getattr(report, problem.objective) == pytest.approx(found.value)
    peaks = zip(report.peak_activations("W"), problem.limits, strict=True)
    assert all(peak <= limit for peak, limit in peaks)
    for name in ("1f1b", "gpipe", "zb-h1", "zb-v", "v-half"):
        other = S.make(name, meshes=problem.meshes, microbatches=problem.microbatches)
        kinds = {task.kind for task in other}
        if other.placement == problem.placement and (split or kinds == {"forward", "backward"}):
            rival = S.simulate(other, costs)
            peaks = zip(rival.peak_activations("W"), problem.limits, strict=True)
            if all(peak <= limit for peak, limit in peaks):
                assert found.value <= getattr(rival, problem.objective) * (1 + 1e-9)


def test_the_search_chooses_the_placement() -> None:
    heavy = [3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0]
    costs = S.Costs(heavy, heavy, heavy)
    found = S.search(4, 8, costs, placement="any", seconds=3)
    # V and linear put two heavy stages on one mesh; a placement that shares them out puts each with a light one.
    loads = [sum(heavy[stage] for stage in found.placement.stages_of(mesh)) for mesh in range(4)]
    assert loads == [4.0] * 4
    assert found.value < S.search(4, 8, costs, placement="v", seconds=1).value


def test_scalars_leave_the_number_of_chunks_open() -> None:
    found = S.search(2, 4, placement="looped", seconds=1)
    assert found.stages // 2 in (2, 3, 4)
    assert found.value < S.search(2, 4, placement="linear", seconds=1).value


def test_memory_in_bytes() -> None:
    costs = S.Costs(activation_bytes=[100.0, 400.0], weight_grad_bytes=[10.0, 40.0])
    found = S.search(2, 6, costs, memory_bytes=[300.0, 800.0], seconds=1)
    peaks = S.simulate(found, costs).peak_bytes()
    assert peaks[0] <= 300.0
    assert peaks[1] <= 800.0


def test_progress_is_told() -> None:
    seen: list[tuple[float, float, float]] = []

    def progress(share: float, value: float, bound: float) -> None:
        seen.append((share, value, bound))

    found = S.search(3, 6, memory_limit=1.5, placement="v", seconds=0.5, progress=progress)
    shares = [share for share, _, _ in seen]
    assert shares == sorted(shares)
    assert shares[-1] > 0.5
    assert seen[-1][1:] == (found.value, found.lower_bound)


def test_little_time_for_a_large_problem_goes_to_what_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_: Problem) -> Orders:
        raise AssertionError("the automatic scheduler takes longer than there is")

    monkeypatch.setattr(importlib.import_module("jaxpp.schedules.search.search"), "best_orders", asked)
    found = S.search(24, 96, memory_limit=13, seconds=0.001)
    assert found.value <= 1.05 * found.lower_bound  # in waves


def test_a_history_says_when_what_was_found() -> None:
    found = S.search(3, 6, memory_limit=1.5, placement="v", seconds=0.5)
    seconds, values, bounds = zip(*((each.seconds, each.value, each.bound) for each in found.history), strict=True)
    assert list(seconds) == sorted(seconds)
    assert seconds[-1] <= 0.5
    assert list(values) == sorted(values, reverse=True)
    assert len(set(values)) > 1
    assert list(bounds) == sorted(bounds)
    assert (values[-1], bounds[-1]) == (found.value, found.lower_bound)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"meshes": 0}, "meshes must be a whole number of at least 1, found 0"),
        ({"microbatches": 1.5}, "microbatches must be a whole number of at least 1, found 1.5"),
        (
            {"memory_limit": 0.5},
            "no schedule fits the memory: mesh 0 keeps at least 1 microbatch; its limit is 0.5",
        ),
        ({"memory_limit": math.nan}, "memory_limit must be a positive number, found nan"),
        ({"memory_limit": [2.0]}, "memory_limit must be a number, or one for each of 2 meshes, found 1"),
        (
            {"memory_limit": 2.0, "memory_bytes": 5.0},
            "memory_limit and memory_bytes are two ways to say one thing: give one of them",
        ),
        ({"released_at": "X"}, "released_at must be one of W, B, half, found 'X'"),
        ({"objective": "bubble"}, "objective must be one of makespan, longest_stage, found 'bubble'"),
        (
            {"placement": "u"},
            "placement must be one of linear, v, looped, waves, any, or a Placement, found 'u'",
        ),
        ({"placement": "v", "chunks": 3}, "a v placement has 2 stages per mesh, found chunks=3"),
        ({"placement": S.Placement.linear(3)}, "placement is on 3 meshes, found meshes=2"),
        ({"seconds": 0}, "seconds must be a positive number, found 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, found -1"),
        ({"costs": {"hop": 1}}, "costs must be a Costs, such as Costs(forward=1, hop=0.1), found {'hop': 1}"),
        ({"costs": {}}, "costs must be a Costs, such as Costs(forward=1, hop=0.1), found {}"),
        ({"memory_limit": [1, [2]]}, "memory_limit must be a positive number, found [2]"),
        ({"memory_limit": "4"}, "memory_limit must be a positive number, found '4'"),
        ({"placement": ["v"]}, "placement must be one of linear, v, looped, waves, any, or a Placement, found ['v']"),
        ({"objective": ["makespan"]}, "objective must be one of makespan, longest_stage, found ['makespan']"),
        ({"split_backward": "no"}, "split_backward must be true or false, found 'no'"),
        ({"progress": 1}, "progress must be a function of the share spent, the value and the bound, found 1"),
        (
            {"costs": S.Costs(forward=[1.0, 1.0, 1.0]), "placement": "any"},
            "no placement on 2 meshes has the 3 stages of the costs, or a divisor of them",
        ),
        (
            {"costs": S.Costs(forward=[1.0, 1.0, 1.0])},
            "no linear placement on 2 meshes has the 3 stages of the costs, or a divisor of them",
        ),
        (
            {"costs": S.Costs(activation_bytes=100.0), "memory_bytes": 60.0},
            "no schedule fits the memory: mesh 0 keeps at least 100 bytes: one microbatch; its limit is 60",
        ),
        (
            {"costs": S.Costs(activation_bytes=1.0, weight_grad_bytes=3.0), "memory_bytes": 2.0},
            "no schedule fits the memory: mesh 0 keeps at least 3 bytes: one microbatch; its limit is 2",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"meshes": 2, "microbatches": 4, "seconds": 0.1, **arguments}
    with pytest.raises(S.ScheduleError) as error:
        S.search(**given)
    assert str(error.value) == message


def test_the_least_memory_is_enough() -> None:
    problem = make_problem(S.Placement.waves(3, 2), 4, S.Costs(), MemoryLimits((1.0,) * 3, "W"), "makespan", True)
    assert least_memory(problem) == [1.0] * 3
    found = S.search(3, 4, memory_limit=1.0, placement="v", seconds=0.5)
    assert max(S.simulate(found).peak_activations()) == 1.0


def test_tune_ranks_everything() -> None:
    tuned = S.tune(S.Costs(hop=0.1), meshes=4, microbatches=8, memory_limit=4, seconds=0.5)
    fitting = [row for row in tuned.rows if row.fits]
    assert [row.value for row in fitting] == sorted(row.value for row in fitting)
    assert tuned.best.value <= min(row.value for row in fitting)
    assert {row.name.split()[0].rstrip(":") for row in tuned.rows} == {
        "search",
        *(name for name in S.names() if name != "slimpipe" and "vocab" not in name),
    }
    gpipe = next(row for row in tuned.rows if row.name == "gpipe")
    assert not gpipe.fits
    lines = str(tuned).splitlines()
    assert lines[0].split() == ["schedule", "makespan", "longest", "stage", "bubble", "peak"]
    assert lines[1].split()[0] == "1"
    assert next(line for line in lines if " gpipe " in line).endswith("does not fit the memory")


def test_tune_says_why_a_schedule_is_not_there() -> None:
    tuned = S.tune(S.Costs(), meshes=3, microbatches=4, seconds=0.2)
    chimera = next(row for row in tuned.rows if row.name == "chimera")
    assert chimera.report is None
    assert "chimera" in chimera.why


def test_tune_says_once_that_the_costs_are_for_fewer_stages() -> None:
    tuned = S.tune(S.Costs(forward=[1.0] * 4), meshes=4, microbatches=8, seconds=0.1)
    absent = [row.name for row in tuned.rows if row.report is None]
    assert "zb-v" in absent
    assert not any("vocab" in name for name in absent)  # those are for models of other stages, whatever the costs
    lines = str(tuned).splitlines()
    assert lines[-1] == (
        f"{', '.join(absent)}: the costs are for 4 stages, the schedule has 8: measure as many, or a multiple"
    )
    assert len(lines) == 1 + len(tuned.rows) - len(absent) + 1


def test_tune_adds_the_costs_of_neighbours() -> None:
    costs = S.Costs(forward=[1.0, 1.0, 2.0, 2.0], input_grad=1.0, weight_grad=1.0)
    linear = next(row for row in S.tune(costs, meshes=2, microbatches=2, seconds=0.2).rows if row.name == "gpipe")
    assert linear.report is not None
    assert linear.report.costs.forward == (2.0, 4.0)


def test_no_time_at_all_still_gives_a_schedule() -> None:
    for seconds in (1e-6, 0.001, 0.02):
        found = S.search(4, 16, memory_limit=1.5, placement="v", seconds=seconds)
        assert max(S.simulate(found).peak_activations()) <= 1.5


@pytest.mark.parametrize(("meshes", "layers"), [(4, 20), (4, 24), (2, 24), (1, 12), (1, 5)])
def test_costs_of_many_layers_go_with_any_placement(meshes: int, layers: int) -> None:
    costs = S.Costs(forward=[1.0] * layers)
    found = S.search(meshes, 4, costs, placement="any", seconds=0.1)
    assert S.simulate(found, costs.merged(found.stages)).makespan == pytest.approx(found.value)
    assert S.tune(costs, meshes=meshes, microbatches=4, memory_limit=np.full(meshes, 4.0), seconds=0.1).best.fits


def test_stages_that_keep_no_bytes() -> None:
    costs = S.Costs(activation_bytes=[0.0, 5.0])
    found = S.search(2, 3, costs, memory_bytes=10, seconds=0.1)
    assert max(S.simulate(found, costs).peak_bytes()) <= 10


@pytest.mark.parametrize("costs", [None, S.Costs(activation_bytes=[0.0, 0.0])])
def test_bytes_that_limit_nothing(costs: S.Costs | None) -> None:
    text = "memory_bytes limits nothing, as the costs give no bytes: give them activation_bytes"
    with pytest.raises(S.ScheduleError, match=f"^{text}$"):
        S.search(2, 3, costs, memory_bytes=[10, np.inf], seconds=0.1)
    with pytest.raises(S.ScheduleError, match=f"^{text.replace('memory', 'host')}$"):
        S.improve(S.make("1f1b", meshes=2, microbatches=2), costs, host_bytes=10, seconds=0.1)
    assert S.search(2, 3, costs, memory_bytes=np.inf, seconds=0.1).value > 0


def test_what_is_found_equals_its_text() -> None:
    found = S.search(2, 3, seconds=0.1)
    assert S.parse(str(found)) == found
    assert found == S.parse(str(found))
    assert hash(S.parse(str(found))) == hash(found)
    assert found != S.make("gpipe", meshes=2, microbatches=3)
    assert found != "search"


def test_a_bound_of_nothing_proves_nothing() -> None:
    plan = S.make("1f1b", meshes=2, microbatches=3)
    assert Found("1f1b", plan.placement, plan.orders, value=3.0).gap == math.inf
    assert Found("1f1b", plan.placement, plan.orders, value=3.0, lower_bound=2.0).gap == 0.5


def test_a_search_leaves_the_garbage_collector_on() -> None:
    """It may run for minutes beside a training whose objects have cycles."""
    seen: list[bool] = []

    def look(share: float, value: float, bound: float) -> None:
        seen.append(gc.isenabled())

    plan = S.search(4, 8, seconds=0.2, progress=look)
    S.improve(plan, S.Costs([1.0, 1.0, 1.0, 2.0]), seconds=0.2, progress=look)
    assert seen
    assert all(seen)


def test_two_copies_of_the_weights_are_told() -> None:
    lines = str(S.tune(S.Costs(), meshes=4, microbatches=8, seconds=0.2)).splitlines()
    assert next(line for line in lines if " chimera " in line).endswith("keeps weights twice")


@pytest.mark.parametrize("costs", [S.Costs(microbatches=(2,) * 4), S.Costs(slices=(0.5, 0.5))])
def test_a_search_is_for_whole_microbatches_of_size_one(costs: S.Costs) -> None:
    """Equal ones of another size have other times and bytes than the search would count with."""
    with pytest.raises(S.ScheduleError, match="search: all microbatches must be whole and of size 1, but"):
        S.search(meshes=2, microbatches=4, costs=costs, memory_limit=2)


def test_microbatches_move_to_the_better_home() -> None:
    """In one direction the heavy stage is on the fast mesh: by turns the slow one would be busy for 72."""
    costs = S.Costs(forward=[1, 3], input_grad=[1, 3], weight_grad=[1, 3], speed=[2, 1])
    found = S.search(2, 12, costs, placement=S.Placement.of((0, 1), (1, 0)), seconds=0.5)
    slow, fast = ([task.kind for task in row if task.stage == 1].count("forward") for row in reversed(found.orders))
    assert (slow, fast, found.value) == (2, 10, 48)
    assert found.lower_bound == 36
