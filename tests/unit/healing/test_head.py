"""What the head of a job that heals decides, told of processes that are not there."""

import threading
from typing import Any

import pytest

from jaxpp.healing import head
from jaxpp.healing.head import Head, JobOptions, Worker


class Service:
    """A coordination service."""

    def __init__(self) -> None:
        self.is_up = True

    def shutdown(self) -> Any:
        self.is_up = False


class Job:
    """A head, and what it told whom."""

    def __init__(self, processes: int = 3, least: int = 2, stores: int = 1, wait: float = 0.0, **more: Any) -> None:
        options = JobOptions(processes, least, wait, **more)
        self.services: list[Service] = []
        self.dropped: list[tuple[int, int]] = []
        self.killed: list[int] = []
        self.head = Head(options, self._start, self._drop, patience=1e9)
        self.head.stores = [f"store {k}" for k in range(stores)]
        self.told: dict[int, list[dict[str, Any]]] = {slot: [] for slot in range(options.slots)}
        self.workers = [self.worker(slot, f"store {slot % stores}") for slot in range(options.slots)]
        for each in self.workers:
            self.head.joined(each)

    def worker(self, slot: int, store: str = "store 0") -> Worker:
        def send(**message: Any) -> None:
            self.told[slot].append(message)

        return Worker(slot, store, send, lambda: self.killed.append(slot))

    def _start(self, count: int) -> tuple[Service, str]:
        self.services.append(Service())
        return self.services[-1], f"service {len(self.services)} of {count}"

    def _drop(self, generation: int, step: int) -> None:
        self.dropped.append((generation, step))

    def held(self, step: int, *slots: int) -> None:
        own = self.head.generation
        assert own is not None
        for slot in slots:
            self.head.held(self.workers[slot], own.number, step, [self.workers[slot].store])

    def ready(self, *slots: int, lost: list[int] | None = None) -> None:
        for slot in slots:
            self.head.ready(self.workers[slot], "PeerError: one died", lost or [])


def test_smaller_numbers_of_processes_compile_ahead() -> None:
    """The first ones of them do, the others wait. When one dies meanwhile others take its place."""
    job = Job(processes=4, least=2, prepares=True)

    def told() -> list[tuple[int, bool] | None]:
        last = [job.told[slot][-1] if job.told[slot] else {} for slot in range(4)]
        return [(each["count"], each["prepares"]) if "count" in each else None for each in last]

    assert told() == [(3, True), (3, True), (3, True), None]
    for slot in range(3):
        job.head.ready(job.workers[slot], "", [])
    assert told() == [(2, True), (2, True), (3, True), None]
    job.head.gone(job.workers[0])
    job.ready(1)
    assert told()[1:] == [(2, True), (2, True), None]
    for slot in (1, 2):
        job.head.ready(job.workers[slot], "", [])
    assert told()[1:] == [(3, False)] * 3
    assert all(job.told[slot][-1]["resume"] is None for slot in range(4))


