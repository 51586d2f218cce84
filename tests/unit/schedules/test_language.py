"""The language: published schedules in a dozen lines, each equal to the library's, and what is said about mistakes."""

import inspect
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules import rewrites
from jaxpp.schedules.builders import priorities
from jaxpp.schedules.builders.blocks import block
from jaxpp.schedules.builders.language import B, F, I, Operation, Pattern, Plan, W
from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.library import classic
from jaxpp.schedules.library.classic import gpipe
from jaxpp.schedules.rewrites.host import offload
from jaxpp.schedules.rewrites.tasks import freeze, insert, recompute, split_backward, subdivide


def one_f_one_b(p: int, m: int) -> S.Schedule:
    plan = Plan("1f1b", S.Placement.linear(p), m)
    for i, mesh in enumerate(plan):
        mesh.warm_up(F(i) * (p - 1 - i))
        mesh.repeat(F(i) + B(i))
    return plan.schedule()


def interleaved(p: int, m: int, v: int) -> S.Schedule:
    plan = Plan("interleaved-1f1b", S.Placement.looped(p, v), m)
    for i, mesh in enumerate(plan):
        stages = plan.placement.stages_of(i)
        forward, backward = F(*stages, group=p), B(*reversed(stages), group=p)
        mesh.warm_up(forward * (2 * (p - 1 - i) + (v - 1) * p))
        mesh.repeat(forward + backward)
    return plan.schedule()


def zb_h1(p: int, m: int) -> S.Schedule:
    plan = Plan("zb-h1", S.Placement.linear(p), m)
    for i, mesh in enumerate(plan):
        mesh.warm_up(F(i) * (p - 1 - i), (F(i) + I(i)) * i)
        mesh.repeat(F(i) + I(i) + W(i))
    return plan.schedule()


def v_half(p: int, m: int) -> S.Schedule:
    slots, gap = {}, 0 if p % 2 else 3
    for i in range(p):
        down, up = i, 2 * p - 1 - i
        slots |= {F(down): 2 * i, F(up): 3 * p - i - 2}
        slots |= {I(up): 3 * p + gap + 2 * i - 1, I(down): 6 * p + gap - i - 2}
    return block("v-half", S.Placement.waves(p, 2), m, slots, tighten=True)


def dualpipe_v(p: int, m: int) -> S.Schedule:
    plan = Plan("dualpipe-v", S.Placement.waves(p, 2), m)
    for i, mesh in enumerate(plan):
        a, b, left, half = i, 2 * p - 1 - i, p - 1 - i, (i + 1) // 2
        mesh.warm_up(F(a) * 2 * left, (F(a) + F(b)) * (i + 1), (I(b) + W() + F(b)) * left)
        mesh.repeat(F(a) + B(b) + F(b) + B(a), times=m - 2 * p + i + 1)
        mesh.cool_down((B(b) + F(b) + B(a)) * left, (B(b) + B(a)) * half, (B(b) + I(a)) * (1 - i % 2))
        mesh.cool_down((I(b) + I(a)) * half, (W() + I(a)) * left, W() * (i + 1))
    return plan.schedule()


@pytest.mark.parametrize("write", [one_f_one_b, interleaved, zb_h1, v_half, dualpipe_v])
def test_the_examples_are_short(write: Callable[..., S.Schedule]) -> None:
    assert len(inspect.getsource(write).splitlines()) <= 12


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 3))
def test_published_schedules_in_a_dozen_lines_equal_the_librarys(p: int, m: int, v: int) -> None:
    assert one_f_one_b(p, m) == S.make("1f1b", meshes=p, microbatches=m)
    assert zb_h1(p, m) == S.make("zb-h1", meshes=p, microbatches=m)
    assert v_half(p, m) == S.make("v-half", meshes=p, microbatches=m)
    assert dualpipe_v(p, m + 2 * p) == S.make("dualpipe-v", meshes=p, microbatches=m + 2 * p)
    assert interleaved(p, p * m, v) == S.make("interleaved-1f1b", meshes=p, microbatches=p * m, chunks=v)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 3))
