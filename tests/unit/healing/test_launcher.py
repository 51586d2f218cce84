"""The head's connections: launchers that come, hang up and fall silent."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from jaxpp.healing.launcher import Office
from jaxpp.healing.messages import MessageConnection, dial

SECRET = b"the secret of the job"


class Service:
    def shutdown(self) -> None:
        pass


def office(monkeypatch: pytest.MonkeyPatch, start: Callable[[int], Any] | None = None, processes: int = 1) -> Office:
    def begin(self: Office, count: int) -> tuple[Any, str]:
        return (start(count) if start else Service()), "nowhere"

    monkeypatch.setattr(Office, "_start_service", begin)
    return Office(processes, 1, 0.0, "127.0.0.1", 0, SECRET)


def come(own: Office, **first: Any) -> MessageConnection:
    connection = dial(own.address, SECRET)
    connection.send(**first)
    return connection


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
        come(own, agent=f"127.0.0.1:{number + 1}", count=1).close()
    end = time.monotonic() + 30
    while "slots" not in (found := come(own, agent="127.0.0.1:1000", count=1).receive()):
        assert time.monotonic() < end, found
    assert found == {"slots": [0], "spares": 0}


def test_nonsense_of_a_launcher_ends_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own = office(monkeypatch)
    with pytest.raises((EOFError, OSError)):
        come(own, nonsense=1).receive()
    with pytest.raises((EOFError, OSError)):
        come(own, agent="127.0.0.1:1").receive()
    assert come(own, agent="127.0.0.1:1", count=1).receive() == {"slots": [0], "spares": 0}


def test_an_error_in_the_head_is_told_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = office(monkeypatch)
    agent = come(own, agent="127.0.0.1:1", count=1)
    assert agent.receive() == {"slots": [0], "spares": 0}
    worker = come(own, worker=0, pid=os.getpid())
    assert worker.receive()["go"] == 1
    worker.send(held="nonsense")
    told(capsys, "jaxpp: the head of the job could not do something, and goes on: ValueError: ")
    worker.send(ready="PeerError", lost=[], unreachable=[])
    assert agent.receive() == {"joined": 0}
    while "go" not in (found := worker.receive()):
        pass
    assert found["go"] == 2
    told(capsys, "jaxpp: 1 of 1 processes go on from the beginning\n")  # here, and not in the next test


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
    agent = come(own, agent="127.0.0.1:1", count=1)
    assert agent.receive() == {"slots": [0], "spares": 0}
    assert come(own, worker=0, pid=os.getpid()).receive()["go"] == 1
    # The office of another test may still say that its launchers are gone.
    found = [line for line in capsys.readouterr().err.splitlines() if "gone" not in line]
    assert found == ["jaxpp: the coordination service can't start, and is tried again every 0.1 s: taken"]


def test_a_launcher_that_falls_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that is frozen, or whose host has vanished; its processes are lost with it, and its place is free."""
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "1")
    own = office(monkeypatch, processes=2)
    silent = come(own, agent="127.0.0.1:1", count=1)
    assert silent.receive() == {"slots": [0], "spares": 0}  # who comes second has to wait for this
    living = come(own, agent="127.0.0.1:2", count=1)
    living.beat()
    assert living.receive() == {"slots": [1], "spares": 0}
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
    assert come(own, agent="127.0.0.1:3", count=1).receive() == {"slots": [0], "spares": 0}


def test_a_process_that_falls_silent_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started anew then: else its place would be lost for the job, and the job would wait for it in the end."""
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "1")
    own = office(monkeypatch, processes=2)
    agent = come(own, agent="127.0.0.1:1", count=2)
    agent.beat()
    assert agent.receive() == {"slots": [0, 1], "spares": 0}
    workers = [come(own, worker=slot, pid=4000 + slot) for slot in range(2)]
    workers[1].beat()
    assert {agent.receive()["joined"] for _ in workers} == {0, 1}
    assert agent.receive() == {"kill": 0, "pid": 4000}
    assert workers[1].receive()["go"] == 1
    assert workers[1].receive() == {"stop": "process 0 of 2 is frozen"}