def test_what_can_not_be_compiled_ahead_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A step that does not fit into the memory of fewer processes is tried twice, and the job begins without it."""
    job = Job(processes=4, least=2, prepares=True)
    counts: list[int] = []
    while job.told[0][-1]["prepares"]:
        counts.append(job.told[0][-1]["count"])
        for slot in range(counts[-1]):
            job.head.ready(job.workers[slot], "RESOURCE_EXHAUSTED: out of memory", [])
    assert counts == [3, 3, 2, 2]
    assert [(job.told[slot][-1]["count"], job.told[slot][-1]["resume"]) for slot in range(4)] == [(4, None)] * 4
    assert "nothing is compiled ahead for 2 processes: RESOURCE_EXHAUSTED: out of memory" in capsys.readouterr().err


def test_a_state_is_safe_when_all_parts_are_held() -> None:
    job = Job()
    job.held(1, 0, 1)
    assert job.dropped == []
    job.held(1, 2)
    assert job.dropped == [(1, 1)]
    assert [job.told[slot][-1] for slot in range(3)] == [{"safe": 1, "regroup": False}] * 3


def test_the_others_go_on_from_what_is_safe_and_take_in_who_comes_back() -> None:
    job = Job()
    job.held(1, 0, 1, 2)
    job.held(2, 0, 1)
    job.head.gone(job.workers[0])
    assert job.told[1][-1] == {"stop": "process 0 of 3 died"}
    job.ready(1)
    assert job.services[0].is_up
    job.ready(2)
    assert not job.services[0].is_up
    resume = {"generation": 1, "step": 1, "holders": [["store 0"]] * 3}
    go = {
        "go": 2,
        "count": 2,
        "coordinator": "service 2 of 2",
        "stores": ["store 0"],
        "resume": resume,
        "prepares": False,
    }
    assert [job.told[slot][-1] for slot in (1, 2)] == [{**go, "number": 0}, {**go, "number": 1}]

    job.workers[0] = job.worker(0)
    job.head.joined(job.workers[0])
    job.held(1, 1, 2)
    assert job.told[1][-1] == {"safe": 1, "regroup": True}
    job.held(2, 1, 2)
    for slot in (1, 2):
        job.head.ready(job.workers[slot], "", [])
    assert [job.told[slot][-1]["number"] for slot in range(3)] == [0, 1, 2]
    assert job.told[0][-1]["resume"] == {"generation": 2, "step": 2, "holders": [["store 0"]] * 2}


def test_fewer_than_the_least_wait() -> None:
    job = Job(least=3)
    job.held(1, 0, 1, 2)
    job.head.gone(job.workers[2])
    job.ready(0, 1)
    assert "go" not in job.told[0][-1]
    job.workers[2] = job.worker(2)
    job.head.joined(job.workers[2])
    assert [job.told[slot][-1]["go"] for slot in range(3)] == [2, 2, 2]


def test_survivors_wait_for_who_is_started_anew_when_they_are_told_to() -> None:
    job = Job(wait=1e9)
    job.head.gone(job.workers[2])
    job.ready(0, 1)
    job.head.tick()
    assert "go" not in job.told[0][-1]
    job.head.joined(job.worker(2))
    assert job.told[0][-1]["go"] == 2


def test_one_that_the_others_miss_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.ready(0, 1, lost=[2])
    job.head.tick()
    assert job.killed == []
    monkeypatch.setattr(head, "DOUBT", -1.0)
    job.head.tick()
    assert job.killed == [2]
    assert [job.told[slot][-1]["go"] for slot in (0, 1)] == [2, 2]


def test_a_step_that_fails_three_times_ends_the_job() -> None:
    job = Job()
    job.held(7, 0, 1, 2)
    for _ in range(3):
        job.ready(0, 1, 2)
        job.held(7, 0, 1, 2)
    end = "what follows step 7 failed 3 times, at last: PeerError: one died"
    assert job.told[0][-1] == {"end": end} == {"end": job.head.end}


def test_a_host_that_is_lost_with_the_only_copy() -> None:
    job = Job(stores=2)
    job.held(1, 0, 1, 2)
    job.head.lost_store("store 1")
    job.head.gone(job.workers[1])
    job.ready(0, 2)
    assert job.head.end == "the state is lost with the hosts that held it; start the job again from a checkpoint"


def test_states_go_to_the_hosts_that_are_there() -> None:
    """The host after one that is lost takes its place, and who is heard is asked first."""
    job = Job(processes=3, stores=3)
    assert [job.told[slot][-1]["stores"] for slot in range(3)] == [
        ["store 0", "store 1"],
        ["store 1", "store 2"],
        ["store 2", "store 0"],
    ]
    own = job.head.generation
    assert own is not None
    for slot in range(3):
        job.head.held(job.workers[slot], own.number, 1, job.told[slot][-1]["stores"])
    job.head.gone(job.workers[1])
    job.ready(0, 2)
    assert job.told[0][-1]["resume"]["holders"] == [
        ["store 0", "store 1"],
        ["store 2", "store 1"],
        ["store 2", "store 0"],
    ]
    job.head.lost_store("store 1")
    job.ready(0, 2)
    assert [job.told[slot][-1]["stores"] for slot in (0, 2)] == [["store 0", "store 2"], ["store 2", "store 0"]]


def test_launchers_that_give_nothing_are_no_fault_of_the_step() -> None:
    """They are not asked again; without them the state is lost."""
    job = Job(stores=2)
    for _ in range(5):
        own = job.head.generation
        assert own is not None
        for slot in range(3):
            job.head.held(job.workers[slot], own.number, 7, ["store 0", "store 1"])
        for slot in range(3):
            job.head.ready(job.workers[slot], "BrokenError: no launcher", [], ["store 1"])
        assert job.told[0][-1]["resume"]["holders"] == [["store 0"]] * 3
    for slot in range(3):
        job.head.ready(job.workers[slot], "BrokenError: no launcher", [], ["store 0"])
    assert job.head.end == "the state is lost with the hosts that held it; start the job again from a checkpoint"


def test_a_service_that_can_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes until it does, and it is no attempt of the step."""
    job = Job(least=3)
    job.held(7, 0, 1, 2)

    def fail(count: int) -> tuple[Service, str]:
        raise OSError("no port")

    with monkeypatch.context() as patch:
        patch.setattr(head, "START_AGAIN", 0.0)
        patch.setattr(job.head, "_start_service", fail)
        job.ready(0, 1, 2)
        for _ in range(5):
            job.head.tick()
    assert job.services[0].is_up
    job.head._start_again = 0.0
    job.head.tick()
    assert not job.services[0].is_up
    assert job.told[0][-1]["go"] == 2
    assert job.told[0][-1]["resume"]["step"] == 7


