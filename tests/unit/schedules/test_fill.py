"""Side work in bubbles: as much as fits, and the schedule takes no longer."""

import pytest

from jaxpp import schedules as S
from jaxpp.schedules.rewrites.fill import bubbles_used, fill

SIDE = S.Operation.parse("side:; time 0.5")


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "dualpipe"])
def test_it_takes_no_longer(name: str) -> None:
    schedule = S.make(name, meshes=4, microbatches=8)
    costs = S.Costs(hop=0.1)
    before = S.simulate(schedule, costs)
    filled = fill(schedule, SIDE, costs)
    after = S.simulate(filled, costs)
    assert after.makespan == pytest.approx(before.makespan)
    used = sum(task.kind == "side" for task in filled) * 0.5 * schedule.meshes / schedule.stages
    assert bubbles_used(after, "side") == pytest.approx(used / sum(bubble.length for bubble in before.bubbles))
    assert bubbles_used(after, "side") > 0.3
    assert bubbles_used(before, "side") == 0
    assert [task for task in filled if task.kind != "side"] == list(schedule)


def test_as_many_as_fit() -> None:
    """1F1B on two meshes waits for 1 at both ends of each mesh, and mesh 0 between its tasks."""
    schedule = S.make("1f1b", meshes=2, microbatches=8)
    lengths = [(bubble.mesh, bubble.length) for bubble in S.simulate(schedule).bubbles]
    wanted = {mesh: sum(int(0.9 * length / 0.3) for at, length in lengths if at == mesh) for mesh in (0, 1)}
    filled = fill(schedule, S.Operation.parse("side:; time 0.3"))
    for mesh, order in enumerate(filled.orders):
        assert sum(task.kind == "side" for task in order) == min(wanted[mesh], 8)


def test_bubbles_know_their_free_memory() -> None:
    """Of mesh 1 with room beside one activation only the bubbles are filled in which there are no more."""
    schedule, costs = S.make("gpipe", meshes=2, microbatches=4), S.Costs(activation_bytes=10.0)
    counts = [
        sum(task.kind == "side" for task in fill(schedule, SIDE, costs, size=5, limits=[limit] * 2).orders[1])
        for limit in (4, 14, 100)
    ]
    assert counts[0] == 0
    assert 0 < counts[1] <= counts[2]


@pytest.mark.parametrize(
    ("operation", "options", "message"),
    [
        ("side: forward; time 1", {}, "side waits for other tasks, so that it has a place: take `insert`"),
        ("side:", {}, "the costs do not say how long side takes"),
        ("side:; time 1", {"most": 1.5}, "most must be a share above 0, up to 1, found 1.5"),
        ("side:; time 1", {"limits": [1.0]}, "expected 2 limits, one per mesh, found 1"),
    ],
)
def test_what_is_refused(operation: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(S.ScheduleError, match=message):
        fill(S.make("1f1b", meshes=2, microbatches=2), S.Operation.parse(operation), **options)  # pyright: ignore[reportArgumentType]  # the mistakes


def test_a_schedule_that_is_full() -> None:
    filled = fill(S.make("1f1b", meshes=2, microbatches=2), SIDE)
    with pytest.raises(S.ScheduleError, match="fill: 1f1b has side tasks already"):
        fill(filled, SIDE)


@pytest.mark.parametrize("sizes", [(1, 3, 1, 3), (2,) * 4])
def test_side_work_of_another_size_takes_no_longer(sizes: tuple[float, ...]) -> None:
    """A side work of a microbatch three times as large takes three times as long."""
    schedule, costs = S.make("1f1b", meshes=4, microbatches=4), S.Costs(microbatches=sizes)
    filled = fill(schedule, SIDE, costs)
    assert any(task.kind == "side" and costs.microbatches[task.microbatch] > 1 for task in filled)
    assert S.simulate(filled, costs).makespan == pytest.approx(S.simulate(schedule, costs).makespan)


@pytest.mark.parametrize("effect", ["uses compute net", "uses net", "here +1", "makes activation"])
def test_side_work_does_nothing_but_take_time(effect: str) -> None:
    schedule, side = S.make("1f1b", meshes=4, microbatches=4), S.Operation.parse(f"side:; {effect}; time 0.5")
    with pytest.raises(S.ScheduleError, match="fill: expected an operation that only takes time, found 'side:; "):
        fill(schedule, side)
    assert fill(schedule, S.Operation.parse("side:; uses compute; time 0.5")).orders == fill(schedule, SIDE).orders
