"""A launcher that loses its head, or whose processes never begin."""

import queue
import subprocess
import sys
from typing import Any

import pytest

from jaxpp.healing import launcher
from jaxpp.healing.head import JobOptions
from jaxpp.healing.launcher import Agent
from jaxpp.healing.member import RESTART
from jaxpp.healing.messages import Listener, MessageConnection
from jaxpp.healing.store import StatePart, Store

SECRET = b"the secret of the job"

OPTIONS = {"processes": 2, "least": 2, "wait": 0.0, "prepares": False, "spares": 1}


class Head:
    """A head that hangs up when it has answered. It goes with its address if it does not live."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lives: bool, **answer: Any) -> None:
        self.lives = lives
        self._answer = {"slots": [1, 2], "options": OPTIONS, "was_safe": False, **answer}
        self.heard: list[dict[str, Any]] = []
        self.address = Listener("127.0.0.1", SECRET, self._serve).address
        dial = launcher.dial

        def maybe_dial(address: str, *arguments: Any) -> Any:
            if address == self.address and self.heard and not self.lives:
                raise ConnectionError("refused")
            return dial(address, *arguments)

        monkeypatch.setattr(launcher, "dial", maybe_dial)

    def _serve(self, connection: MessageConnection) -> None:
        self.heard.append(connection.receive())
        connection.send(**self._answer)
        connection.send(next=self._answer.get("next", []))
        connection.send(drop=[1, 4])
        connection.close()


def ended(head: Head, capsys: pytest.CaptureFixture[str]) -> str:
    """What a launcher says at its end."""
    agent = Agent(SECRET, ["sleep", "600"], "127.0.0.1", "plans")
    agent.join(head.address, 2)
    assert agent.run() == 1
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "GRACE", 0.0)


@pytest.mark.parametrize(
    ("lives", "options", "why"),
    [
        (True, {}, "has given this launcher up: start it again"),
        (False, {}, "is gone, and the job with it: start it again from a checkpoint"),
        (
            False,
            {"least": 1},
            "is gone, and the job with it, as --least 1 of 3 processes is not more than half: start it again from a "
            "checkpoint",
        ),
    ],
)
def test_there_is_no_other_head(
    lives: bool, options: Any, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher ends its processes, and says why."""
    head = Head(monkeypatch, lives, options=OPTIONS | options)
    assert f"jaxpp: jaxpp-run at {head.address} {why}\n" in ended(head, capsys)


def test_the_next_launcher_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It hears which processes there are, and what is held of which states. One that is gone is passed over."""
    parts = [StatePart(1, 4, 0, 2)]

    def held(_: Store) -> list[StatePart]:
        return parts

    monkeypatch.setattr(Store, "parts", held)
    second = Listener("127.0.0.1", SECRET, lambda connection: serve(connection)).address
    head = Head(monkeypatch, False, next=["127.0.0.1:1", second])
    heard: list[dict[str, Any]] = []

    def serve(connection: MessageConnection) -> None:
        heard.append(connection.receive())
        connection.send(slots=[1, 2], options=OPTIONS, was_safe=True)
        connection.send(end="all is over")
        connection.receive()

    told = ended(head, capsys)
    assert f"jaxpp: jaxpp-run at {head.address} is gone; the launcher at {second} coordinates the job now\n" in told
    assert told.endswith("jaxpp: all is over\n")
    assert [(each["slots"], each["was_safe"], each["parts"]) for each in [*head.heard, *heard]] == [
        (2, False, [list(parts[0])]),
        ([1, 2], True, [list(parts[0])]),
    ]


def test_a_launcher_that_has_its_head_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another launcher, which has lost this head, is refused."""
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "0.3")
    agent = Agent(SECRET, [], "127.0.0.1", "plans")
    agent._head = "host0:1"
    connection = launcher.dial(agent._store.address, SECRET)
    connection.send(agent="host2:1", slots=[2], parts=[], was_safe=True)
    refused = f"the launcher at {agent._store.address} has not lost jaxpp-run at host0:1"
    assert connection.receive() == {"refused": refused}


def test_the_end_of_the_head_is_the_end_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other launcher takes over what a user has ended."""
    agent = Agent(SECRET, ["sleep", "600"], "127.0.0.1", "plans")
    agent.begin(JobOptions(2, 2), 0, 1)
    other = launcher.dial(agent._head, SECRET)
    other.send(agent="host2:1", slots=1, parts=[], was_safe=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    assert other.receive()["slots"] == [1]
    monkeypatch.setattr(Agent, "_start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        agent.run()
    told: list[dict[str, Any]] = []
    while not told or "end" not in told[-1]:
        told.append(other.receive())
    assert told[-1] == {"end": f"jaxpp-run at {agent._head} was ended, and the job with it"}


@pytest.mark.parametrize(
    ("was_safe", "code", "why"),
    [
        (False, 3, "by exit code 3 before it called jaxpp.healing.train: what it said stands above; "),
        (True, 3, "3 times before it trained: exit code 3\n"),
        (False, RESTART, "3 times before it trained: exit code 75\n"),
    ],
)
def test_a_job_that_has_trained_elsewhere_starts_a_script_again(
    was_safe: bool, code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error may be one of a host that came later. So is a process started again that asks for it."""
    heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def serve(connection: MessageConnection) -> None:
        connection.receive()
        connection.send(slots=[0], options=OPTIONS | {"spares": 0}, was_safe=was_safe)
        heard.put(connection.receive())

    agent = Agent(SECRET, [sys.executable, "-S", "-c", f"raise SystemExit({code})"], "127.0.0.1", "plans")
    agent.join(Listener("127.0.0.1", SECRET, serve).address, 1)
    assert agent.run() == 1
    assert f"jaxpp: the process of slot 0 ended {why}" in capsys.readouterr().err
    assert heard.get(timeout=20).keys() == {"end"}


def test_a_process_that_ends_because_the_head_is_gone_does_not_end_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent(SECRET, [], "127.0.0.1", "plans")
    agent._is_moving, agent._starts[0] = True, 1
    with subprocess.Popen(["false"]) as child:
        child.wait()
    agent._restart(0, child)
    assert agent._end is None
    assert capsys.readouterr().err.endswith("ended by exit code 1, and is started anew\n")