def test_before_anything_is_safe_it_begins_again() -> None:
    job = Job()
    job.held(1, 0, 1)
    job.head.gone(job.workers[2])
    job.ready(0, 1)
    assert job.told[0][-1]["resume"] is None


def test_a_new_process_is_not_needed_when_all_is_done() -> None:
    job = Job()
    job.head.gone(job.workers[2])
    job.ready(0, 1)
    job.head.joined(job.worker(2))
    job.head.done(job.workers[0])
    job.head.gone(job.workers[0])
    assert job.told[2][-1] == {"end": ""}
    assert "stop" not in job.told[1][-1]


def test_the_first_error_is_told_and_not_what_follows_from_it() -> None:
    job = Job(least=3)
    job.held(7, 0, 1, 2)
    for _ in range(3):
        job.head.fails(job.workers[0], "ValueError: bad batch")
        job.ready(1, 2)
        job.head.gone(job.workers[0])
        job.workers[0] = job.worker(0)
        job.head.joined(job.workers[0])
        job.held(7, 0, 1, 2)
    assert job.head.end == "what follows step 7 failed 3 times, at last: ValueError: bad batch"


def test_an_error_of_the_script_before_any_state_is_held_ends_the_job() -> None:
    job = Job(least=3)
    job.head.fails(job.workers[1], "ValueError: bad batch")
    end = "the training failed before its first state was held, so it is not begun again: ValueError: bad batch"
    assert [job.told[slot][-1] for slot in range(3)] == [{"end": end}] * 3


def test_an_error_that_follows_from_a_death_does_not_end_the_job() -> None:
    job = Job(least=2)
    job.head.gone(job.workers[0])
    job.head.fails(job.workers[1], "OSError: no answer")
    assert job.head.end is None


def test_an_error_of_the_script_while_it_compiles_ahead_does_not_end_the_job() -> None:
    job = Job(least=2, prepares=True)
    job.head.fails(job.workers[1], "ValueError: 2 stages")
    assert job.head.end is None


