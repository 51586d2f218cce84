"""The simulator beyond the formulas: hops, links, tracks, what is skipped, memory, bubbles."""

import math
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.activations import activations


def parsed(*rows: str) -> S.Schedule:
    return S.parse("\n".join(["schedule: by hand", *rows]))


def test_every_task_has_a_start_and_an_end() -> None:
    report = S.simulate(S.make("1f1b", meshes=2, microbatches=2), S.Costs(forward=1, input_grad=1, weight_grad=0.5))
    assert [row.tolist() for row in report.start] == [[0, 1, 3.5, 6], [1, 2, 3.5, 4.5]]
    assert [row.tolist() for row in report.end] == [[1, 2, 5, 7.5], [2, 3.5, 4.5, 6]]
    assert report.times(S.Task("backward", 1, 0)) == (2, 3.5)
    with pytest.raises(S.ScheduleError, match=r"1f1b has no task W\(stage 1, mb 0\)"):
        report.times(S.Task("weight_grad", 1, 0))


def test_bubbles_are_listed_and_add_up() -> None:
    report = S.simulate(S.make("1f1b", meshes=2, microbatches=2))
    assert [each[:3] for each in report.bubbles] == [(0, 2, 2), (0, 6, 1), (1, 0, 1), (1, 7, 2)]
    total = sum(bubble.length for bubble in report.bubbles)
    assert total == pytest.approx(2 * report.makespan - 2 * report.busy)
    assert report.bubble == pytest.approx(total / (2 * report.makespan))


def test_both_ratios_of_bubbles() -> None:
    report = S.simulate(S.make("zb-v", meshes=4, microbatches=8))
    assert (report.makespan, report.longest_stage, report.busy) == (25.5, 24, 24)
    assert report.bubble == pytest.approx(1.5 / 25.5)
    assert report.bubble_of_longest_stage == 0


def test_a_hop_and_a_bandwidth_per_pair_of_meshes() -> None:
    schedule = S.make("gpipe", meshes=3, microbatches=1)
    hop = [[0, 0.5, 9], [0.25, 0, 1], [9, 2, 0]]
    costs = S.Costs(hop=hop, bandwidth=[[1, 4, 1], [8, 1, math.inf], [1, 2, 1]], message_bytes=[4, 8, 16])
    # Up: 1 + (0.5 + 4/4) + 1 + (1 + 0) + 1, down: 2 + (2 + 8/2) + 2 + (0.25 + 4/8) + 2.
    assert S.simulate(schedule, costs).makespan == 5.5 + 12.75
    moved = [(str(t.task), t.source, t.target, t.start, t.end) for t in S.simulate(schedule, costs).transfers]
    assert sorted(moved) == [
        ("0F0", 0, 1, 1, 2.5),
        ("1B0", 1, 0, 15.5, 16.25),
        ("1F0", 1, 2, 3.5, 4.5),
        ("2B0", 2, 1, 7.5, 13.5),
    ]


def test_a_link_carries_any_number_of_messages_at_once() -> None:
    schedule = S.make("gpipe", meshes=2, microbatches=3)
    costs = S.Costs(bandwidth=1, message_bytes=3, hop=0.5)
    ends = [t.end for t in S.simulate(schedule, costs).transfers if t.source == 0]
    assert sorted(ends) == [4.5, 5.5, 6.5]


MOVED = (
    "placement: 0 1",
    "mesh 0: 0F0 0F1 0load0 0B0 0B1",
    "mesh 1: 0evict0 1F0 1B0 1F1 1B1",
)


def test_what_moves_to_a_peer_is_one_message_each_way() -> None:
    """A hop and its bytes, once, and nothing else: neither a hop before it nor the message of the stage."""
    costs = S.Costs(hop=0.25, activation_bytes=[6, 6], message_bytes=[2, 2], bandwidth=8)
    report = S.simulate(parsed(*MOVED), costs)
    assert report.times(S.Task("evict", 0, 0)) == (1.0, 2.0)
    assert report.times(S.Task("load", 0, 0)) == (2.0, 3.0)
    moved = [(str(t.task), t.source, t.target, t.end - t.start) for t in report.transfers if "F" not in str(t.task)]
    assert sorted(moved) == [("0evict0", 0, 1, 1.0), ("0load0", 1, 0, 1.0), ("1B0", 1, 0, 0.5), ("1B1", 1, 0, 0.5)]


OFFLOAD = (
    "placement: 0",
    "mesh 0: 0F0 0offload0 0F1 0F2 0B2 0reload0 0B1 0B0",
)