def test_slices_directions_and_fused_cells(p: int, m: int, n: int) -> None:
    plan = Plan("seq1f1b", S.Placement.linear(p), m, slices=n)
    for i, mesh in enumerate(plan):
        mesh.warm_up(F(i) * (p - i - 2 + n))
        mesh.repeat(F(i) + B(i))
    assert plan.schedule() == S.make("seq1f1b", meshes=p, microbatches=m, slices=n)

    two_ways = Plan("two ways", S.Placement.of((0, 1), (1, 0)), 2 * m)
    for i, mesh in enumerate(two_ways):
        mesh.share(0, range(i, 2 * m, 2))
        mesh.share(1, range(1 - i, 2 * m, 2))
        mesh.repeat(F(0) + F(1), times=1)
        mesh.repeat((F(0) & B(1)) + (F(1) & B(0)))
    assert len(two_ways.schedule().fused) == 4 * (m - 1)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 6))
def test_1f1b_by_priority_on_any_placement(homes: list[int], m: int) -> None:
    placement = S.Placement.of(*map(sorted(set(homes)).index, homes))
    if placement == S.Placement.linear(placement.meshes):
        return
    made = by_priority(
        "1f1b",
        placement,
        m,
        lambda task: (task.kind != "forward", task.microbatch),
        limit=lambda stage: placement.stages - stage,
    )
    assert made == classic.one_f_one_b(placement.meshes, m, placement=placement)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 6), (6, 12)])
def test_a_limit_holds_for_each_mesh_of_a_stage(p: int, m: int) -> None:
    """Chimera: each direction of a stage is on a mesh of its own and keeps as many activations as 1F1B, up to p/2."""
    made = by_priority(
        "chimera",
        S.Placement.of(*((stage, p - 1 - stage) for stage in range(p))),
        m,
        lambda task: (task.kind == "forward", task.microbatch // 2, -task.stage),
        limit=lambda stage: min(p - stage, p // 2),
        mesh_of=lambda task: p - 1 - task.stage if task.microbatch % 2 else task.stage,
        costs=S.Costs(kinds={"backward": 1.0}),
    )
    assert made == S.make("chimera", meshes=p, microbatches=m)
    assert max(activations(made)) == min(m, p)


def test_groups_of_several_sizes() -> None:
    plan = Plan("x", S.Placement.of(0, 0), 6)
    plan[0].repeat(F(0, 1, group=[3, 1]))
    plan[0].repeat(B(1, 0, group=6))
    assert " ".join(map(str, plan.schedule().orders[0][:10])) == "0F0 0F1 0F2 1F0 1F1 1F2 0F3 1F3 0F4 1F4"


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 8))
def test_1f1b_as_a_building_block(p: int, m: int) -> None:
    slots = {F(i): i for i in range(p)} | {B(i): 2 * p - 1 - i for i in range(p)}
    assert block("1f1b", S.Placement.linear(p), m, slots) == classic.one_f_one_b(p, m)


def test_a_block_without_weight_gradients_finds_slots_for_them() -> None:
    slots = {F(0): 0, F(1): 1, I(1): 2, I(0): 4}
    made = block("zb", S.Placement.linear(2), 3, slots)
    assert [" ".join(map(str, order)) for order in made.orders] == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2",
    ]
    assert block("zb", S.Placement.linear(2), 3, slots | {W(0): 5, W(1): 3}) == made
    assert block("far", S.Placement.linear(1), 1, {F(0): 7, B(0): 10**9}).orders == gpipe(1, 1).orders


def test_weight_gradients_fill_the_bubbles_by_priority() -> None:
    order = {"input_grad": 0, "forward": 1, "weight_grad": 2}
    made = by_priority("zb", S.Placement.linear(4), 8, lambda t: order[t.kind], tasks=order, limit=lambda stage: 4)
    report = S.simulate(made)
    assert report.makespan < S.simulate(S.make("1f1b", meshes=4, microbatches=8)).makespan
    assert max(report.peak_activations()) == 4


