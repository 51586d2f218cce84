"""The autopsy: from the waits of all processes to the reason, alone and in jobs that really hang."""

import dataclasses
import json
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.runtime.processes import hang_jobs

from jaxpp import _jobs
from jaxpp.runtime.processes.autopsy import STILL, ProcessState, Wait, explain, in_slot, process_name
from jaxpp.runtime.processes.waiting import WaitFor, Waiting, aside, own_state


def state(process: int, *waits: Wait, **fields: Any) -> ProcessState:
    fields = {"at": f"train.py:{10 + process}, in main", "still": 61.0} | fields
    return ProcessState(process_name(process, "node7", 4711 + process), waits=waits, **fields)


def receive(peer: int, **fields: Any) -> Wait:
    fields = {"seconds": 61.4, "at": "train.py:41, in main"} | fields
    return Wait(f"receive on channel 7 (forward of stage 1) from process {peer}, on mesh 0", (peer,), **fields)


def test_a_process_that_all_others_wait_for() -> None:
    """Not the one that most wait for directly, but the one that waits for none."""
    found = explain({0: state(0, receive(1)), 1: state(1, receive(2)), 2: state(2)})
    assert (found.cycle, found.blamed) == ((), 2)
    assert found.lines == [
        "process 2 (node7, pid 4713) is at train.py:12, in main; processes 0, 1 wait for it; "
        "nothing has moved for 61 s",
        "process 1 has waited 61 s for receive on channel 7 (forward of stage 1) from process 2, on mesh 0, "
        "at train.py:41, in main",
        "process 0 has waited 61 s for receive on channel 7 (forward of stage 1) from process 1, on mesh 0, "
        "at train.py:41, in main",
        "go on: see what the code at this line waits for: data, a file system, a lock, a loop",
    ]


def test_processes_that_wait_for_each_other() -> None:
    states = {each: state(each, receive(peer)) for each, peer in enumerate([1, 0, 1, 2, 3])}
    found = explain(states)
    assert (sorted(found.cycle), found.blamed, len(found.lines)) == ([0, 1], None, 4)
    assert found.reason == (
        "processes 0, 1 wait for each other, and processes 2, 3, 4 for them; nothing has moved for 61 s"
    )
    assert found.lines[-1] == (
        "go on: these calls need each other: make the same calls in the same order in all processes, and start again"
    )
    launchers = Wait("the launchers to hold the state", (0, 1), remedy="see the launchers")
    assert explain({0: state(0, launchers), 1: state(1, launchers)}).lines[-1] == "go on: see the launchers"


def test_a_wait_for_something_of_its_own_is_the_reason() -> None:
    """Even if the process also waits for another one, which is then a consequence."""
    callback = Wait("a host callback", (), 61.0, "tokens.py:8, in tokenize", "it must return")
    found = explain({0: state(0, receive(1)), 1: state(1, receive(0), callback)})
    assert found.lines[0] == (
        "process 1 (node7, pid 4712) has waited 61 s for a host callback, at tokens.py:8, in tokenize; "
        "process 0 waits for it; nothing has moved for 61 s"
    )
    assert found.lines[-1] == "go on: it must return"


def test_a_lock_is_the_reason_only_if_its_holder_waits_for_nothing() -> None:
    lock = Wait("the same step in another thread", None, 60.0, "train.py:30, in main", "call a step by one thread")
    assert explain({0: state(0, receive(1), lock), 1: state(1)}).blamed == 1
    found = explain({0: state(0, lock), 1: state(1, receive(0))})
    assert (found.blamed, found.lines[-1]) == (0, "go on: call a step by one thread")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"problem": "is stopped", "remedy": "kill -CONT 4712"}, r"process 1 \(node7, pid 4712\) is stopped; .*"),
        ({"still": 0.5}, r"process 1 \(node7, pid 4712\) moves, and is at train.py:11, in main; .*; the job moves"),
        ({"at": ""}, r"process 1 \(node7, pid 4712\) is in no code of its own; .*"),
        (None, "process 1 has not been heard of; process 0 waits for it; nothing has moved for 61 s"),
    ],
)
def test_what_a_process_does_that_others_wait_for(other: dict[str, Any] | None, reason: str) -> None:
    states = {0: state(0, receive(1))} | ({} if other is None else {1: state(1, **other)})
    assert re.fullmatch(reason, explain(states).reason)


def test_only_who_has_not_come_to_a_barrier_is_awaited() -> None:
    barrier = Wait("all processes to come to a barrier", None, 61.0, "train.py:41, in main", is_barrier=True)
    late = explain({0: state(0, barrier), 1: state(1, barrier), 2: state(2), in_slot(3): state(in_slot(3))})
    assert (late.cycle, late.blamed) == ((), 2)
    assert late.lines[1] == "process 0 has waited 61 s for all processes to come to a barrier, at train.py:41, in main"
    two = explain({0: state(0, barrier), 1: state(1, barrier), 2: state(2, barrier)})
    assert len(two.cycle) == 2
    alone = explain({0: state(0, barrier)})
    assert (alone.cycle, alone.blamed) == ((), None)
    assert "no process waits for another one" in alone.reason