def test_copies_run_beside_the_mesh() -> None:
    costs = S.Costs(kinds={"offload": 1.5, "reload": 1.0})
    report = S.simulate(parsed(*OFFLOAD), costs)
    assert report.times(S.Task("offload", 0, 0)) == (1, 2.5)
    assert report.times(S.Task("forward", 0, 1)) == (1, 2)
    assert report.times(S.Task("reload", 0, 0)) == (5, 6)
    assert report.makespan == 9
    assert report.bubble == 0
    assert report.peak_activations() == [3]
    slow = S.simulate(parsed(*OFFLOAD), S.Costs(kinds={"offload": 1.5, "reload": 4.0}))
    assert slow.times(S.Task("backward", 0, 0)) == (9, 11)


def test_copies_take_a_column_of_the_grid() -> None:
    assert str(parsed(*OFFLOAD)).split("\n")[2] == OFFLOAD[1]


def test_copies_take_as_long_as_their_bytes() -> None:
    report = S.simulate(parsed(*OFFLOAD), S.Costs(activation_bytes=8, copy_bandwidth=16))
    assert report.times(S.Task("offload", 0, 0)) == (1, 1.5)
    # The offload ends before the third forward starts, and the reload starts when one backward is done.
    assert report.peak_activations() == [2]
    assert report.peak_bytes() == [16]
    free = S.simulate(parsed(*OFFLOAD))
    assert free.times(S.Task("offload", 0, 0)) == (1, 1), "as a message without bytes"
    flush = parsed("placement: 0", "kind flush: forward; uses copy_out", "mesh 0: 0F0 0flush0 0B0")
    with pytest.raises(S.ScheduleError) as error:
        S.simulate(flush)
    assert str(error.value) == "the costs do not say how long flush takes: give kinds={'flush': ...}"


def test_one_track_takes_one_copy_at_a_time() -> None:
    schedule = parsed("placement: 0", "mesh 0: 0F0 0offload0 0F1 0offload1 0F2 0B2 0reload1 0B1 0reload0 0B0")
    report = S.simulate(schedule, S.Costs(kinds={"offload": 2.5, "reload": 1.0}))
    assert report.times(S.Task("offload", 0, 1)) == (3.5, 6)
    assert report.times(S.Task("reload", 0, 1)) == (6, 7)


def test_a_recomputed_activation_is_gone_between_forward_and_recompute() -> None:
    schedule = parsed("placement: 0", "mesh 0: 0F0 0F1 0recompute0 0B0 0recompute1 0B1")
    report = S.simulate(schedule)
    assert report.makespan == 8
    assert report.peak_activations() == [1]
    assert activations(schedule) == [1]


def test_what_a_stage_was_sent_stays_until_its_recompute() -> None:
    """Mesh 1 holds the inputs of three microbatches while it computes the first of them again."""
    schedule = parsed(
        "placement: 0 1",
        "mesh 0: 0F0 0F1 0F2 0recompute0 0B0 0recompute1 0B1 0recompute2 0B2",
        "mesh 1: 1F0 1F1 1F2 1recompute0 1B0 1recompute1 1B1 1recompute2 1B2",
    )
    costs = S.Costs(activation_bytes=100, message_bytes=[10, 7])
    assert S.simulate(schedule, costs).peak_bytes() == [100, 120]
    times, changes = zip(*S.simulate(schedule, costs).live_bytes(1), strict=True)
    assert sum(changes) == 0
    assert dict(zip(times, accumulate(changes), strict=True))[4.0] == 120
    less = S.Costs(activation_bytes=[100, 4], message_bytes=10)
    assert S.simulate(schedule, less).peak_bytes() == [100, 12], "an activation has its input in it"


def test_weight_tasks_of_frozen_layers_are_left_out() -> None:
    schedule = parsed("placement: 0 1", "skipped: 0W* 1W1", "mesh 0: 0F0 0F1 0I0 0I1", "mesh 1: 1F0 1I0 1W0 1F1 1I1")
    assert str(schedule).split("\n")[2] == "skipped: 0W* 1W1"
    assert S.parse(str(schedule)) == schedule
    report = S.simulate(schedule)
    assert report.peak_activations() == [2, 1]
    assert S.Task("weight_grad", 0, 1) in schedule.skipped
    with pytest.raises(S.ScheduleError, match=r"W\(stage 1, mb 1\) is missing: mesh 1 should run it"):
        parsed("placement: 0 1", "skipped: 0W*", "mesh 0: 0F0 0F1 0I0 0I1", "mesh 1: 1F0 1I0 1W0 1F1 1I1")