def test_a_service_that_ends_slowly_holds_up_nobody() -> None:
    """It waits for what a process has asked it whose host has vanished."""
    job = Job()
    over = threading.Event()
    job.services[0].shutdown = over.wait
    job.head.gone(job.workers[2])
    job.ready(0, 1)
    assert len(job.services) == 2
    assert job.told[0][-1]["go"] == 2
    over.set()


def test_who_is_missing_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(least=3)
    job.head.gone(job.workers[2])
    job.ready(0, 1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(head, "SETTLE", -1.0)
    job.head.tick()
    job.head.tick()
    assert capsys.readouterr().err == "jaxpp: 2 of 3 processes are ready, and wait for slot 2: --least is 3\n"


def told_go(job: Job) -> dict[int, tuple[int, int]]:
    """By slot the last generation that a process was told to begin, and its number there."""
    begun = {slot: [each for each in told if "go" in each] for slot, told in job.told.items()}
    return {slot: (each[-1]["go"], each[-1]["number"]) for slot, each in begun.items() if each}


def test_a_spare_takes_the_number_of_the_process_that_died() -> None:
    """At once, whatever `wait` is. The process that is started anew is a spare then."""
    job = Job(spares=1, least=3, wait=1e9)
    assert told_go(job) == {0: (1, 0), 1: (1, 1), 2: (1, 2)}
    job.held(4, 0, 1, 2)
    assert job.told[3] == [{"spare": 3}]
    job.head.gone(job.workers[0])
    job.ready(1, 2)
    assert told_go(job) == {0: (1, 0), 1: (2, 1), 2: (2, 2), 3: (2, 0)}
    assert job.told[3][-1]["resume"]["step"] == 4
    job.workers[0] = job.worker(0)
    job.head.joined(job.workers[0])
    for step in (5, 6):
        job.held(step, 1, 2, 3)
    assert job.told[0][-1] == {"spare": 3}
    assert job.told[1][-1] == {"safe": 6, "regroup": False}
    job.head.gone(job.workers[2])
    job.ready(1, 3)
    assert told_go(job) == {0: (3, 2), 1: (3, 1), 2: (2, 2), 3: (3, 0)}


def test_without_enough_spares_there_are_fewer_stages() -> None:
    """Until one is back, in the place of any process."""
    job = Job(spares=1)
    job.held(4, 0, 1, 2)
    job.head.gone(job.workers[3])
    job.held(5, 0, 1, 2)
    assert job.told[0][-1] == {"safe": 5, "regroup": False}
    job.head.gone(job.workers[1])
    job.ready(0, 2)
    assert told_go(job) == {0: (2, 0), 1: (1, 1), 2: (2, 1)}
    job.workers[3] = job.worker(3)
    job.head.joined(job.workers[3])
    job.held(6, 0, 2)
    assert job.told[0][-1] == {"safe": 6, "regroup": True}
    for slot in (0, 2):
        job.head.ready(job.workers[slot], "", [])
    assert told_go(job) == {0: (3, 0), 1: (1, 1), 2: (3, 2), 3: (3, 1)}


def test_a_spare_of_the_same_host_comes_first() -> None:
    job = Job(stores=3, spares=3)
    job.held(4, 0, 1, 2)
    job.head.gone(job.workers[1])
    job.ready(0, 2)
    assert told_go(job) == {0: (2, 0), 1: (1, 1), 2: (2, 2), 4: (2, 1)}


def test_spares_that_come_first_take_part() -> None:
    """A job begins as soon as enough processes are ready, whichever these are."""
    job = Job(spares=1)
    own = Head(JobOptions(3, 3, spares=1), job._start, job._drop)
    for slot in (3, 2, 0):
        own.joined(job.worker(slot))
    assert {slot: job.told[slot][-1]["number"] for slot in (0, 2, 3)} == {0: 0, 2: 2, 3: 1}


def test_a_spare_is_not_needed_when_all_is_done() -> None:
    job = Job(spares=1)
    job.held(1, 0, 1, 2)
    job.head.done(job.workers[0])
    assert job.told[3][-1] == {"end": ""}
