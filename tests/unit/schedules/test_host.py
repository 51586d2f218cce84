"""Activations in the memory of the host: free of charge, what stays, and what is refused."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.schedules.library import Made, schedules

from jaxpp import schedules as S
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import insert

MOVED = ("bpipe", "po-h", "po-f")
PLAIN = tuple(name for name in S.names() if name not in MOVED)


@settings(deadline=None, max_examples=100)
@given(schedules(PLAIN), st.sampled_from([0.1, 0.5, 2 / 3, 1.0, 1.7, 4.0]))
def test_an_offload_takes_no_time(made: Made, k: float) -> None:
    """Whatever the schedule, whatever the copies take: what has no time to go and come back stays."""
    plain = made.schedule
    moved = S.offload(plain, k=k)
    assert S.parse(str(moved)) == moved
    report = S.simulate(moved, S.Costs(kinds={"offload": 1.5 * k, "reload": 1.5 * k}))
    before = S.simulate(plain)
    assert report.makespan == pytest.approx(before.makespan)
    assert report.longest_stage == pytest.approx(before.longest_stage)
    assert all(
        now <= then + 1e-9 for now, then in zip(report.peak_activations(), before.peak_activations(), strict=True)
    )
    assert all(now <= then for now, then in zip(activations(moved), activations(plain), strict=True))


@pytest.mark.parametrize(
    ("name", "makespan", "peaks"),
    [
        ("gis", 52.0, (1.0, 1.5)),
        ("1f1b", 57.0, (2.0, 3.0)),
        ("interleaved-1f1b", 52.5, (1.5, 3.0)),
        ("zb-v", 49.5, (3.5, 3.5)),
        ("zb-h1", 51.0, (4.0, 4.0)),
        ("v-half", 50.5, (2.0, 2.5)),
    ],
)
def test_the_copies_of_4_meshes_and_16_microbatches(name: str, makespan: float, peaks: tuple[float, float]) -> None:
    """At k = 1/2 and k = 1; one cell ahead would be too late at k = 1 (60 for GIS)."""
    plain = S.make(name, meshes=4, microbatches=16)
    for k, peak in zip((0.5, 1.0), peaks, strict=True):
        report = S.simulate(S.offload(plain, k=k), S.Costs(kinds={"offload": 1.5 * k, "reload": 1.5 * k}))
        assert (report.makespan, max(report.peak_activations())) == (makespan, peak)


def test_forwards_wait_for_copies_that_take_longer() -> None:
    """At k = 1 the memory of PO-F is that of k = 2/3, whatever the number of meshes: three stages of two on each."""
    costs = S.Costs(kinds={"offload": 1.5, "reload": 1.5})
    for p in (4, 8, 16):
        plain, moved = (S.simulate(S.make(name, meshes=p, microbatches=2 * p), costs) for name in ("gis", "po-f"))
        assert moved.makespan == plain.makespan
        assert 2 * max(moved.peak_activations()) == 3
        at_once = S.simulate(S.offload(plain.schedule), costs)
        assert 2 * max(at_once.peak_activations()) == {4: 3, 8: 5, 16: 7}[p]


def test_so_many_cells_ahead() -> None:
    moved = S.offload(S.make("1f1b", meshes=3, microbatches=4), 0, ahead=1)
    assert " ".join(map(str, moved.orders[0])) == (
        "0F0 0offload0 0F1 0offload1 0reload0 0F2 0offload2 0B0 0reload1 0F3 0offload3 0reload2 0B1 0reload3 0B2 0B3"
    )


def test_one_activation_at_a_time() -> None:
    """Right before its backward; what is needed in the next cell stays."""
    moved = S.offload(S.make("1f1b", meshes=3, microbatches=4), ahead=0)
    assert " ".join(map(str, moved.orders[1])) == (
        "1F0 1offload0 1F1 1offload1 1reload0 1B0 1F2 1offload2 1reload1 1B1 1F3 1offload3 1reload2 1B2 1reload3 1B3"
    )
    assert moved.orders[2] == S.make("1f1b", meshes=3, microbatches=4).orders[2]
    assert activations(moved) == [1, 1, 1]


def test_what_waits_in_the_memory_of_the_host() -> None:
    moved = S.offload(S.make("gpipe", meshes=2, microbatches=6))
    report = S.simulate(moved, S.Costs(activation_bytes=10, copy_bandwidth=20))
    assert report.peak_host_bytes() == [60, 50], "the last one is needed at once on the last mesh"
    changes = report.live_bytes(0, "host")
    assert sum(change for _, change in changes) == 0
    assert changes[0][0] == 1.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda plain: S.offload(plain, k=0), "offload: k must be a positive number, found 0"),
        (lambda plain: S.offload(plain, k=10**400), "offload: k must be a positive number, found 1000"),
        (lambda plain: S.offload(plain, ahead=-1), "ahead must be a whole number of at least 0, found -1"),
        (lambda plain: S.offload(plain, 4), "1f1b has no stage 4: there are 4"),
        (
            lambda plain: insert(evict(plain), "offload", 0, after="forward"),
            "mesh 0 position 5: offload(stage 0, mb 2) moves what evict(stage 0, mb 2) moves already: it can wait",
        ),
        (lambda plain: S.offload(S.offload(plain, 0), 0), "offload: 1f1b has offload(stage 0, mb 0) already"),
        (lambda plain: S.make("po-h", meshes=2, microbatches=4, chunks=1), "chunks must be a whole number of at"),
    ],
)  # fmt: skip
def test_what_is_refused(build: Callable[[S.Schedule], object], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        build(S.make("1f1b", meshes=4, microbatches=8))
    assert str(error.value).startswith(message)