def test_a_frozen_first_stage_has_no_backward_at_all() -> None:
    schedule = parsed("placement: 0 1", "skipped: 0B*", "mesh 0: 0F0 0F1", "mesh 1: 1F0 1B0 1F1 1B1")
    assert S.simulate(schedule).makespan == 7
    assert S.simulate(schedule).peak_activations() == [1, 1]


def test_slices_run_forward_in_order_and_backward_in_reverse() -> None:
    row = "mesh 0: 0F0 0F0.1 0B0.1 0B0 0F1 0F1.1 0B1.1 0B1"
    assert parsed("placement: 0", row).slices == 2
    shares = S.Costs(slices=(0.25, 0.75))
    assert S.simulate(parsed("placement: 0", row), shares).end[0].tolist() == [0.25, 1, 2.5, 3, 3.25, 4, 5.5, 6]
    with pytest.raises(
        S.ScheduleError, match=r"B\(stage 0, mb 0\) needs B\(stage 0, mb 0, slice 1\), which comes later"
    ):
        parsed("placement: 0", "mesh 0: 0F0 0F0.1 0B0 0B0.1")
    with pytest.raises(
        S.ScheduleError, match=r"F\(stage 0, mb 0, slice 1\) needs F\(stage 0, mb 0\), which comes later"
    ):
        parsed("placement: 0", "mesh 0: 0F0.1 0F0 0B0.1 0B0")
    with pytest.raises(S.ScheduleError, match=r"slices: expected 2 for by hand, found 3"):
        S.simulate(parsed("placement: 0", row), S.Costs(slices=(0.5, 0.25, 0.25)))


def test_a_users_kind_has_a_time_and_a_memory_effect() -> None:
    kinds = ("kind cache: forward; here +0.5", "kind drop: cache; here -0.5; time 0.25")
    schedule = parsed("placement: 0", *kinds, "mesh 0: 0F0 0cache0 0F1 0B0 0drop0 0B1")
    assert S.parse(str(schedule)) == schedule
    report = S.simulate(schedule, S.Costs(kinds={"cache": 3}))
    assert report.makespan == 1 + 3 + 1 + 2 + 0.25 + 2
    assert report.peak_activations() == [2.5]


def test_peak_bytes_keep_what_the_weight_gradient_needs() -> None:
    schedule = parsed("placement: 0", "mesh 0: 0F0 0I0 0F1 0I1 0W0 0W1")
    report = S.simulate(schedule, S.Costs(activation_bytes=10, weight_grad_bytes=4))
    assert report.peak_bytes() == [14]
    assert S.simulate(schedule, S.Costs(activation_bytes=10)).peak_bytes() == [20]
    assert report.live_bytes(0) == [(0, 10), (2, -6), (2, 10), (4, -6), (5, -4), (6, -4)]


def test_a_mistake_in_the_costs_or_the_schedule_is_named() -> None:
    schedule = S.make("1f1b", meshes=3, microbatches=2)
    for costs, message in (
        (S.Costs(forward=[1, 2]), "forward: expected a number for each of 3 stages, found 2"),
        (S.Costs(hop=[[0, 1], [1, 0]]), "hop: expected 3 rows and columns, one per mesh, found 2"),
    ):
        with pytest.raises(S.ScheduleError) as error:
            S.simulate(schedule, costs)
        assert str(error.value) == message
    wrong = (
        ("", "the schedule has no forward task"),
        ("0F0 0odd0", "mesh 0 position 1: odd(stage 0, mb 0) is of an unknown kind"),
        ("0F0 4F0", "mesh 0 position 1: F(stage 4, mb 0) does not belong here"),
        ("0F0 0W0", "B(stage 0, mb 0) is missing"),
    )
    for row, message in wrong:
        tasks = [
            S.Task({"F": "forward", "W": "weight_grad"}.get(cell[1], "odd"), int(cell[0]), 0) for cell in row.split()
        ]
        with pytest.raises(S.ScheduleError) as error:
            S.simulate(S.Schedule.of("wrong", S.Placement.linear(1), [tasks]))
        assert str(error.value).startswith(message)
    stuck = S.Schedule("stuck", schedule.placement, (schedule.orders[0][::-1], *schedule.orders[1:]))
    with pytest.raises(S.ScheduleError, match="which comes later on mesh 0"):
        S.simulate(stuck)
    with pytest.raises(S.ScheduleError, match="released_at must be one of W, B, half, found 'F'"):
        S.simulate(schedule).peak_activations("F")  # pyright: ignore[reportArgumentType]  # the mistake