def test_a_thread_at_a_barrier_counts_if_the_main_thread_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread in the background, as while a checkpoint is written, does not."""

    def at_barriers() -> list[tuple[str, bool]]:
        return [(wait.what, wait.is_barrier) for wait in own_state(0).waits if wait.peers is None]

    monkeypatch.setattr(_jobs, "files_of_barriers", lambda: {threading.__file__})
    done = threading.Event()
    background = threading.Thread(target=done.wait, daemon=True)
    background.start()
    with WaitFor("a lock", None):
        assert at_barriers() == [("a lock", False)]
        assert aside(at_barriers, lambda _: None)[0] == ("a lock", True)
    done.set()
    background.join()


def test_processes_that_have_ended_are_named_last() -> None:
    goodbye = Wait("the end of the other processes", (1, 2))
    ended = state(1, problem="has ended", has_ended=True)
    assert explain({0: state(0, goodbye), 1: ended, 2: state(2)}).blamed == 2


def test_nobody_waits_for_another_one() -> None:
    compiling = Wait("the compilation of @forward_0 for mesh 0", (), 30.2, "train.py:20, in main")
    assert explain({0: state(0, compiling), 1: state(1), 2: state(2, problem="died")}).lines == [
        "no process waits for another one; nothing has moved for 61 s",
        "process 0 has waited 30 s for the compilation of @forward_0 for mesh 0, at train.py:20, in main",
        "process 1 is at train.py:11, in main",
        "process 2 died",
        "go on: nothing is to be done if it is only slow",
    ]


def waits(count: int) -> st.SearchStrategy[Wait]:
    peers = st.none() | st.sets(st.integers(0, count), max_size=3).map(lambda found: tuple(sorted(found)))
    return st.builds(Wait, st.just("a value"), peers, st.floats(0, 100))


@st.composite
def jobs(draw: st.DrawFn) -> dict[int, ProcessState]:
    """The states of some processes, which may also wait for processes without a state."""
    count = draw(st.integers(1, 6))
    problems = st.sampled_from(["", "", "", "died"])
    made = st.builds(
        ProcessState,
        st.just("a process"),
        still=st.floats(0, 2 * STILL),
        waits=st.lists(waits(count), max_size=2),
        problem=problems,
    )
    return {process: draw(made) for process in range(count) if draw(st.integers(0, 4))}


def reached(process: int, states: dict[int, ProcessState]) -> set[int]:
    """The processes that one waits for, directly or not: by steps, as somebody would who reads all their states."""
    found: set[int] = set()
    new = [process]
    while new:
        one = new.pop()
        if one not in states or states[one].problem or states[one].still < STILL:
            continue
        if any(wait.peers == () for wait in states[one].waits):
            continue
        peers = {peer for wait in states[one].waits for peer in wait.peers or ()} - {one} - found
        found |= peers
        new += peers
    return found


@given(jobs())
def test_a_cycle_is_found_if_there_is_one_and_nobody_is_blamed_who_moves(states: dict[int, ProcessState]) -> None:
    found = explain(states)
    in_cycles = {process for process in states if process in reached(process, states)}
    assert bool(found.cycle) == bool(in_cycles)
    for one, other in zip(found.cycle, [*found.cycle[1:], *found.cycle[:1]], strict=True):
        assert any(other in (wait.peers or ()) for wait in states[one].waits)
        assert states[one].still >= STILL
    if found.blamed is not None:
        assert not found.cycle
        assert found.blamed not in states or states[found.blamed].problem or states[found.blamed].still >= STILL
        assert any(found.blamed in reached(process, states) for process in states)
        assert not reached(found.blamed, states)
    elif not found.cycle:  # whoever waits in the end waits for a process that moves
        ends = {end for process in states for end in reached(process, states) if not reached(end, states)}
        assert all(end in states and states[end].still < STILL for end in ends)
    assert 1 < len(found.lines) <= 5
    assert all(found.lines)


@given(jobs(), st.floats(0, 100))
def test_states_are_messages(states: dict[int, ProcessState], age: float) -> None:
    for each in states.values():
        there = ProcessState.of(json.loads(json.dumps(each.message())), age)
        assert len(there.waits) == len(each.waits)
        assert there.still == pytest.approx(each.still + age, abs=0.01)
        again = dataclasses.replace(there, still=0.0, waits=())
        assert again == dataclasses.replace(each, still=0.0, waits=())


@pytest.mark.parametrize("letter", ["x", "\u4e2d", "\U0001f600", "\udc80"])
def test_a_message_fits_into_a_heartbeat(letter: str) -> None:
    """Also with many waits, at long places, in letters that JSON writes in six or twelve bytes."""
    long = [Wait(letter * 999, tuple(range(999)), 1.0, letter * 999, "r" * 999) for _ in range(50)]
    alone = state(0, long[0], at=letter * 999).message()
    oldest = Wait("the oldest", (1,), 50.0)
    message = state(0, *long, oldest, at=letter * 999).message()
    assert max(len(json.dumps(each)) for each in (alone, message)) < 3600
    assert alone["waits"][0]["at"] in letter * 150
    assert message["waits"][0]["what"] == "the oldest"


def test_waits_are_registered_while_they_last() -> None:
    """Those of all threads, with the user's line of each; a collective needs all processes of its mesh."""
    before = own_state(0)
    asked, done = threading.Event(), threading.Event()

    def collective() -> None:
        with WaitFor(Waiting(1, 0, "collectives (after) with", [[0, 1, 2]])):
            asked.set()
            done.wait()

    thread = threading.Thread(target=collective)
    thread.start()
    asked.wait()
    with WaitFor("a lock", None, "call it by one"):
        found = [wait for wait in own_state(0).waits if wait.what not in {each.what for each in before.waits}]
    done.set()
    thread.join()
    assert [(wait.what, wait.peers, wait.remedy) for wait in found] == [
        ("collectives (after) with process 1, on mesh 0", (1, 2), ""),
        ("a lock", None, "call it by one"),
    ]
    assert all(re.fullmatch(r"\S*/test_autopsy\.py:\d+, in \w+", wait.at) for wait in found)
    assert len(own_state(0).waits) == len(before.waits)
    assert own_state(0).still < STILL


