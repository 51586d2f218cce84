"""Better orders of finished schedules: of tasks of any kind, as the simulator runs them, within any memory."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxpp import schedules as S
from jaxpp.schedules.rewrites.fill import fill
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import freeze, insert
from jaxpp.schedules.search.homes import at_other_homes

COSTS = S.Costs(
    forward=1,
    input_grad=1.25,
    weight_grad=0.75,
    hop=0.1,
    bandwidth=50,
    fused={"backward+forward": 0.9},
    activation_bytes=4,
    weight_grad_bytes=2,
    message_bytes=1,
    kinds={"offload": 0.6, "reload": 0.6, "optimizer": 0.7, "norms": 0.2},
)

TAKEN = """
schedule: taken
placement: 0 1
kind take: forward; here +1; peer -1; on peer; time 0.5
kind give: take; here +1; peer -1; time 0.5
kind backward: forward backward|input_grad@+1 ?give
mesh 0: 0F0 0F1 0F2 0give0 0B0 0B1 0B2
mesh 1: 1F0 0take0 1F1 1B0 1B1 1F2 1B2
"""


def made(name: str, **options: Any) -> S.Schedule:
    return S.make(name, meshes=4, microbatches=8, **options)


COPIED = """
schedule: copied
placement: 0 1
mesh 0: 0F0+0offload0 0F1 0offload1 0reload0 0reload1 0B0 0B1
mesh 1: 1F0 1F1 1B0 1B1
"""

SCHEDULES: dict[str, Callable[[], S.Schedule]] = {
    "whole backwards": lambda: made("hanayo"),
    "halves": lambda: made("v-min"),
    "fused": lambda: made("dualpipe"),
    "two homes": lambda: made("chimera"),
    "slices": lambda: made("seq1f1b"),
    "recomputed": lambda: S.recompute(made("1f1b"), 0, 1),
    "offloaded": lambda: S.offload(made("zb-v"), k=0.5),
    "offloaded in a cell": lambda: S.parse(COPIED),
    "recomputed and offloaded": lambda: S.offload(S.recompute(made("zb-h1"), 0), 0, 1),
    "at a peer": lambda: evict(made("zb-h1")),
    "frozen": lambda: freeze(made("zb-h1"), 1),
    "optimizer": lambda: insert(made("zb-v"), "optimizer", after="weight_grad"),
    "of a user": lambda: insert(made("zb-h1"), S.Operation.parse("norms: forward; holds activation"), after="forward"),
    "taken in turn": lambda: S.parse(TAKEN),
    "side work": lambda: fill(made("interleaved-1f1b"), S.Operation.parse("side:; time 0.5")),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("objective", ["makespan", "longest_stage"])
def test_what_is_found_runs_as_it_says(name: str, objective: Any) -> None:
    schedule = SCHEDULES[name]()
    before = S.simulate(schedule, COSTS)
    most, hosts = max(before.peak_bytes()), max(before.peak_host_bytes()) or math.inf
    found = S.improve(schedule, COSTS, memory_bytes=most, host_bytes=hosts, objective=objective, seconds=0.05)
    after = S.simulate(found, COSTS)
    assert getattr(after, objective) == pytest.approx(found.value, rel=1e-9)
    assert found.lower_bound <= found.value <= getattr(before, objective) * (1 + 1e-9)
    assert max(after.peak_bytes()) <= most * (1 + 1e-9)
    assert max(after.peak_host_bytes()) <= hosts * (1 + 1e-9)
    assert {mesh: set(cells) for mesh, cells in enumerate(found.cells)} == {
        mesh: set(cells) for mesh, cells in enumerate(schedule.cells)
    }
    assert found.kinds == schedule.kinds
    assert found.skipped == schedule.skipped
    assert S.parse(str(found)) == found


@pytest.mark.parametrize(
    ("name", "limit", "before", "most"),
    [
        ("whole backwards", 4, 35.62, 32),
        ("halves", 2, 40.425, 37.5),
        ("two homes", 4, 31.56, 29.1),
        ("recomputed", 4, 38.96, 37),
        ("recomputed and offloaded", 4, 35.59, 33),
        ("offloaded", 4, 27.435, 27),
    ],
)
def test_it_is_better(name: str, limit: float, before: float, most: float) -> None:
    schedule, costs = SCHEDULES[name](), S.Costs(1, 1.25, 0.75, hop=0.12, kinds=COSTS.kinds)
    found = S.improve(schedule, costs, limit, seconds=0.3)
    assert S.simulate(schedule, costs).makespan == pytest.approx(before, rel=0.01)
    assert found.value <= most
    assert max(S.simulate(found, costs).peak_activations()) <= limit


def test_a_bound_that_is_met_proves_the_order() -> None:
    """Forwards are through at 33.72 at the earliest, as the last mesh then is through with its own."""
    found = S.improve(made("eager-1f1b"), COSTS, seconds=10)
    assert found.gap == 0
    assert found.orders == made("eager-1f1b").orders


def test_microbatches_of_several_sizes_may_change_places() -> None:
    """The large one of three meshes does not go first, and does not come back last."""
    schedule, costs = S.make("gpipe", meshes=3, microbatches=4), S.Costs(microbatches=(1, 1, 1, 4))
    found = S.improve(schedule, costs, seconds=0.2)
    assert found.value == S.simulate(found, costs).makespan < S.simulate(schedule, costs).makespan
    assert [task.microbatch for task in found.orders[2] if task.kind == "backward"] != [0, 1, 2, 3]


def test_arguments_find_the_same_again() -> None:
    costs = S.Costs(hop=0.1, bandwidth=4, message_bytes=5)
    found = S.improve(made("v-half"), costs, seconds=0.1, seed=3)
    assert found == S.improve(made("v-half"), costs, seconds=0.1, seed=3)
    assert found.value == S.simulate(found, costs).makespan


def test_progress_is_told() -> None:
    seen: list[tuple[float, float, float]] = []

    def progress(share: float, value: float, bound: float) -> None:
        seen.append((share, value, bound))

    found = S.improve(made("v-min"), COSTS, seconds=0.2, memory_limit=2, progress=progress)
    assert [share for share, _, _ in seen] == sorted(share for share, _, _ in seen)
    assert seen[-1][1] == found.value
    assert seen[0][1] > found.value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"memory_limit": [4, 2, 2, 1]},
            "improve: 1f1b keeps 3 microbatches on mesh 1, its limit is 2: give a schedule that fits",
        ),
        (
            {"memory_limit": 0.5, "change": ["recompute"], "seconds": 0.01},
            "improve: 1f1b keeps 4 microbatches on mesh 0, its limit is 0.5, even with these changes: "
            "give a schedule that fits",
        ),
        (
            {"memory_bytes": 15},
            "improve: 1f1b keeps 16 bytes on mesh 0, its limit is 15: give a schedule that fits",
        ),
        (
            {"host_bytes": 3, "schedule": S.offload(made("gpipe"))},
            "improve: gpipe keeps 32 bytes in the host of mesh 0, its limit is 3: give a schedule that fits",
        ),
        ({"objective": "bubble"}, "objective must be one of makespan, longest_stage, found 'bubble'"),
        ({"seconds": 0}, "seconds must be a positive number, found 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, found -1"),
        ({"schedule": "1f1b"}, "schedule must be a Schedule, as schedules.make makes it, found '1f1b'"),
        ({"change": ["slice"]}, "change must be one of recompute, offload, fuse, homes, found 'slice'"),
        ({"change": "fuse"}, "change must be a list of what may change, found 'fuse': give ['fuse']"),
        ({"change": 3}, "change must be a list of what may change, found 3: give ['recompute']"),
        (
            {"change": ["offload"], "costs": S.Costs()},
            "change: the costs do not say how long an offload takes: give copy_bandwidth, or kinds with both ways",
        ),
        ({"costs": 3}, "costs must be a Costs, such as Costs(forward=1, hop=0.1), found 3"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"schedule": made("1f1b"), "costs": COSTS, **arguments}
    with pytest.raises(S.ScheduleError) as error:
        S.improve(**given)
    assert str(error.value) == message


COPIES = S.Costs(activation_bytes=4, message_bytes=1, hop=0.1, copy_bandwidth=8)


@pytest.mark.parametrize(("change", "limit", "value"), [(["recompute"], 9, 35.6), (["offload"], 12, 34.4)])
def test_stages_that_keep_less_where_that_is_needed(change: list[str], limit: float, value: float) -> None:
    """None does at first, which is above the limit, or all recompute; in the end as few as it takes."""
    for start in (made("1f1b"), S.recompute(made("1f1b"))) if change == ["recompute"] else (made("1f1b"),):
        found = S.improve(start, COPIES, memory_bytes=limit, change=change, seconds=0.5)
        S.check(found)
        report = S.simulate(found, COPIES)
        assert found.value == pytest.approx(report.makespan)
        assert found.value <= value + 1e-9
        assert found.lower_bound == pytest.approx(33.6)  # that of 1F1B, without a limit
        assert max(report.peak_bytes()) <= limit
        stages = {task.stage for task in found if task.kind in change}
        assert 0 in stages
        assert 3 not in stages


def test_stages_that_recompute_for_nothing_stop_it() -> None:
    start = S.recompute(S.make("1f1b", meshes=8, microbatches=32))
    found = S.improve(start, change=["recompute"], seconds=0.5)
    assert "recompute" not in {task.kind for task in found}
    assert found.value == 117
    found = S.improve(start, COPIES, memory_bytes=28, change=["recompute"], seconds=2)
    assert {task.stage for task in found if task.kind == "recompute"} == {0}


def test_copies_that_come_back_as_late_as_they_may() -> None:
    found = S.improve(made("1f1b"), COPIES, 2, change=["offload"], seconds=0.5)
    assert max(S.simulate(found, COPIES).peak_activations()) == 2
    assert found.value <= 36


def test_tasks_that_run_fused_where_that_is_faster() -> None:
    costs = S.Costs(fused={"forward+backward": 0.7})
    found = S.improve(made("eager-1f1b"), costs, change=["fuse"], seconds=0.5)
    assert found.fused
    S.check(found)
    assert found.value == pytest.approx(S.simulate(found, costs).makespan)
    assert found.value <= 27 < S.simulate(made("eager-1f1b"), costs).makespan
    assert found.lower_bound <= found.value
    slower = S.improve(found, S.Costs(fused=1.5), change=["fuse"], seconds=0.5)
    assert not slower.fused
    assert slower.lower_bound <= slower.value <= 33


HEAVY = S.Costs([1, 1, 1, 1.6], [1, 1, 1, 1.6], [1, 1, 1, 1.6], hop=0.1)


def test_microbatches_at_other_homes() -> None:
    """A head of 1.6 layers whose weights are on mesh 0 as well: this mesh runs a few microbatches of it."""
    start = replace(made("zb-h1"), placement=S.Placement.of(0, 1, 2, (3, 0)))
    assert S.improve(start, HEAVY, seconds=0.3).value == pytest.approx(41.7)
    found = S.improve(start, HEAVY, change=["homes"], seconds=1)
    S.check(found)
    assert found.value == pytest.approx(S.simulate(found, HEAVY).makespan)
    assert found.value <= 35
    assert found.lower_bound == pytest.approx(8 * 3 * 4.6 / 4)  # all meshes share the work
    ran = [{task.microbatch for task in order if task.stage == 3} for order in found.orders]
    assert ran[0] | ran[3] == {*range(8)}
    assert not ran[0] & ran[3]
    shorter = S.improve(start, HEAVY, change=["homes"], objective="longest_stage", seconds=0.3)
    assert shorter.lower_bound == pytest.approx(found.lower_bound)


def test_a_limit_holds_where_microbatches_move() -> None:
    start = replace(made("1f1b"), placement=S.Placement.of((0, 3), 1, 2, (3, 0)))
    found = S.improve(start, HEAVY, 4, change=["homes", "recompute"], seconds=0.5)
    assert max(S.simulate(found, HEAVY).peak_activations()) <= 4
    assert found.value <= S.improve(start, HEAVY, 4, seconds=0.5).value


def test_a_slow_mesh_gets_fewer_microbatches() -> None:
    costs = S.Costs(hop=0.1, speed=[1, 1, 1, 0.6])
    found = S.improve(made("chimera"), costs, change=["homes"], seconds=1)
    assert S.improve(made("chimera"), costs, seconds=1).value > 39 > found.value >= found.lower_bound
    weights = [sum(task.kind == "forward" for task in order) for order in found.orders]
    assert weights[3] < weights[0]


@pytest.mark.parametrize("objective", ["makespan", "longest_stage"])
def test_a_mesh_that_has_nothing_to_do_at_first(objective: Any) -> None:
    alone = S.make("1f1b", meshes=1, microbatches=4)
    start = S.Schedule.of("idle", S.Placement.of((0, 1)), [*alone.cells, ()])
    assert S.improve(start, objective=objective, seconds=0.05).value == 24
    assert S.improve(start, objective=objective, change=["homes"], seconds=0.05).value == 12


def test_what_a_peer_takes_stays() -> None:
    """It is where its stage is not."""
    schedule = S.parse(TAKEN)
    found = S.improve(schedule, COSTS, change=["homes"], seconds=0.1)
    assert [sorted(map(str, order)) for order in found.orders] == [sorted(map(str, each)) for each in schedule.orders]


def moved(schedule: S.Schedule) -> list[dict[str, int]]:
    """For each move the tasks that are on another mesh then, and on which."""
    before = {str(task): mesh for mesh, order in enumerate(schedule.orders) for task in order}
    found: list[dict[str, int]] = []
    for rows in at_other_homes(schedule, S.Costs()):
        after = {str(task): mesh for mesh, row in enumerate(rows) for cell in row for task in cell}
        assert after.keys() == before.keys()
        found.append({task: mesh for task, mesh in after.items() if before[task] != mesh})
    return found


def test_what_may_move() -> None:
    """All that a mesh does for a microbatch, at all stages or one; and two that change homes."""
    text = "schedule: two\nplacement: 0+1 1+0\nmesh 0: 0F0 1F1 1B1 0B0\nmesh 1: 1F0 0F1 0B1 1B0\n"
    low, high = ({"0F0": 1, "0B0": 1}, {"1F0": 0, "1B0": 0}), ({"0F1": 0, "0B1": 0}, {"1F1": 1, "1B1": 1})
    whole = low[0] | low[1], high[0] | high[1]
    each = [*whole, whole[0] | whole[1], low[0], high[0], low[1], high[1]]
    found = moved(S.parse(text))
    assert len(found) == len(each)
    assert all(move in found for move in each)


def test_an_optimizer_stays_and_fused_tasks_too() -> None:
    """With all of the microbatch that they are part of."""
    text = """schedule: both
