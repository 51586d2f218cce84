"""The validity check: what it accepts, and what it says."""

from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp import schedules as S
from jaxpp.schedules.library.classic import one_f_one_b
from jaxpp.schedules.rewrites.tasks import insert


def build(*rows: str, placement: S.Placement | None = None) -> S.Schedule:
    kinds = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad", "X": "extra"}
    cells = [[[S.Task(kinds[t[1]], int(t[0]), int(t[2])) for t in cell.split("+")] for cell in r.split()] for r in rows]
    return S.Schedule.of("x", placement or S.Placement.linear(len(rows)), cells)


@pytest.mark.parametrize(
    "rows",
    [
        ("0F0 0B0",),
        ("0F0 0F1", "1F1 1F0"),
        ("0F0 0I0 0W0", "1F0 1B0"),
        ("0F0 0B0", "1F0 1I0 1W0"),
        ("0F0 0F1 0B0 0B1", "1F0 1B0+1F1 1B1"),
    ],
)
def test_valid(rows: tuple[str, ...]) -> None:
    S.check(build(*rows))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("",), "the schedule has no forward task"),
        (("0F0 0B0", "0F1 1F0 1B0"), "mesh 1 position 0: F(stage 0, mb 1) does not belong here: mesh 1 holds stage 1"),
        (("0F0 7F0",), "mesh 0 position 1: F(stage 7, mb 0) does not belong here: mesh 0 holds stage 0"),
        (("0F0 0X0",), "mesh 0 position 1: extra(stage 0, mb 0) is of an unknown kind: known are forward, backward,"),
        (("0F0 0B0 0F0",), "mesh 0 position 2: F(stage 0, mb 0) is there twice, first on mesh 0 position 0"),
        (("0F0 0F2 0B0 0B2",), "F(stage 0, mb 1) is missing: mesh 0 should run it"),
        (("0F0 0F1", "1F0 1B0 1F1 1B1"), "B(stage 0, mb 0) is missing: mesh 0 should run it"),
        (("0F0 0I0", "1F0 1B0"), "W(stage 0, mb 0) is missing: mesh 0 should run it"),
        (("0F0 0B0 0W0",), "mesh 0 position 2: W(stage 0, mb 0) repeats a part of B(stage 0, mb 0)"),
        (("0F0 0I0 0B0 0W0",), "mesh 0 position 1: I(stage 0, mb 0) repeats a part of B(stage 0, mb 0)"),
        (("0F0 0W0 0I0",), "mesh 0 position 1: W(stage 0, mb 0) needs I(stage 0, mb 0), which comes later on mesh 0"),
        (
            ("0F0 0B1+0F1 0B0",),
            "mesh 0 position 1: B(stage 0, mb 1) needs F(stage 0, mb 1), which comes later on mesh 0",
        ),
    ],
)
def test_invalid(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.check(build(*rows))
    assert str(error.value).startswith(message)


def test_the_later_stage_on_the_same_mesh_comes_too_late() -> None:
    schedule = build("0F0 1F0 2F0 0B0 2B0 1B0", placement=S.Placement.of(0, 0, 0))
    with pytest.raises(S.ScheduleError) as error:
        S.check(schedule)
    assert str(error.value) == dedent("""\
        mesh 0 position 3: B(stage 0, mb 0) needs B(stage 1, mb 0), which comes later on mesh 0
          mesh 0: 0F0 1F0 2F0 0B0 2B0 1B0
                              ^^^""")


def test_a_cycle_through_meshes_is_printed() -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.check(build("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"))
    assert str(error.value) == dedent("""\
        deadlock: these meshes wait for one another
          mesh 0 position 1: B(stage 0, mb 0) needs B(stage 1, mb 0) of mesh 1 position 2
          mesh 1 position 1: F(stage 1, mb 1) needs F(stage 0, mb 1) of mesh 0 position 2""")


def test_a_mesh_that_only_waits_is_not_part_of_the_cycle() -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.check(build("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1"))
    assert "mesh 0" not in str(error.value)
    assert "mesh 1 position 1" in str(error.value)


def test_a_fused_cell_waits_for_all_its_needs() -> None:
    with pytest.raises(S.ScheduleError, match="deadlock"):
        S.check(build("0F0+0F1 0B0 0B1", "1F0 1B0+1F1 1B1", "2F0+2F1 2B0 2B1"))


def test_a_need_of_the_users_own_kind_that_is_missing() -> None:
    row = [S.Task("forward", 0, 0), S.Task("reload", 0, 0), S.Task("backward", 0, 0)]
    schedule = S.Schedule.of("x", S.Placement.linear(1), [row], [S.Kind.parse("reload: offload")])
    with pytest.raises(
        S.ScheduleError, match=r"reload\(stage 0, mb 0\) needs offload\(stage 0, mb 0\), which is missing"
    ):
        S.check(schedule)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_order_on_each_mesh_is_accepted_exactly_if_it_can_run(data: st.DataObject) -> None:
    """Against the definition: repeatedly run any task at the head of a mesh whose needs have run."""
    base = one_f_one_b(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    orders = tuple(tuple(data.draw(st.permutations(order))) for order in base.orders)
    schedule = S.Schedule("shuffled", base.placement, orders)
    left, done = [list(order) for order in orders], set[S.Task]()
    while runnable := [row for row in left if row and done.issuperset(schedule.dependences(row[0]))]:
        done.add(runnable[0].pop(0))
    try:
        S.check(schedule)
    except S.ScheduleError:
        assert any(left)
    else:
        assert not any(left)


OPTIMIZED = """
schedule: mine
placement: 0 1
mesh 0: 0F0 0F1 0B0 0B1 0optimizer0
mesh 1: 1F0 1I0 1F1 1B1 1W0 1optimizer0
"""


def test_an_optimizer_needs_the_gradients_of_all_microbatches() -> None:
    """Each is a true dependence: a full backward, or the weight gradient where it is split."""
    schedule = S.parse(OPTIMIZED)
    assert S.parse(str(schedule)) == schedule
    assert list(map(str, schedule.dependences(S.Task("optimizer", 0, 0)))) == ["0B0", "0B1"]
    assert list(map(str, schedule.dependences(S.Task("optimizer", 1, 0)))) == ["1W0", "1B1"]
    with pytest.raises(
        S.ScheduleError, match=r"optimizer\(stage 1, mb 0\) needs W\(stage 1, mb 0\), which comes later"
    ):
        S.parse(OPTIMIZED.replace("1W0 1optimizer0", "1optimizer0 1W0"))
    costs = S.Costs(kinds={"optimizer": 3.0})
    assert S.simulate(schedule, costs).times(S.Task("optimizer", 0, 0))[0] == 8.0
    with pytest.raises(S.ScheduleError, match="the costs do not say how long optimizer takes: give kinds="):
        S.simulate(schedule)


def test_an_all_reduce_runs_beside_its_mesh_and_the_optimizer_waits_for_it() -> None:
    rows = OPTIMIZED.replace("0optimizer0", "0all_reduce0 0optimizer0").replace(
        "placement", "kind poll: ?forward\nplacement"
    )
    report = S.simulate(
        S.parse(rows.replace("0optimizer0", "0poll0 0optimizer0")),
        S.Costs(kinds=dict.fromkeys(("optimizer", "all_reduce", "poll"), 2.0)),
    )
    assert report.times(S.Task("all_reduce", 0, 0)) == report.times(S.Task("poll", 0, 0)) == (8.0, 10.0)
    assert report.times(S.Task("optimizer", 0, 0)) == (10.0, 12.0)


def test_needs_of_other_microbatches() -> None:
    kind = "kind carry: carry#-1 forward"
    text = f"schedule: mine\nplacement: 0\n{kind}\nmesh 0: 0F0 0carry0 0F1 0carry1 0B0 0B1"
    assert list(map(str, S.parse(text).dependences(S.Task("carry", 0, 1)))) == ["0carry0", "0F1"]
    with pytest.raises(S.ScheduleError, match=r"carry\(stage 0, mb 1\) needs carry\(stage 0, mb 0\), which is missing"):
        S.parse(text.replace("0carry0 ", ""))


def test_a_task_may_stand_on_any_mesh_if_its_kind_says_so() -> None:
    text = "schedule: x\nplacement: 0 1\nkind log: forward; on any\nmesh 0: 0F0 0B0 1log0\nmesh 1: 0log0 1F0 1B0"
    assert [task.stage for task in S.parse(text) if task.kind == "log"] == [1, 0]
    with pytest.raises(S.ScheduleError, match=r"log\(stage 1, mb 0\) does not belong here: mesh 0 holds stage 0"):
        S.parse(text.replace("; on any", ""))


def test_one_optimizer_for_each_stage_behind_its_last_gradient() -> None:
    schedule = insert(S.make("zb-v", meshes=2, microbatches=3), "optimizer", after="weight_grad")
    assert [str(order[-1]) for order in schedule.orders] == ["0optimizer0", "1optimizer0"]
    assert sum(task.kind == "optimizer" for task in schedule) == schedule.stages
    two_ways = insert(S.make("chimera", meshes=2, microbatches=4), "optimizer", 1, after="backward")
    number = two_ways.graph.numbers["optimizer"][1]
    assert {two_ways.graph.homes[need] for need in two_ways.graph.needs[number]} == {0, 1}, "its gradients are on both"
    with pytest.raises(S.ScheduleError, match="insert: optimizer needs tasks of all microbatches: give after, not"):
        insert(two_ways, "optimizer", before="backward")
