"""The connections of an office: launchers that come, hang up and fall silent, or had another head before."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxpp.healing.head import JobOptions
from jaxpp.healing.messages import Listener, MessageConnection, dial
from jaxpp.healing.office import Office
from jaxpp.healing.store import StatePart

SECRET = b"the secret of the job"
OPEN: list[Office] = []
"""The offices of a test."""


def wait_for_ever() -> None:
    threading.Event().wait()


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    """Lets offices, which have no end, wait for ever: they would tell in the next test what becomes of processes."""
    yield
    while OPEN:
        OPEN.pop()._todo.put(wait_for_ever)


class Service:
    def shutdown(self) -> None:
        pass


def office(
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[int], Any] | None = None,
    options: JobOptions = JobOptions(1, 1),  # noqa: B008  # it is frozen
    **more: Any,
) -> str:
    """The address of an office."""

    def begin(self: Office, count: int) -> tuple[Any, str]:
        return (start(count) if start else Service()), "nowhere"

    monkeypatch.setattr(Office, "_start_service", begin)
    OPEN.append(Office(options, "127.0.0.1", "", **more))
    return Listener("127.0.0.1", SECRET, OPEN[-1].serve).address


def come(own: str, **first: Any) -> MessageConnection:
    connection = dial(own, SECRET)
    connection.send(**first)
    return connection


def launcher(own: str, number: int, slots: int | list[int] = 1, parts: Any = (), was_safe: bool = False) -> Any:
    """The connection of a launcher, and the slots that it gets."""
    connection = come(own, agent=f"127.0.0.1:{number}", slots=slots, parts=parts, was_safe=was_safe)
    return connection, connection.receive().get("slots")


def heard(connection: MessageConnection, name: str) -> dict[str, Any]:
    """The next message of that name."""
    while name not in (found := connection.receive()):
        pass
    return found


def told(capsys: pytest.CaptureFixture[str], text: str) -> str:
    """What was said, as soon as the text is in it."""
    found = ""
    end = time.monotonic() + 30
    while text not in found and time.monotonic() < end:
        found += capsys.readouterr().err
        time.sleep(0.01)
    assert text in found
    return found


def test_launchers_that_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is kept out by them."""
    own = office(monkeypatch)
    for number in range(50):
        come(own, agent=f"127.0.0.1:{number + 1}", slots=1, parts=[], was_safe=False).close()
    end = time.monotonic() + 30
    while (found := launcher(own, 1000)[1]) is None:
        assert time.monotonic() < end
    assert found == [0]


def test_nonsense_of_a_launcher_ends_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own = office(monkeypatch)
    with pytest.raises((EOFError, OSError)):
        come(own, nonsense=1).receive()
    with pytest.raises((EOFError, OSError)):
        come(own, agent="127.0.0.1:1").receive()
    assert launcher(own, 1)[1] == [0]


def test_an_error_in_the_head_is_told_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = office(monkeypatch)
    agent, slots = launcher(own, 1)
    assert slots == [0]
    worker = come(own, worker=0, pid=os.getpid())
    assert worker.receive()["go"] == 1
    worker.send(held="nonsense")
    told(capsys, "jaxpp: the head of the job could not do something, and goes on: ValueError: ")
    worker.send(ready="PeerError", lost=[], unreachable=[])
    assert heard(agent, "joined") == {"joined": 0}
    assert heard(worker, "go")["go"] == 2
    told(capsys, "jaxpp: 1 of 1 processes go on from the beginning\n")


def test_a_service_that_can_not_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jaxpp.healing.head.START_AGAIN", 0.1)
    failures = [OSError("taken"), OSError("taken")]

    def start(count: int) -> Service:
        if failures:
            raise failures.pop()
        return Service()

    own = office(monkeypatch, start)
    agent = launcher(own, 1)
    assert agent[1] == [0]
    assert come(own, worker=0, pid=os.getpid()).receive()["go"] == 1
    found = capsys.readouterr().err
    assert found == "jaxpp: the coordination service can't start, and is tried again every 0.1 s: taken\n"