def hang_of(job: Callable[[], None]) -> hang_jobs.Hang:
    return next(each for each in hang_jobs.HANGS if each.job is job)


WAITS = (
    r"  process 0 has waited \d+ s for receive on channel \d+ \(backward of stage 1, microbatch \d\) "
    r"from process 1, on mesh 0, at \S*/hang_jobs\.py:\d+, in step_of\n"
)


def test_a_hang_is_explained_on_demand_and_after_a_signal() -> None:
    """A host callback waits, and then its process is stopped. The signal is for a process whose main thread waits."""
    hang = hang_of(hang_jobs.callback)
    with hang_jobs.hanging(hang) as (children, outputs):
        found = hang_jobs.until(hang.reason, lambda: hang_jobs.on_demand(children[0]))
        report = rf"{hang.reason}\n{WAITS}  go on: the function at this line must return .*"
        assert re.fullmatch(report, found), found
        children[0].send_signal(signal.SIGUSR1)
        found = hang_jobs.until(hang.reason, lambda: hang_jobs.printed(outputs[:1]))
        assert re.search(rf"^jaxpp: {report}\n", found, re.MULTILINE), found
        children[1].send_signal(signal.SIGSTOP)
        stopped = hang_jobs.NAME.format(1) + r"is stopped; process 0 waits for it; nothing has moved for \d+ s"
        found = hang_jobs.until(stopped, lambda: hang_jobs.on_demand(children[0]))
        assert re.fullmatch(rf"{stopped}\n{WAITS}  go on: kill -CONT {children[1].pid} lets it go on", found), found


@pytest.mark.parametrize(("job", "way_out"), [(hang_jobs.barrier, "see what"), (hang_jobs.firewall, "see whether")])
def test_a_barrier_of_jax_waits_for_all_processes(job: Callable[[], None], way_out: str) -> None:
    """A barrier in the user's code, and the one at the start of JAX, which is in a thread of its own."""
    hang = hang_of(job)
    with hang_jobs.hanging(hang) as (children, _):
        found = hang_jobs.until(hang.reason, lambda: hang_jobs.on_demand(children[0]))
    waits = r"  process 0 has waited \d+ s for (JAX|all processes) .*\n"
    assert re.fullmatch(rf"{hang.reason}\n{waits}(  process 1 .*\n)?  go on: {way_out} .*", found), found


def test_a_cycle_is_told_once_by_one_process_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "2")
    hang = hang_of(hang_jobs.cycle_of_three)
    with hang_jobs.hanging(hang) as (_, outputs):
        found = hang_jobs.until(hang.reason, lambda: hang_jobs.printed(outputs))
    assert re.search(rf"^jaxpp: {hang.reason}\n(  process \d has waited .*\n){{3}}  go on: .*\n", found, re.MULTILINE)
    assert found.count("go on: ") == 1


def test_a_spare_does_not_stand_for_the_process_of_its_slot() -> None:
    spare = state(in_slot(1), Wait("a process to take the place of", (), 50.0), at="")
    assert explain({in_slot(1): spare, 0: state(0), 1: state(1)}).lines[1:] == [
        "process 0 is at train.py:10, in main",
        "process 1 is at train.py:11, in main",
        "the process in slot 1 has waited 50 s for a process to take the place of",
        "go on: nothing is to be done if it is only slow",
    ]