@settings(deadline=None, max_examples=80)
@given(schedules(), st.data())
def test_a_higher_cost_never_makes_it_faster(made: Made, data: st.DataObject) -> None:
    schedule = made.schedule
    values = st.sampled_from([0.5, 1.0, 2.0, 3.5])
    stages = [data.draw(st.lists(values, min_size=schedule.stages, max_size=schedule.stages)) for _ in range(3)]
    bandwidth, size, hop = data.draw(values), data.draw(values), data.draw(values)

    def makespan(stages: list[list[float]], hop: float) -> float:
        costs = S.Costs(*stages, hop=hop, bandwidth=bandwidth, message_bytes=size)
        return S.simulate(schedule, costs).makespan

    before = makespan(stages, hop)
    which, stage = data.draw(st.integers(0, 2)), data.draw(st.integers(0, schedule.stages - 1))
    stages[which][stage] += data.draw(values)
    after = makespan(stages, hop)
    assert after >= before - 1e-9
    assert makespan(stages, hop + data.draw(values)) >= after - 1e-9


@settings(deadline=None, max_examples=80)
@given(schedules(), st.sampled_from([0.0, 0.25, 3.0]))
def test_any_schedule_simulates_in_the_order_of_its_dependences(made: Made, hop: float) -> None:
    schedule = made.schedule
    report = S.simulate(schedule, S.Costs(hop=hop))
    homes = {task: mesh for mesh, order in enumerate(schedule.orders) for task in order}
    fused = {task: group for group in schedule.fused for task in group}
    for task in schedule:
        start, end = report.times(task)
        moves = task.kind in ("evict", "load")  # they are a hop themselves
        copies = task.kind in ("offload", "reload")
        assert end - start == pytest.approx(hop if moves else 0) if moves or copies else end > start >= 0
        for need in schedule.dependences(task):
            if need not in fused.get(task, ()):
                waits = 0 if moves or homes[need] == homes[task] else hop
                assert report.times(need)[1] + waits <= start + 1e-9
    for order, start, end in zip(schedule.orders, report.start, report.end, strict=True):
        own = [time for task, time in zip(order, start, strict=True) if "compute" in schedule.rules[task.kind].uses]
        assert own == sorted(own)
        assert len(order) == len(end)
    # Nothing can beat the work of one mesh.
    assert report.longest_stage <= report.makespan
    assert report.busy <= report.longest_stage + 1e-9


def test_64_meshes_by_512_microbatches() -> None:
    report = S.simulate(S.make("zb-h1", meshes=64, microbatches=512), S.Costs(hop=0.01))
    assert report.makespan == pytest.approx(3 * 512 + 63 * (1 + 4 * 0.01))


def test_a_report_of_what_is_not_there() -> None:
    report = S.simulate(S.make("1f1b", meshes=2, microbatches=4))
    for ask in (report.live_bytes, report.activations):
        with pytest.raises(S.ScheduleError, match="1f1b has no mesh 9: there are 2"):
            ask(9)
    with pytest.raises(S.ScheduleError, match="pool must be 'here' or 'host', found 'hots'"):
        report.live_bytes(0, "hots")


@pytest.mark.parametrize("cell", ["0offload0+0F1", "0F1+0offload0"])
def test_what_is_fused_uses_all_that_its_tasks_use(cell: str) -> None:
    """A forward has its turn, whatever copy it is fused with, and the next copy waits for the way to the host."""
    schedule = parsed("placement: 0", f"mesh 0: 0F0 {cell} 0offload1 0F2 0B2 0reload1 0B1 0reload0 0B0")
    report = S.simulate(schedule, S.Costs(kinds={"offload": 1.5, "reload": 0.5}))
    assert report.times(S.Task("forward", 0, 2))[0] == report.times(S.Task("offload", 0, 1))[0] == 3.5


@pytest.mark.parametrize("name", ["1f1b", "zb-2p", "stp", "interleaved-1f1b"])
def test_what_is_made_again_counts_as_in_a_program(name: str) -> None:
    plan = S.recompute(S.make(name, meshes=4, microbatches=8))
    found = S.simulate(plan, S.Costs(kinds={"recompute": 1.0})).peak_activations()
    assert [round(peak * plan.stages / plan.meshes) for peak in found] == activations(plan)