def test_a_users_operation_beside_the_others() -> None:
    spill = Operation.parse("spill: forward; uses copy_out; here -1; time 0.5")
    fetch = Operation.parse("fetch: spill; uses copy_in; here +1; time 0.5")
    plan = Plan("host", S.Placement.linear(1), 3)
    plan[0].warm_up(F(0) * 2, spill(0), F(0), fetch(0))
    plan[0].repeat(B(0))
    schedule = plan.schedule()
    assert str(schedule).split("\n")[2:] == [
        "kind spill: forward; uses copy_out; here -1; time 0.5",
        "kind fetch: spill; uses copy_in; here +1; time 0.5",
        "mesh 0: 0F0 0F1 0spill0 0F2 0fetch0 0B0 0B1 0B2",
    ]
    assert S.parse(str(schedule)) == schedule
    kinds = ("forward", "backward", S.Kind.parse("spill: forward; uses copy_out; time 0.5"))
    by_rule = by_priority("host", S.Placement.linear(2), 4, lambda t: t.microbatch, tasks=kinds)
    assert sum(task.kind == "spill" for task in by_rule) == 8


def test_offload_until_needed_lowers_the_peak() -> None:
    kept = S.make("1f1b", meshes=4, microbatches=8)
    moved = offload(kept, 0, ahead=1)
    assert str(moved).split("\n")[2].startswith("mesh 0: 0F0 0offload0 0F1 0offload1 0F2 0offload2 0reload0 0F3")
    costs = S.Costs(kinds={"offload": 0.5, "reload": 0.5})
    before, after = S.simulate(kept, costs), S.simulate(moved, costs)
    assert after.makespan == before.makespan
    assert after.peak_activations()[0] < before.peak_activations()[0]
    assert after.peak_activations()[1:] == before.peak_activations()[1:]


def test_rewrites() -> None:
    schedule = S.parse("schedule: x\nplacement: 0 1\nmesh 0: 0F0 0F1 0B0 0B1\nmesh 1: 1F0 1F1+1B0 1B1")

    def rows(made: S.Schedule) -> list[str]:
        assert S.parse(str(made)) == made
        return [" ".join("+".join(map(str, cell)) for cell in row) for row in made.cells]

    assert rows(recompute(schedule, 0))[0] == "0F0 0F1 0recompute0 0B0 0recompute1 0B1"
    assert rows(split_backward(schedule, delay=1)) == ["0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1F1+1I0 1I1 1W0 1W1"]
    assert rows(split_backward(schedule, 1)) == ["0F0 0F1 0B0 0B1", "1F0 1F1+1I0 1W0 1I1 1W1"]
    assert rows(freeze(schedule, 1)) == ["0F0 0F1 0B0 0B1", "1F0 1F1+1I0 1I1"]
    assert freeze(split_backward(schedule), 1).skipped == freeze(schedule, 1).skipped
    assert rows(freeze(split_backward(schedule), 0))[0] == "0F0 0F1 0I0 0I1"
    log = Operation.parse("log: forward")
    assert rows(insert(schedule, log, 1, after="forward"))[1] == "1F0 1log0 1F1+1B0 1log1 1B1"
    assert rows(insert(schedule, log, 0, before="backward"))[0] == "0F0 0F1 0log0 0B0 0log1 0B1"
    assert split_backward(S.make("1f1b", meshes=3, microbatches=4), delay=0).cells[0][3][0].kind == "input_grad"
    assert rows(subdivide(schedule, 2)) == [
        "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1",
        "2F0 3F0 2F1+3B0 3F1+2B0 3B1 2B1",
    ]
    assert subdivide(schedule, 1) == schedule
    fused = S.parse("schedule: x\nplacement: 0 0 1\nmesh 0: 0F0+1F0 1I0+1W0 0B0\nmesh 1: 2F0+2B0")
    assert rows(subdivide(fused, 2)) == ["0F0 1F0+2F0 3F0 3I0+3W0 2I0+2W0 1B0 0B0", "4F0 5F0+5B0 4B0"]
    assert rows(recompute(fused))[0] == "0F0+1F0 1recompute0 1I0+1W0 0recompute0 0B0"
    assert rows(recompute(fused))[1] == "2F0+2B0"
    towers = S.Placement.of(0, 1, 0, after=[[], [], [0, 1]])
    joined = by_priority("x", towers, 2, lambda task: task.microbatch)
    assert subdivide(joined, 2).placement == S.Placement.of(0, 0, 1, 1, 0, 0, after=[[], [0], [], [2], [1, 3], [4]])
    assert subdivide(freeze(schedule, 1), 2).skipped == freeze(subdivide(schedule, 2), 2, 3).skipped


