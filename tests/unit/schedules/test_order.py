"""Start times, the merged order, and the activations alive."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.engine.merged_order import merged_order, start_times, unit_cost
from jaxpp.schedules.library.classic import gpipe, one_f_one_b


def test_the_merged_order_goes_by_start_time_then_mesh() -> None:
    merged = merged_order(S.make("1f1b", meshes=2, microbatches=2))
    cells = " ".join(f"{mesh}:{task}" for mesh, task in merged)
    assert cells == "0:0F0 0:0F1 1:1F0 1:1B0 0:0B0 1:1F1 1:1B1 0:0B1"


def test_start_times_take_a_cost_per_task() -> None:
    schedule = gpipe(2, 2)
    assert start_times(schedule) == [[0, 1, 5, 7], [1, 2, 3, 5]]
    assert start_times(schedule, lambda task: 1 + task.stage) == [[0, 1, 7, 9], [1, 3, 5, 7]]


def test_fused_tasks_start_together_and_stay_together() -> None:
    schedule = S.parse("schedule: x\nplacement: 0 1\nmesh 0: 0F0 0F1+0B0 0B1\nmesh 1: 1F0 1B0 1F1 1B1")
    assert start_times(schedule)[0] == [0, 4, 4, 10]
    tasks = [str(task) for _, task in merged_order(schedule)]
    assert tasks.index("0B0") == tasks.index("0F1") + 1


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_that_is_no_duration_is_an_error(cost: float) -> None:
    with pytest.raises(S.ScheduleError, match=r"the cost of F\(stage 0, mb 0\) must be a positive number, found"):
        start_times(gpipe(1, 1), lambda _: cost)


def test_a_deadlock_has_no_order() -> None:
    base = gpipe(2, 2)
    stuck = S.Schedule("stuck", base.placement, (base.orders[0], base.orders[1][::-1]))
    with pytest.raises(S.ScheduleError, match="which comes later on mesh 1"):
        merged_order(stuck)


@settings(deadline=None, max_examples=60)
@given(schedules(), st.booleans())
def test_the_merged_order_is_topological_and_keeps_each_mesh_order(made: Made, moved: bool) -> None:
    """Copies too, though one starts after the task that follows it when its track is not free."""
    schedule = made.schedule
    if moved and not any(task.kind == "offload" for task in schedule):
        schedule = S.offload(schedule)
    merged = merged_order(schedule)
    done: set[S.Task] = set()
    for _, task in merged:
        assert done.issuperset(schedule.dependences(task))
        done.add(task)
    for mesh, order in enumerate(schedule.orders):
        assert tuple(task for at, task in merged if at == mesh) == order


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 20))
def test_makespan_and_activations_meet_their_formulas(p: int, m: int) -> None:
    for schedule, peaks in (
        (gpipe(p, m), [m] * p),
        (one_f_one_b(p, m), [min(m, p - i) for i in range(p)]),
    ):
        assert activations(schedule) == peaks
        ends = [
            row[-1] + unit_cost(order[-1]) for row, order in zip(start_times(schedule), schedule.orders, strict=True)
        ]
        assert max(ends) == (m + p - 1) * 3


def test_a_forward_only_schedule_keeps_nothing() -> None:
    schedule = S.parse("schedule: inference\nplacement: 0 1\nmesh 0: 0F0 0F1\nmesh 1: 1F0 1F1")
    assert activations(schedule) == [1, 1]


def test_a_split_backward_releases_at_its_weight_gradient() -> None:
    schedule = S.parse("schedule: split\nplacement: 0\nmesh 0: 0F0 0I0 0F1 0I1 0W0 0W1")
    assert activations(schedule) == [2]
