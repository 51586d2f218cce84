"""Activations on a peer: BPipe's numbers, any counts, and what is refused."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp import schedules as S
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.rewrites.peers import evict


@pytest.mark.parametrize(("meshes", "microbatches", "makespan", "peak"), [(4, 8, 33, 3), (8, 16, 69, 5)])
@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.0])
def test_bpipe_takes_the_time_of_1f1b(
    meshes: int, microbatches: int, makespan: float, peak: int, seconds: float
) -> None:
    """An activation may take as long as a forward on its way, and nobody waits for it."""
    schedule = S.make("bpipe", meshes=meshes, microbatches=microbatches)
    costs = S.Costs(activation_bytes=seconds, bandwidth=1.0)
    report = S.simulate(schedule, costs)
    assert report.makespan == makespan
    assert max(report.peak_activations()) == max(activations(schedule)) == peak


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 16), st.integers(1, 40))
def test_no_mesh_keeps_more_than_half_of_what_a_pair_keeps(meshes: int, microbatches: int) -> None:
    plain = S.make("1f1b", meshes=meshes, microbatches=microbatches)
    schedule = S.make("bpipe", meshes=meshes, microbatches=microbatches)
    S.check(schedule)
    assert S.parse(str(schedule)) == schedule
    assert S.Schedule.from_csv(schedule.to_csv(), "bpipe") == schedule
    assert max(activations(schedule)) <= -(-(meshes + 2) // 2)
    report = S.simulate(schedule)
    assert report.makespan == S.simulate(plain).makespan
    assert max(report.peak_activations()) <= -(-(meshes + 2) // 2)


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "zb-h2", "eager-1f1b"])
@pytest.mark.parametrize("microbatches", [6, 11])
def test_other_schedules(name: str, microbatches: int) -> None:
    """In these both meshes of a pair may have nothing to give: then nothing moves."""
    plain = S.make(name, meshes=4, microbatches=microbatches)
    kept = activations(plain)
    found = activations(evict(plain))
    for mesh in range(4):
        assert found[mesh] <= max((kept[mesh] + kept[3 - mesh] + 2) // 2, kept[mesh] if name == "gpipe" else 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("seq1f1b{slices=4}", ([7, 6, 5, 4], [6, 6, 5, 6])),
        ("interleaved-1f1b", ([11, 9, 7, 5], [9, 9, 7, 7])),
    ],
)
def test_backwards_in_another_order_than_the_forwards(name: str, expected: tuple[list[int], list[int]]) -> None:
    """The slices of a microbatch come back last one first, and so do the stages of a mesh."""
    plain = S.resolve(name, meshes=4, microbatches=8)
    schedule = evict(plain)
    assert (activations(plain), activations(schedule)) == expected
    assert S.simulate(schedule).makespan == S.simulate(plain).makespan


def test_as_few_as_the_limit_asks_for() -> None:
    plain = S.make("1f1b", meshes=4, microbatches=4)

    def moved(schedule: S.Schedule) -> list[str]:
        return [str(task) for task in schedule if task.kind == "evict"]

    assert moved(evict(plain)) == ["0evict1", "0evict2"]
    assert moved(evict(plain, 4)) == []
    eight = S.make("1f1b", meshes=4, microbatches=8)
    assert activations(evict(eight, 3, peers=[3, 2, 0, 1])) == [3, 3, 2, 3]


def test_memory_is_where_the_activation_is() -> None:
    """It is on both meshes while it is on its way."""
    schedule = S.parse("""
        schedule: mine
        placement: 0 1
        mesh 0: 0F0 0F1 0load0 0B0 0B1
        mesh 1: 0evict0 1F0 1B0 1F1 1B1
    """)
    report = S.simulate(schedule, S.Costs(kinds={"evict": 0.5, "load": 0.25}))
    there, at_the_peer = (report.activations(mesh) for mesh in (0, 1))
    assert there[:3] == [(0, 1), (1, 1), (1.5, -1)]
    assert report.times(S.Task("evict", 0, 0)) == (1.0, 1.5)
    assert (1.0, 1.0) in at_the_peer
    assert report.times(S.Task("load", 0, 0)) == (2.0, 2.25)
    assert (2.25, -1.0) in at_the_peer


@pytest.mark.parametrize("stages", [(), (0,), (0, 3)])
def test_what_a_recompute_reads_waits_on_a_peer(stages: tuple[int, ...]) -> None:
    """In either order of the two rewrites; of what is recomputed the input moves, and that of stage 0 has no bytes."""
    plain = S.make("1f1b", meshes=6, microbatches=8)
    costs = S.Costs(activation_bytes=10.0, message_bytes=1.0)
    again = S.simulate(S.recompute(plain, *stages), costs)
    for schedule in (evict(S.recompute(plain, *stages)), S.recompute(evict(plain), *stages)):
        report = S.simulate(schedule, costs)
        assert report.makespan == again.makespan
        assert activations(schedule) == report.peak_activations()
        away = {task.stage for task in schedule if task.kind == "evict"}
        assert away == {0, 1}
        assert report.peak_bytes()[1] <= again.peak_bytes()[1] - (1 if not stages else 10)
        assert all(
            report.times(S.Task("load", task.stage, task.microbatch))[1]
            <= report.times(S.Task("recompute", task.stage, task.microbatch))[0]
            for task in schedule
            if task.kind == "evict" and (not stages or task.stage in stages)
        )


def test_beside_those_that_go_to_the_host() -> None:
    """In either order of the two rewrites, each microbatch waits in one place, and no time is lost."""
    plain = S.make("1f1b", meshes=6, microbatches=12)
    costs = S.Costs(kinds={"offload": 1.5, "reload": 1.5, "evict": 1.0, "load": 1.0})
    found = {
        "evict, then offload": S.offload(evict(plain)),
        "offload 1, then evict": evict(S.offload(plain, 1)),
    }
    assert {how: activations(schedule) for how, schedule in found.items()} == {
        "evict, then offload": [2, 2, 2, 2, 4, 4],
        "offload 1, then evict": [4, 2, 4, 3, 2, 4],
    }
    for schedule in found.values():
        moved = [{task.unit for task in schedule if task.kind == kind} for kind in ("offload", "evict")]
        assert all(moved)
        assert moved[0].isdisjoint(moved[1])
        assert S.simulate(schedule, costs).makespan == S.simulate(plain).makespan
        assert S.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda plain: evict(plain, 1), "the limit of evict must be a whole number of at least 2, found 1"),
        (
            lambda plain: evict(plain, 2),
            "evict: meshes 0 and 3 of 1f1b cannot keep to 2 activations: give a higher limit",
        ),
        (
            lambda plain: evict(plain, peers=[1, 0]),
            "evict: expected the peer of each of 4 meshes, found [1, 0]",
        ),
        (lambda plain: evict(evict(plain)), "evict: 1f1b has evict(stage 0, mb 1) already"),
        (
            lambda plain: S.parse("schedule: x\nplacement: 0 1\nmesh 0: 0F0 0evict0 0B0\nmesh 1: 1F0 1B0"),
            "mesh 0 position 1: evict(stage 0, mb 0) does not belong here: mesh 0 holds stage 0, and this task stands "
            "on one that does not",
        ),
        (
            lambda plain: S.parse("schedule: x\nplacement: 0 1\nmesh 0: 0F0 0B0\nmesh 1: 0evict0 0load0 1F0 1B0"),
            "mesh 1 position 1: load(stage 0, mb 0) does not belong here: mesh 1 holds stage 1",
        ),
        (
            lambda plain: evict(S.make("1f1b", meshes=8, microbatches=16), 5, peers=[7] * 8),
            "evict: 1f1b keeps 10 activations on a mesh, with these peers, not 5",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(build: Callable[[S.Schedule], object], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        build(S.make("1f1b", meshes=4, microbatches=8))
    assert str(error.value).startswith(message)