@settings(deadline=None, max_examples=60)
@given(schedules())
def test_rewrites_of_any_schedule_are_valid(made: Made) -> None:
    moves = made.schedule.name in ("bpipe", "po-h", "po-f")
    if not moves:
        divided = subdivide(made.schedule, 2)
        assert S.parse(str(divided)) == divided
    for rewrite in (split_backward, freeze) if moves else (offload, recompute, split_backward, freeze):
        again = rewrite(made.schedule)
        assert S.parse(str(again)) == again
        S.simulate(again, S.Costs(kinds={"offload": 1, "reload": 1}))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: F(), "forward: expected the stage, or several to take in turn, found none"),
        (lambda: F(-1), "the stage of forward must be a whole number of at least 0, found -1"),
        (lambda: F(0, 1, group=[]), "group must be a whole number of at least 1, found []"),
        (lambda: F(0) * -1, "how often F(0) is repeated must be a whole number of at least 0, found -1"),
        (lambda: F(0) & B(1) + F(1), "only single steps are fused, found B(1) + F(1): write (F(0) & B(1)) in paren"),
        (lambda: Operation.parse("Evict: forward"), "cannot read kind 'Evict: forward'"),
        (lambda: Plan("x", S.Placement.linear(1), 0), "microbatches must be a whole number of at least 1, found 0"),
        (lambda: Plan("x", S.Placement.linear(1), 1).schedule(), "the schedule has no forward task"),
        (lambda: written(F(0) + I(0)), "W(stage 0, mb 0) is missing: mesh 0 should run it"),
        (lambda: written(F(1) + B(1)), "F(stage 1, mb 0) does not belong here: mesh 0 holds stage 0"),
        (lambda: written(F(0) + B(0), m=2), "x: expected tasks for 2 microbatches, found 1"),
        (
            lambda: written(1),  # pyright: ignore[reportArgumentType]  # a mistake
            "expected steps, such as F(0) + B(0), found 1",
        ),
        (lambda: Plan("x", S.Placement.linear(2), 1)[2], "x has no mesh 2: there are 2"),
        (
            lambda: insert(gpipe(1, 1), "offload", after="forwards"),
            "gpipe has no 'forwards' task of these stages to put 'offload' at",
        ),
        (lambda: subdivide(gpipe(1, 1), 0), "subdivide: parts must be a whole number of at least 1, found 0"),
        (
            lambda: subdivide(offload(gpipe(1, 2), ahead=0), 2),
            "subdivide: expected forwards and backwards alone, found 0offload0: divide the stages first, and do to the",
        ),
        (lambda: block("x", S.Placement.linear(1), 1, {}), "the schedule has no forward task"),
        (
            lambda: block("x", S.Placement.linear(1), 1, {F(0): 0, B(0): 2}),
            "x: mesh 0: F(0) and B(0) meet in slot 0 of 2, once the block is repeated",
        ),
        (lambda: block("x", S.Placement.linear(1), 1, {F(0, 1): 0}), "has single steps of one stage, such as F(0), fo"),
        (lambda: block("x", S.Placement.linear(1), 1, {F(1): 0}), "x: F(1) is of no stage: there are 1"),
        (
            lambda: block("x", S.Placement.linear(1), 1, {F(0): 0, B(0): 1}, tighten=True),
            "x: only a block of one F and one I per stage on a V-shaped placement can be tightened, in 6 slots",
        ),
        (
            lambda: by_priority("x", S.Placement.linear(2), 2, lambda t: 0, limit=lambda stage: 0),
            "nothing can run on: F(stage 0, mb 0) is beyond the limit, as 0 activations of stage 0 are alive",
        ),
        (
            lambda: by_priority("x", S.Placement.linear(2), 2, lambda t: 0, limit=lambda stage: 1, slices=2),
            "nothing can run on: F(stage 0, mb 0, slice 1) is beyond the limit, as 1 activations of stage 0 are alive "
            "and none can be freed: a limit counts those of slices",
        ),
        (lambda: by_priority("x", S.Placement.of((0, 1)), 1, lambda t: 0), "x: stage 0 is on several meshes: mesh_of"),
        (
            lambda: by_priority("x", S.Placement.of((0, 1)), 1, lambda t: 0, mesh_of=lambda t: 2),
            "x: mesh_of sends F(stage 0, mb 0) to mesh 2, expected one of (0, 1)",
        ),
        (
            lambda: by_priority("x", S.Placement.linear(1), 1, lambda t: 0, tasks=("forward", "spill")),
            "spill(stage 0, mb 0) is of an unknown kind",
        ),
        (
            lambda: by_priority("x", S.Placement.linear(1), 1, lambda t: 0, tasks=("forward", "weight_grad")),
            "B(stage 0, mb 0) is missing: mesh 0 should run it",
        ),
        (
            lambda: by_priority(
                "x",
                S.Placement.linear(1),
                1,
                lambda t: 0,
                tasks=("forward", *map(S.Kind.parse, ("a: b; time 1", "b: a; time 1"))),
            ),
            "the kinds of tasks need one another in a circle: nothing can run",
        ),
        (lambda: offload(gpipe(2, 2), 2), "gpipe has no stage 2: there are 2"),
        (lambda: offload(offload(gpipe(2, 2))), "offload: gpipe has offload(stage 0, mb 0) already"),
        (lambda: recompute(recompute(gpipe(2, 2), 0), 0), "recompute: gpipe has recompute(stage 0, mb 0) already"),
        (lambda: insert(gpipe(1, 1), "log", after="forward"), "log(stage 0, mb 0) is of an unknown kind"),
        (lambda: insert(gpipe(1, 1), "log"), "insert: expected either after or before, found after=None and before="),
    ],
)
def test_a_mistake_is_named(write: Callable[[], object], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        write()
    assert message in str(error.value)


def written(pattern: Pattern, m: int = 1) -> S.Schedule:
    plan = Plan("x", S.Placement.linear(1), m)
    plan[0].run(pattern)
    return plan.schedule()


@pytest.mark.parametrize(("name", "meshes"), [("chimera", 4), ("bitpipe", 4), ("1f1b", 4)])
def test_what_needs_all_microbatches_stands_where_its_stage_is_at_home(name: str, meshes: int) -> None:
    schedule = rewrites.insert(S.make(name, meshes=meshes, microbatches=2 * meshes), "optimizer", after="backward")
    where = {task.stage: mesh for mesh, row in enumerate(schedule.orders) for task in row if task.kind == "optimizer"}
    assert where == {stage: schedule.placement[stage] for stage in range(schedule.stages)}


def test_what_needs_all_microbatches_follows_a_task_of_its_stage() -> None:
    schedule = rewrites.freeze(S.make("zb-h1", meshes=2, microbatches=4), 0)
    with pytest.raises(S.ScheduleError, match="weight_grad task of each stage: stage 0 has none on mesh 0"):
        rewrites.insert(schedule, "optimizer", after="weight_grad")


@pytest.mark.parametrize("costs", [S.Costs(microbatches=(1, 2, 1, 2)), S.Costs(slices=(0.5, 0.5))])
def test_priorities_are_of_whole_and_equal_microbatches(costs: S.Costs) -> None:
    def make(costs: S.Costs) -> S.Schedule:
        return priorities.by_priority("x", S.Placement.linear(2), 4, lambda task: task.microbatch, costs=costs)

    with pytest.raises(S.ScheduleError, match="by_priority: all microbatches must be whole and of size 1, but"):
        make(costs)
    assert make(S.Costs(microbatches=(1,) * 4)) == make(S.Costs())