def test_a_launcher_that_falls_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that is frozen, or whose host has vanished; its processes are lost with it, and its place is free."""
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "1")
    own = office(monkeypatch, options=JobOptions(2, 1))
    silent = launcher(own, 1)
    assert silent[1] == [0]  # each connection has a thread: who comes second has to wait for this
    living, slots = launcher(own, 2)
    living.beat()
    assert slots == [1]
    workers = [come(own, worker=slot, pid=slot) for slot in range(2)]
    for each in workers:
        each.beat()
    assert [each.receive()["stores"] for each in workers] == [
        ["127.0.0.1:1", "127.0.0.1:2"],
        ["127.0.0.1:2", "127.0.0.1:1"],
    ]
    gone = "jaxpp: the launcher at 127.0.0.1:1 is gone, with what it held (no word from it for 1 s); 1 is left\n"
    told(capsys, gone)
    assert workers[1].receive() == {"stop": "process 0 of 2 is lost with its launcher"}
    workers[1].send(ready="PeerError", lost=[0], unreachable=[])
    assert workers[1].receive()["stores"] == ["127.0.0.1:2"]
    assert heard(living, "next") == {"next": ["127.0.0.1:1", "127.0.0.1:2"]}
    assert heard(living, "next") == {"next": ["127.0.0.1:2"]}
    assert launcher(own, 3)[1] == [0]


def test_a_process_that_falls_silent_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started anew then: else its place would be lost for the job, and the job would wait for it in the end."""
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "1")
    own = office(monkeypatch, options=JobOptions(2, 1))
    agent, slots = launcher(own, 1, slots=2)
    agent.beat()
    assert slots == [0, 1]
    workers = [come(own, worker=slot, pid=4000 + slot) for slot in range(2)]
    workers[1].beat()
    assert {heard(agent, "joined")["joined"] for _ in workers} == {0, 1}
    assert heard(agent, "kill") == {"kill": 0, "pid": 4000}
    assert workers[1].receive()["go"] == 1
    assert workers[1].receive() == {"stop": "process 0 of 2 is frozen"}


def parts(*owners: int) -> list[StatePart]:
    """Parts of the state after 8 steps of a generation of two processes."""
    return [StatePart(3, 8, owner, 2) for owner in owners]


def test_an_office_goes_on_for_another(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It knows from the launchers what they hold, and begins when all have come."""
    own = office(monkeypatch, options=JobOptions(2, 2, spares=1), expected=["127.0.0.1:1", "127.0.0.1:2"])
    launchers = [launcher(own, 1, [1], parts(0, 1), was_safe=True)]
    first = come(own, worker=1, pid=1)
    launchers.append(launcher(own, 2, [2], parts(1)))
    second = come(own, worker=2, pid=2)
    assert [slots for _, slots in launchers] == [[1], [2]]
    stores = ["127.0.0.1:1", "127.0.0.1:2"]
    resume = {"generation": 3, "step": 8, "holders": [stores[:1], stores]}
    found = [heard(each, "go") for each in (first, second)]
    assert [(each["go"], each["count"], each["resume"]) for each in found] == [(4, 2, resume)] * 2
    assert {each["number"] for each in found} == {0, 1}
    told(capsys, "jaxpp: 2 of 2 processes go on after step 8\n")
    late = come(own, agent="127.0.0.1:3", slots=1, parts=[], was_safe=False).receive()
    assert (late["slots"], late["was_safe"]) == ([0], True)


def test_an_office_that_takes_over_and_can_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpp.healing.office.ROLL_CALL", 0.2)
    own = office(monkeypatch, options=JobOptions(3, 2), expected=["127.0.0.1:1", "127.0.0.1:2"])
    agent, _ = launcher(own, 1, [1])
    end = "the launchers that are left have 1 processes, and --least is 2; start the job again from a checkpoint"
    assert heard(agent, "end") == {"end": end}
