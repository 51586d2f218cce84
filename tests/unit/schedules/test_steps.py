"""Schedules of several optimizer steps."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jaxpp import schedules as S
from jaxpp.schedules.builders.steps import UPDATE, first_step, in_steps, repeat, steps_of
from jaxpp.schedules.engine.report import Report


@pytest.mark.parametrize(
    ("p", "m", "k", "delay"), [(4, 4, 8, 1), (4, 3, 5, 1), (2, 1, 3, 1), (8, 16, 3, 1), (5, 2, 7, 2), (1, 2, 2, 1)]
)
def test_pipedream_2bw_has_no_bubble_between_steps(p: int, m: int, k: int, delay: int) -> None:
    """k steps of m microbatches take (km + p - 1)T, and the activations of 1F1B (arXiv 2006.09503, figure 2)."""
    schedule = S.make("pipedream-2bw", meshes=p, microbatches=m, steps=k, delay=delay)
    report = S.simulate(schedule, S.Costs(forward=1.0, input_grad=1.5, weight_grad=0.5))
    assert report.makespan == pytest.approx(3 * (k * m + p - 1), abs=0.002 * k)
    assert report.peak_activations() == [min(k * m, p - i) for i in range(p)]
    assert steps_of(schedule) == k
    assert S.parse(str(schedule)) == schedule


WITHOUT = {  # the schedules whose steps of eight microbatches can't overlap, and why
    **dict.fromkeys(("gpipe", "looped-bfs", "zb-2p"), "stage 0 begins step 2 before the update of step 0"),
    **dict.fromkeys(("dualpipe", "chimera", "bitpipe"), "stage 0 is on 2 meshes"),
    "slimpipe": "stage 1 is on 4 meshes",
}


@pytest.mark.parametrize("name", S.names())
def test_steps_that_overlap_have_no_bubble_between_them(name: str) -> None:
    """More take what the busiest mesh has to do in them, and no more activations, for any schedule but those."""

    def made(steps: int) -> Report:
        return S.simulate(in_steps(S.make(name, meshes=4, microbatches=8 * steps), steps, delay=1))

    if name in WITHOUT:
        with pytest.raises(S.ScheduleError, match=re.escape(f"{name}: {WITHOUT[name]}")):
            made(3)
        return
    less, more = made(3), made(6)
    load = max(np.subtract(more.busy_of_meshes, less.busy_of_meshes))
    waves = 1.25 if name == "hanayo" else 1  # whose waves of four microbatches have bubbles of their own
    assert more.makespan - less.makespan == pytest.approx(waves * load, abs=0.02)
    assert more.peak_activations() == less.peak_activations()


@pytest.mark.parametrize("delay", [1, 2])
def test_delay_plus_one_versions_of_the_weights_are_read(delay: int) -> None:
    """From the first task that reads a version to the last one, so many are alive at once, and no fewer."""
    m, k = 4 // delay, 6
    schedule = S.make("pipedream-2bw", meshes=4, microbatches=m, steps=k, delay=delay)
    for order in schedule.orders:
        versions = [max(0, task.microbatch // m - delay) for task in order if task.kind != UPDATE]
        first, last = ({v: n for n, v in each} for each in (list(enumerate(versions))[::-1], enumerate(versions)))
        alive = [sum(first[v] <= n <= last[v] for v in first) for n in range(len(versions))]
        assert max(alive) <= delay + 1
        made = [task.microbatch // m for task in order if task.kind == UPDATE]
        assert made == list(range(k))


def test_a_repeated_step_waits_for_the_update_of_its_own_mesh_alone() -> None:
    """Zero bubble without a synchronization of the optimizer: a step takes its longest stage (arXiv 2401.10241)."""
    for name, mine in (("zb-h2", 24.0), ("zb-2p", 24.0), ("1f1b", 33.0)):
        one = S.make(name, meshes=4, microbatches=8)
        report = S.simulate(one)
        assert report.longest_stage == mine
        every = repeat(one, 4)
        assert S.simulate(every).makespan == pytest.approx(report.makespan + 3 * mine, abs=0.01)
        assert first_step(every) == one


@pytest.mark.parametrize(
    ("name", "p", "m", "waiting", "optimistic"), [("zb-2p", 4, 12, 39, 36), ("zb-v", 4, 12, 37.5, 36)]
)
def test_updates_that_wait_for_all_gradients(name: str, p: int, m: int, waiting: float, optimistic: float) -> None:
    """Each step then takes the makespan of one, as with a norm of all gradients; else its longest stage."""
    one = S.make(name, meshes=p, microbatches=m)
    found = [S.simulate(repeat(one, 4, waits=waits)).makespan for waits in (True, False)]
    assert found == pytest.approx([4 * waiting, waiting + 3 * optimistic], abs=0.1)


def test_microbatches_in_another_order() -> None:
    """The update waits for the last gradient that its mesh runs, and a forward for what the first one waits for."""
    grid = "schedule: mine\nplacement: 0\nmesh 0: 0F1 0F0 0B0 0B1 0F3 0F2 0B2 0B3"
    made = in_steps(S.parse(grid), 2)
    assert str(made).splitlines()[2:] == [
        "kind optimizer: backward|weight_grad; time 0.001",
        "kind forward: forward@-1 forward~-1 ?optimizer#-2",
        "mesh 0: 0F1 0F0 0B0 0B1 0optimizer1 0F3 0F2 0B2 0B3 0optimizer3",
    ]
    late = replace(made, orders=((*made.orders[0][:4], *made.orders[0][5:6], made.orders[0][4], *made.orders[0][6:]),))
    with pytest.raises(
        S.ScheduleError, match=r"F\(stage 0, mb 3\) needs optimizer\(stage 0, mb 1\), which comes later"
    ):
        S.check(late)


def test_a_step_has_the_tasks_that_all_have() -> None:
    """A backward that one step splits is split in all, and what one step does not fuse is apart in all."""
    head = "schedule: mine\nplacement: 0\nmesh 0: "
    made = in_steps(S.parse(head + "0F0 0B0 0F1 0F2+0B1 0B2 0F3 0F4+0B3 0F5+0B4 0I5 0W5"), 2, delay=1)
    tasks = str(made).splitlines()[-1].removeprefix("mesh 0: ")
    assert tasks == "0F0 0B0 0F1 0F2+0B1 0I2 0W2 0optimizer2 0F3 0F4 0B3 0F5+0B4 0I5 0W5 0optimizer5"
    assert first_step(made) == S.parse(head + "0F0 0B0 0F1 0F2+0B1 0I2 0W2")


ONE = S.make("1f1b", meshes=2, microbatches=4)
SWAPPED = S.parse("schedule: mine\nplacement: 0\nmesh 0: 0F0 0F1 0B0 0B1 0F2 0F3 0B3 0B2")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: repeat(ONE, 0), "steps must be a whole number of at least 1, found 0"),
        (lambda: in_steps(ONE, 3), "1f1b: 4 microbatches are not 3 equal steps"),
        (lambda: in_steps(ONE, 2, -1), "delay must be a whole number of at least 0, found -1"),
        (lambda: in_steps(ONE, 2), "1f1b: stage 0 begins step 1 before the update of step 0, whose weights it reads"),
        (lambda: repeat(repeat(ONE, 2), 2), "1f1b has updates already: expected a schedule without optimizer"),
        (
            lambda: repeat(S.make("chimera", meshes=2, microbatches=2), 2),
            "chimera: stage 0 is on 2 meshes, a loop over steps needs it on one",
        ),
        (
            lambda: first_step(in_steps(SWAPPED, 2)),
            "mine: mesh 0 runs the microbatches of a stage in another order in step 1 than in step 0; a loop",
        ),
        (
            lambda: S.make("pipedream-2bw", meshes=8, microbatches=3, steps=4, delay=2),
            "pipedream-2bw: microbatches must be at least 4 on 8 meshes with a delay of 2, found 3",
        ),
    ],
)
def test_what_is_wrong_with_steps(make: Callable[[], object], message: str) -> None:
    with pytest.raises(S.ScheduleError, match=re.escape(message)):
        make()
