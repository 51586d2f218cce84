"""Where to cut: published cases, all cuts of small rows of layers, limits, what is refused."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise, product
from random import Random
from typing import Any

import numpy as np
import pytest

from jaxpp import schedules as S
from jaxpp.schedules import Costs, ScheduleError
from jaxpp.schedules.engine.memory import MemoryLimits
from jaxpp.schedules.search.cuts import all_cuts, beside, best_cuts, even_cuts, least_time, spans
from jaxpp.schedules.search.cutting import Cutting
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.keep_less import keep_less
from jaxpp.schedules.search.placed_row import PlacedRow


def alike(layers: Sequence[float], **others: Any) -> Costs:
    """F = I = W for each layer."""
    return Costs(forward=layers, input_grad=layers, weight_grad=layers, **others)


def interleaved(costs: Costs, layers: int) -> float:
    """The makespan of interleaved 1F1B on equal cuts for 4 meshes, 16 microbatches, 4 chunks."""
    plan = S.make("interleaved-1f1b", meshes=4, microbatches=16, chunks=4)
    return S.simulate(plan, costs.cut(even_cuts(layers, plan.stages))).makespan


def test_a_heavy_last_layer_gets_a_stage_with_fewer_layers():
    found = S.partition(alike([1.0] * 15 + [4.0]), meshes=4, microbatches=16)
    assert (found.cuts, found.value, found.lower_bound, found.gap) == ((5, 5, 5, 1), 250, 250, 0)
    assert S.simulate(found.schedule, found.costs).makespan == 250
    assert interleaved(alike([1.0] * 15 + [4.0]), 16) == 345
    assert str(found) == "5, 5, 5, 1 layers: 250 (at least 250)"


def test_an_embedding_and_a_head_with_hops_in_the_memory_of_six():
    costs = alike([0.3] + [0.25] * 14 + [1.0], hop=0.02)
    found = S.partition(costs, meshes=4, microbatches=16, memory_limit=6, seconds=0.5)
    assert found.value <= 63.38 + 1e-9
    assert max(S.simulate(found.schedule, found.costs).peak_activations()) <= 6
    assert S.search(4, 16, costs.cut(even_cuts(16, 4)), 6, seconds=0.1).value > 1.3 * found.value


def _drawn(seed: int) -> tuple[Costs, int, int, float]:
    random = Random(seed)
    meshes = random.choice([2, 3, 4])
    forward = [random.choice([0.5, 1, 1, 2, 3, 5]) for _ in range(random.randint(meshes + 1, 7))]
    weight = [time * random.choice([0.1, 0.5, 1]) for time in forward]
    speed = random.choice([1.0, [random.choice([1, 2]) for _ in range(meshes)]])
    hop = random.choice([0, 0.1, 0.5])
    costs = Costs(forward=forward, input_grad=forward, weight_grad=weight, speed=speed, hop=hop)
    return costs, meshes, random.choice([4, 6]), random.choice([math.inf, meshes, meshes + 1])


@pytest.mark.parametrize("seed", range(12))
def test_no_cuts_of_a_small_row_are_better(seed: int):
    costs, meshes, microbatches, limit = _drawn(seed)
    layers = costs.stages or 0
    every = {
        cuts: S.search(meshes, microbatches, costs.cut(cuts), limit, placement="linear", seconds=0.05)
        for cuts in all_cuts(layers, meshes)
    }
    found = S.partition(costs, meshes, microbatches, limit, seconds=0.5)
    assert found.value <= min(each.value for each in every.values()) * 1.002
    assert found.lower_bound <= min(each.value for each in every.values()) * (1 + 1e-9)
    assert found.value == pytest.approx(S.simulate(found.schedule, costs.cut(found.cuts)).makespan)


@pytest.mark.parametrize("seed", range(6))
def test_the_least_time_of_any_shares(seed: int) -> None:
    """Compared with all ways to share things out; half solved it is not above."""
    random = Random(seed)
    times = [random.choice([1.0, 1.5, 4.0, 4.25]) for _ in range(7)]
    speeds, ways = [random.choice([1.0, 2.0]) for _ in range(3)], [random.choice([0.0, 0.7]) for _ in range(3)]
    every = [
        max(
            math.fsum(time for time, home in zip(times, homes, strict=True) if home == mesh) / speed + way
            for mesh, (speed, way) in enumerate(zip(speeds, ways, strict=True))
        )
        for homes in product(range(3), repeat=7)
    ]
    assert least_time(times, speeds, ways) == pytest.approx(min(every))
    assert all(least_time(times, speeds, ways, nodes) <= min(every) * (1 + 1e-9) for nodes in (0, 1))


@pytest.mark.parametrize(("placement", "split"), [("looped", True), ("v", False)])
def test_the_bound_of_several_stages_per_mesh(placement: str, split: bool) -> None:
    costs = Costs(forward=[1.0] * 5 + [3.5], input_grad=[1.0] * 5 + [3.5], weight_grad=[1.0] * 5 + [3.5], hop=0.1)
    found = S.partition(costs, 2, 6, chunks=2, placement=placement, split_backward=split, seconds=0.5)
    options: dict[str, Any] = {"placement": placement, "chunks": 2, "split_backward": split, "seconds": 0.05}
    every = [S.search(2, 6, costs.cut(cuts), **options).value for cuts in all_cuts(6, 4)]
    assert found.lower_bound <= min(every) * (1 + 1e-9)
    assert found.gap < 0.03


@pytest.mark.parametrize(("placement", "split"), [((0, 1), False), ((0, 1, 1, 0), False), ((0, 1), True)])
def test_the_bound_takes_the_times_of_kinds_as_orders_do(placement: tuple[int, ...], split: bool) -> None:
    forward, whole, half = [1.0, 2.0, 1.0, 1.0, 3.0], [1.0, 2.0, 0.5, 1.0, 2.0], [0.5, 1.0, 0.25, 0.5, 1.0]
    long = Costs(forward=[5.0] * 5, input_grad=[5.0] * 5, weight_grad=[5.0] * 5)
    told = {"forward": forward, "backward": whole, **({"input_grad": half, "weight_grad": half} if split else {})}
    memory, shape = MemoryLimits((math.inf,) * 2, "W"), S.Placement.of(*placement)

    def bound(costs: Costs) -> float:
        row = PlacedRow(shape, costs, 4, memory, ((0.0, 0.0),) * 5, split)
        return Cutting(row, Effort(1), np.random.default_rng(0)).bound

    assert bound(replace(long, kinds=told)) == pytest.approx(bound(Costs(forward, half, half)))


def test_equal_arguments_give_equal_results():
    costs = alike([0.3] + [0.25] * 14 + [1.0], hop=0.02)
    one, other = (S.partition(costs, 4, 16, 6, chunks=2, seconds=0.2) for _ in range(2))
    assert (one.cuts, one.schedule, one.value) == (other.cuts, other.schedule, other.value)


def test_several_stages_per_mesh():
    costs = alike([1.0] * 15 + [4.0])
    found = S.partition(costs, 4, 16, chunks=2, seconds=0.5)
    assert (len(found.cuts), sum(found.cuts), found.schedule.meshes) == (8, 16, 4)
    assert found.value < 0.75 * interleaved(costs, 16)


def test_a_faster_mesh_gets_more_layers():
    found = S.partition(alike([1.0] * 12, speed=[1, 2, 2, 1]), 4, 16, seconds=0.2)
    assert (found.cuts, found.value, found.gap) == ((2, 4, 4, 2), 102, 0)


@pytest.mark.parametrize(
    ("limit", "bandwidth", "split", "kinds", "value"),
    [
        (27, math.inf, True, set[str](), 153),
        (14, math.inf, True, {"recompute"}, 206),
        (21, 20.0, False, {"offload", "reload"}, 171),
    ],
)
def test_bytes_are_kept_to_by_what_costs_least(
    limit: float, bandwidth: float, split: bool, kinds: set[str], value: float
):
    costs = alike([1.0] * 12, activation_bytes=[2.0] * 12, message_bytes=0.5, copy_bandwidth=bandwidth)
    costs = costs if split else replace(costs, kinds={"recompute": [9.0] * 12})
    found = S.partition(costs, 4, 16, memory_bytes=limit, resident_bytes=1, split_backward=split, seconds=0.5)
    report = S.simulate(found.schedule, found.costs)
    assert all(peak + size <= limit for peak, size in zip(report.peak_bytes(), found.cuts, strict=True))
    assert {task.kind for task in found.schedule} & {"recompute", "offload", "reload"} == kinds
    assert found.lower_bound <= found.value == report.makespan <= value


def test_a_mesh_with_less_memory_gets_fewer_layers():
    costs = alike([1.0] * 8, activation_bytes=[1.0] * 8)
    found = S.partition(costs, 2, 4, memory_bytes=[4, 100], resident_bytes=[1.0] * 8, seconds=0.2)
    assert found.cuts[0] < 4
    sizes = {"memory_bytes": [50, 50], "resident_bytes": [[20.0, 5.0]] * 8}
    assert S.partition(costs, 2, 4, **sizes, seconds=0.2).cuts[0] <= 2  # pyright: ignore[reportArgumentType]  # a dict


@pytest.mark.parametrize("split", [True, False])
def test_little_more_than_the_least_room_of_two_stages_per_mesh(split: bool):
    """Cuts that even out what stages take leave each mesh too little: one has two large stages then."""
    resident = [0.0] * 3 + [5.0] * 3
    costs = alike([1.0] * 6, activation_bytes=[20.0] + [1.0] * 5, message_bytes=0.5)
    options: dict[str, Any] = {"resident_bytes": resident, "chunks": 2, "placement": "looped", "split_backward": split}
    found = S.partition(costs, 2, 6, memory_bytes=22, seconds=0.2, **options)
    report, ends = S.simulate(found.schedule, found.costs), np.cumsum(found.cuts)
    there = [0.0, 0.0]
    for stage, size in enumerate(found.cuts):
        there[found.schedule.placement[stage]] += sum(resident[ends[stage] - size : ends[stage]])
    assert max(map(sum, zip(report.peak_bytes(), there, strict=True))) <= 22
    assert found.value == pytest.approx(report.makespan)
    with pytest.raises(ScheduleError, match="no cuts fit the memory, even if every stage recomputes"):
        S.partition(costs, 2, 6, memory_bytes=15, seconds=0.2, **options)


KEPT = [1.0, 1, 1, 20, 3, 1, 20, 1, 1, 1, 7.5, 7.5, 20, 1, 1]
THERE = [0.0, 0, 1, 1, 1, 1, 10, 10, 1, 1, 1, 1, 4, 10, 0]


@pytest.mark.parametrize(
    ("placement", "meshes", "kept", "there", "least"),
    [
        ("looped", 2, [1.0, 1, 3, 20, 1], [1.0, 1, 0, 10, 0], 31),
        ("v", 2, [1.0, 1, 3, 1, 20, 3], [1.0, 1, 10, 0, 0, 10], 27),
        ("v", 3, KEPT, THERE, 36),  # 2,002 ways
        ("linear", 6, KEPT, THERE, 31),
    ],
)
def test_the_least_memory_that_there_may_be(
    placement: str, meshes: int, kept: list[float], there: list[float], least: float
) -> None:
    """One microbatch after the other, and all of its forwards again; of all cuts the least, by trying them."""
    times = [1.0] * len(kept)
    costs = S.Costs(times, times, times, activation_bytes=kept, message_bytes=[min(size, 0.5) for size in kept])
    chunks = 1 if placement == "linear" else 2
    options: dict[str, Any] = {"placement": placement, "chunks": chunks, "resident_bytes": there, "seconds": 0.05}
    shape = S.Placement.of(*SHAPES[placement](meshes))
    row = partial(least_bytes, shape, costs, there)
    assert min(map(row, all_cuts(len(kept), shape.stages))) == least
    found = S.partition(costs, meshes, 3, memory_bytes=least, **options)
    peaks = S.simulate(found.schedule, found.costs).peak_bytes()
    ends = [0, *accumulate(found.cuts)]
    for stage, (start, end) in enumerate(pairwise(ends)):
        peaks[found.schedule.placement[stage]] += sum(there[start:end])
    assert max(peaks) == pytest.approx(least)
    with pytest.raises(ScheduleError, match="no cuts fit the memory, even if every stage recomputes"):
        S.partition(costs, meshes, 3, memory_bytes=least - 0.1, **options)


def test_layers_that_keep_nothing_may_fill_a_mesh() -> None:
    for limit, there in ((2, 1.0), (0.3, 0.1 + 0.05), (100, 50.0)):
        found = S.partition(
            alike([1.0] * 2, activation_bytes=[0.0] * 2), 1, 2, memory_bytes=limit, resident_bytes=there
        )
        assert (found.cuts, found.value) == ((2,), 12)
    beside: dict[str, Any] = {"memory_bytes": [10, 6], "resident_bytes": [10.0, 1.0], "seconds": 0.1}
    found = S.partition(alike([1.0] * 2, activation_bytes=[0.0, 5.0]), 2, 4, **beside)
    assert (found.cuts, found.value) == ((1, 1), 14)


SHAPES: dict[str, Callable[[int], Sequence[int]]] = {
    "linear": range,
    "looped": lambda meshes: [*range(meshes)] * 2,
    "v": lambda meshes: [*range(meshes), *reversed(range(meshes))],
}


def least_bytes(shape: S.Placement, costs: S.Costs, there: Sequence[float], cuts: Sequence[int]) -> float:
    """What the fullest mesh keeps where one microbatch after the other recomputes everywhere."""
    up = [S.Task("forward", stage, 0) for stage in range(shape.stages)]
    rows: list[list[S.Task]] = [[] for _ in range(shape.meshes)]
    for task in (*up, *(S.Task("backward", task.stage, 0) for task in reversed(up))):
        rows[shape[task.stage]].append(task)
    peaks = S.simulate(S.recompute(S.Schedule.of("one", shape, rows)), costs.cut(cuts)).peak_bytes()
    for stage, (start, end) in enumerate(pairwise([0, *accumulate(cuts)])):
        peaks[shape[stage]] += sum(there[start:end])
    return max(peaks)


@pytest.mark.filterwarnings("error")
def test_one_mesh_may_have_all_the_memory_it_wants():
    found = S.partition(alike([1.0] * 8, activation_bytes=[1.0] * 8), 2, 4, memory_bytes=[6, math.inf], seconds=0.5)
    assert found.value == S.simulate(found.schedule, found.costs).makespan
    assert found.cuts[0] < 4


def test_layers_that_keep_no_bytes():
    costs = Costs([1, 0.3], [0.3, 0.3], [0.3, 0.3], hop=1, speed=[2, 1], copy_bandwidth=1)
    found = S.partition(costs, 2, 2, memory_bytes=[3, 12], resident_bytes=1.0, seconds=0.1)
    assert max(S.simulate(found.schedule, found.costs).peak_bytes()) == 0


def test_the_value_is_that_of_recomputes_that_begin_early():
    """They need not wait for the gradients that their backwards wait for."""
    costs = alike([1.0] * 6, activation_bytes=[1.0] * 6, hop=1)
    found = S.partition(costs, 3, 3, memory_bytes=2.5, seconds=0.1)
    assert "recompute" in {task.kind for task in found.schedule}
    assert found.value == S.simulate(found.schedule, found.costs).makespan


def test_what_a_cut_adds_up():
    costs = Costs(forward=[1, 2, 3], message_bytes=[5, 6, 7], kinds={"tick": [1, 1, 1]}, hop=0.5)
    cut = costs.cut((2, 1))
    assert (cut.forward, cut.message_bytes, cut.kinds, cut.hop) == ((3, 3), (6, 7), {"tick": (2, 1)}, 0.5)
    assert costs.listed(3, 1).input_grad == (1 / 3,) * 3
    with pytest.raises(ScheduleError, match=r"^cuts of 4 layers, the costs are for 3$"):
        costs.cut((2, 2))
    with pytest.raises(ScheduleError, match="the layers of a stage must be"):
        costs.cut((3, 0))


def test_the_best_cuts_of_given_costs_are_those_of_all():
    random = Random(0)
    for _ in range(20):
        times = [random.random() for _ in range(7)]
        speeds = [random.choice([1, 2]) for _ in range(3)]
        found = best_cuts(spans(times)[None] / [[[speed]] for speed in speeds])
        assert found is not None

        def worst(cuts: Sequence[int], times: list[float] = times, speeds: list[int] = speeds) -> float:
            starts = [sum(cuts[:stage]) for stage in range(3)]
            loads = (sum(times[s : s + n]) / speed for s, n, speed in zip(starts, cuts, speeds, strict=True))
            return max(loads)

        assert found[0] == pytest.approx(min(map(worst, all_cuts(7, 3)))) == pytest.approx(worst(found[1]))


def test_neighbours_and_even_cuts():
    assert even_cuts(7, 3) == (3, 2, 2)
    assert list(beside((2, 1))) == [(1, 2)]
    assert len(list(all_cuts(6, 3))) == 10


@pytest.mark.parametrize(
    ("costs", "options", "message"),
    [
        (Costs(), {}, "partition: the costs are scalars: give a list with a number for each layer"),
        (alike([1.0] * 3), {}, "partition: 3 layers are fewer than the 4 stages of 4 meshes"),
        (alike([1.0] * 8), {"chunks": 3}, "partition: 8 layers are fewer than the 12 stages of 4 meshes"),
        (
            alike([1.0] * 8),
            {"resident_bytes": [1.0]},
            "resident_bytes: expected a number for each of 8 layers, found 1",
        ),
        (
            alike([1.0] * 8),
            {"resident_bytes": [[1.0]] * 8},
            "resident_bytes of layer 0: expected a number for each of 4 meshes, found 1",
        ),
        (alike([1.0] * 8), {"resident_bytes": math.nan}, "resident_bytes must be 0 or more, found nan"),
        (
            alike([1.0] * 8),
            {"resident_bytes": [*[1.0] * 7, "x"]},
            "resident_bytes of layer 7 must be 0 or more, found 'x'",
        ),
        (
            alike([1.0] * 8, activation_bytes=[4.0] * 8),
            {"memory_bytes": 5.0},
            "partition: no cuts fit the memory, even if every stage recomputes: all layers take 0 bytes at all times, "
            "and one microbatch 32; there is room for 20 on 4 meshes",
        ),
        (
            alike([1.0] * 8),
            {"memory_limit": 0.5},
            "partition: no cuts fit the memory: a mesh keeps at least 1 microbatch",
        ),
        (alike([1.0] * 8), {"seconds": 0}, "seconds must be a positive number, found 0"),
        (alike([1.0] * 8), {"split_backward": 1}, "split_backward must be true or false, found 1"),
        (
            alike([1.0] * 8),
            {"progress": []},
            "progress must be a function of the share spent, the value and the bound, found []",
        ),
        (
            [1.0] * 4,
            {},
            "costs must be a Costs, such as Costs(forward=1, hop=0.1), found [1.0, 1.0, 1.0, 1.0]",
        ),
    ],
)
def test_what_is_refused(costs: Any, options: dict[str, object], message: str):
    with pytest.raises(ScheduleError) as caught:
        S.partition(costs, 4, 8, **options)  # pyright: ignore[reportArgumentType]  # wrong on purpose
    assert str(caught.value) == message


def test_finished_schedules_are_brought_into_a_limit_in_bytes() -> None:
    """That is counted, and the best one is put in order in the end."""
    costs = alike([1.0] * 16, hop=0.1, activation_bytes=[4.0] * 16, message_bytes=[1.0] * 16, copy_bandwidth=4.0)
    found = S.partition(costs, 4, 16, memory_bytes=40, seconds=1)
    assert {"offload", "reload"} <= {task.kind for task in found.schedule}
    assert max(S.simulate(found.schedule, found.costs).peak_bytes()) <= 40
    assert found.value == pytest.approx(S.simulate(found.schedule, found.costs).makespan)
    effort = Effort(10)
    kept = keep_less(S.make("1f1b", meshes=4, microbatches=16), costs.cut([4] * 4), [40.0] * 4, effort)
    assert kept is not None
    assert effort.spent > 0
    assert found.value < S.simulate(kept, costs.cut([4] * 4)).makespan