placement: 0+1 1
kind optimizer: ?backward#all; time 0.7
mesh 0: 0F0 0F1 . 0B0 0B1 0optimizer0
mesh 1: 1F0 1F1+1B0 1B1
"""
    assert all(move == {"0F1": 1, "0B1": 1} for move in moved(S.parse(text)))
    dual = S.make("dualpipe", meshes=2, microbatches=4)
    fused = {(task.stage, task.microbatch) for row in dual.cells for cell in row if cell[1:] for task in cell}
    tasks = {str(task) for task in dual if (task.stage, task.microbatch) in fused}
    assert tasks
    assert moved(dual)
    assert not any(tasks & move.keys() for move in moved(dual))


def test_the_bound_knows_what_is_fused_already() -> None:
    """Of any kinds, also where a task of the cell may be left out; and how long copies then take."""
    costs = S.Costs(fused={"forward+weight_grad": 0.3})
    worse = S.parse(
        "schedule: paired\nplacement: 0 1\n"
        "mesh 0: 0F0 0F1 0I0 0W0+0F2 0I1 0W1+0F3 0I2 0W2 0I3 0W3\n"
        "mesh 1: 1F0 1I0 1F1 1W0 1I1 1F2 1W1 1I2 1F3 1W2 1I3 1W3\n"
    )
    found = S.improve(worse, costs, change=["fuse"], seconds=0.2)
    better = S.parse(
        "schedule: paired\nplacement: 0 1\n"
        "mesh 0: 0F0 0F1 0I0 0W0+0F2 0I1 0W1+0F3 0I2 0I3 0W2 0W3\n"
        "mesh 1: 1F0 1F1 1I0 1W0+1F2 1I1 1W1+1F3 1I2 1W2 1I3 1W3\n"
    )
    assert found.lower_bound <= S.improve(better, costs, seconds=0.2).value <= 10.6 + 1e-9
    three = S.parse("schedule: three\nplacement: 0\nmesh 0: 0F0 0F1+0recompute0+0B0 0recompute1 0B1\n")
    costs = S.Costs(fused={"forward+recompute": 0.1, "backward+recompute": 0.1, "backward+forward": 1.5})
    found = S.improve(three, costs, change=["recompute"], seconds=0.1)
    assert found.lower_bound < found.value
    both = S.offload(S.recompute(S.make("zb-h2", meshes=2, microbatches=2)), 0)
    found = S.improve(both, replace(COPIES, copy_bandwidth=1), change=["recompute"], seconds=0.1)
    assert found.lower_bound < found.value <= 8.1


def test_a_schedule_that_is_wrong_is_refused() -> None:
    orders = made("1f1b").orders
    with pytest.raises(S.ScheduleError, match="comes later on mesh 3"):
        S.improve(S.Schedule("wrong", S.Placement.linear(4), (*orders[:3], orders[3][::-1])))


@pytest.mark.parametrize(("name", "less"), [("hanayo", 0.12), ("bitpipe", 0.08), ("v-half", 0.02)])
def test_a_published_schedule_in_an_order_for_given_costs(name: str, less: float) -> None:
    costs = S.Costs(hop=0.3)
    published, found = made(name), made(name, costs=costs, seconds=0.3)
    before, after = S.simulate(published, costs), S.simulate(found, costs)
    assert after.makespan < before.makespan * (1 - less)
    assert all(peak <= most for peak, most in zip(after.peak_activations(), before.peak_activations(), strict=True))
    assert (found.name, found.placement, set(found)) == (name, published.placement, set(published))


def test_costs_that_a_schedule_is_for_leave_it_as_it_is() -> None:
    assert made("1f1b", costs=S.Costs(), seconds=0.1) == made("1f1b")
    assert made("zb-1p", costs=S.Costs(hop=0.5)) != made("zb-1p")  # it has a way of its own


def test_costs_that_are_none() -> None:
    assert made("1f1b", costs=None) == made("1f1b")
    with pytest.raises(S.ScheduleError, match=r"^costs must be a Costs, .* found 3$"):
        made("1f1b", costs=3)
    with pytest.raises(S.ScheduleError, match="no schedule is named '2f2b'"):
        made("2f2b", costs=S.Costs())


def test_all_forwards_first_is_one_order() -> None:
    for name in ("gpipe", "looped-bfs"):
        with pytest.raises(S.ScheduleError) as error:
            made(name, costs=S.Costs(hop=0.3))
        words = "costs would mix forwards and backwards, and here all forwards come first: leave them out, or take 1f1b"
        assert str(error.value) == f"{name}: {words}"


def test_1f1b_on_a_v_is_near_its_bound() -> None:
    """Of p = 8 and 32 microbatches within 1 % of the lower bound for its memory, 109.5."""
    schedule = S.make("1f1b", meshes=8, microbatches=32, placement=S.Placement.waves(8, 2))
    report = S.simulate(schedule)
    assert (report.makespan, max(report.peak_activations())) == (110, 8.5)
    for stage in range(16):
        counts = [{"forward": 1, "backward": -1}[task.kind] for task in schedule if task.stage == stage]
        assert max(sum(counts[: end + 1]) for end in range(len(counts))) <= 16 - stage


def test_microbatches_that_are_not_in_turn_may_change_places() -> None:
    """And what is proven to be optimal is so for all orders."""

    def row(*tasks: str) -> list[tuple[S.Task, ...]]:
        kinds = {"F": "forward", "B": "backward"}
        return [(S.Task(kinds[kind], int(stage), int(microbatch)),) for kind, stage, microbatch in tasks]

    rows = [row("F01", "F00", "B00", "B01"), row("F10", "B10", "F11", "B11")]
    crossed = S.Schedule.of("crossed", S.Placement.linear(2), rows)
    assert S.simulate(crossed).makespan == 10
    found = S.improve(crossed, seconds=0.2)
    assert (found.value, found.lower_bound) == (9, 9)


@pytest.mark.parametrize(
    ("offloaded", "between"), [((), {"gather": 1.0}), ((0,), {"gather": 1.0}), ((), {"scatter": (2.0, 1.0, 2.0, 1.0)})]
)
def test_gathers_and_scatters_count(offloaded: tuple[int, ...], between: dict[str, Any]) -> None:
    """Where they take time, tasks of a stage come in runs; the value has that time, as the simulator does."""
    costs = replace(COSTS, **between)
    plan = S.make("interleaved-1f1b", meshes=2, microbatches=4)
    plan = S.offload(plan, *offloaded) if offloaded else plan
    found = S.improve(plan, costs, seconds=0.1)
    assert found.value == pytest.approx(S.simulate(found, costs).makespan)
    assert found.value < 0.95 * S.simulate(plan, costs).makespan
    searched = S.search(2, 4, costs, placement="looped", chunks=2, seconds=0.1)
    assert searched.value == pytest.approx(S.simulate(searched, costs).makespan)
    blind = S.search(2, 4, COSTS, placement="looped", chunks=2, seconds=0.1)
    assert searched.value < S.simulate(blind, costs).makespan


def test_without_other_homes_the_bound_is_that_of_the_order():
    plain = S.make("1f1b", meshes=3, microbatches=4)
    found = S.improve(plain, change=["homes"], seconds=0.1)
    assert (found.value, found.lower_bound) == (18, 18)
