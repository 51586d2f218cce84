"""What a process does with the head's messages, and with launchers that don't take or give its state."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jaxpp import _jobs
from jaxpp._system import keep_port
from jaxpp.healing.member import HEAD, SLOT, BrokenError, EndError, Go, Membership
from jaxpp.healing.messages import Listener, MessageConnection
from jaxpp.healing.store import Shard, StatePart, Store

SECRET = b"the secret of the job"
PART = StatePart(1, 7, 0, 1)
SHARDS = [(Shard(0, "uint8", 1, [0], [4]), memoryview(b"four"))]


class Process:
    """A Membership, and its head."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._come, self._done = threading.Event(), threading.Event()
        listener = Listener("127.0.0.1", SECRET, self._serve)
        monkeypatch.setenv("JAXPP_JOB_SECRET", SECRET.decode())
        monkeypatch.setenv(HEAD, listener.address)
        monkeypatch.setenv(SLOT, "0")
        self.membership = Membership()
        assert self._come.wait(20)

    def _serve(self, connection: MessageConnection) -> None:
        self.head = connection
        connection.beat()
        self._come.set()
        self._done.wait()

    def end(self) -> None:
        self.membership._end = ""
        self._done.set()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    made = Process(monkeypatch)
    yield made
    made.end()


def silent() -> Listener:
    """A launcher that is frozen: it takes connections, and says nothing."""
    return Listener("127.0.0.1", SECRET, lambda connection: time.sleep(20))


def begin(number: int, **more: Any) -> dict[str, Any]:
    return {"go": number, "number": 0, "count": 1, "coordinator": "", "stores": [], "resume": None} | more


def test_a_late_stop_is_not_for_the_next_generation(process: Process) -> None:
    """It is sent before the head hears that this process has left."""
    process.head.send(**begin(1))
    process.head.send(stop="process 1 of 2 died")
    process.head.send(safe=5, regroup=True)
    process.head.send(**begin(2))
    process.head.send(safe=1, regroup=False)
    own = process.membership
    with own._changed:  # a question between two of the messages would be answered by the stop
        assert own._changed.wait_for(lambda: own._go is not None and own._go.go == 2 and own._safe == 1, timeout=20)
    assert not own.wait_until_safe(1)
    assert own._stop is None


def test_a_generation_that_ends_while_it_begins(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX waits in C++ for the process that is gone."""
    over = threading.Event()

    def connected_client(*_: object) -> None:
        over.wait(60)

    monkeypatch.setattr("jaxpp._jobs.connected_client", connected_client)
    process.head.send(**begin(1))
    threading.Timer(0.3, lambda: process.head.send(stop="process 1 of 2 died")).start()
    begun = time.monotonic()
    with pytest.raises(BrokenError, match=r"^process 1 of 2 died$"):
        process.membership.join(lambda count: None)
    assert time.monotonic() - begun < 20
    over.set()


def test_a_generation_that_never_begins(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its processes lives, and does not come to the service of JAX; that would abort the others."""
    monkeypatch.setattr("jaxpp.healing.member.START_SECONDS", 1.0)
    with keep_port("127.0.0.1") as kept:
        address = f"127.0.0.1:{kept.getsockname()[1]}"
        service = _jobs.start_coordination(address, 2)
        process.head.send(**begin(1, count=2, coordinator=address))
        with pytest.raises(BrokenError, match=rf"^not all processes of the job came to {address} within 1 s$"):
            process.membership.join(lambda count: None)
        service.shutdown()


def test_a_connection_to_a_launcher_that_is_cut_is_made_anew(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Store("127.0.0.1", SECRET)
    assert process.membership._put(kept.address, PART, SHARDS)
    process.membership._stores[kept.address].close()
    assert process.membership._put(kept.address, PART._replace(step=8), SHARDS)
    assert len(kept._parts) == 2
    assert capsys.readouterr().err == ""


def test_a_copy_that_is_not_kept_is_told_and_so_is_that_it_is_again(
    process: Process, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxpp.healing.member.AGAIN_SECONDS", 0.0)
    frozen = silent()
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "0.2")
    assert not process.membership._put(frozen.address, PART, SHARDS)
    assert not process.membership._put(frozen.address, PART, SHARDS)
    reason = "no word from it for 0.2 s"
    lost = f"the state of this process has a copy less: it can't be kept at {frozen.address} ({reason})"
    assert capsys.readouterr().err == f"jaxpp: {lost}\n"
    kept = Store("127.0.0.1", SECRET)
    process.membership._not_kept[kept.address] = 0.0, OSError()
    assert process.membership._put(kept.address, PART, SHARDS)
    assert capsys.readouterr().err == f"jaxpp: the state of this process is kept at {kept.address} again\n"


def test_a_launcher_that_is_gone_is_no_error_of_the_script(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, also before a first state was held."""
    ended = threading.Event()

    def end(_: int) -> None:
        ended.set()

    monkeypatch.setattr("os._exit", end)
    process.membership.generation = Go(1, 0, 1, "", ["127.0.0.1:1"], None)
    process.membership.keep(1, SHARDS)
    assert ended.wait(20)
    assert "worker" in process.head.receive()
    assert process.head.receive() == {"leaves": "the launcher of this host, at 127.0.0.1:1, is gone"}


def test_a_launcher_without_memory_is_told(
    process: Process, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, so this process goes on as long as another launcher keeps its state."""
    full, kept = Store("127.0.0.1", SECRET), Store("127.0.0.1", SECRET)
    large = [(SHARDS[0][0]._replace(shape=[1 << 60]), SHARDS[0][1])]
    assert not process.membership._put(full.address, PART, large)
    reason = f"it has no memory for {1 << 60} bytes"
    lost = f"the state of this process has a copy less: it can't be kept at {full.address} ({reason})"
    assert capsys.readouterr().err == f"jaxpp: {lost}\n"
    both = [full.address, kept.address]
    assert process.membership._no_copies(both, both[1:]) is None
    nowhere = "no launcher has memory for the state of this process"
    assert process.membership._no_copies(both, []) == nowhere
    monkeypatch.setattr("jaxpp.healing.member.AGAIN_SECONDS", 0.0)
    process.membership._not_kept[full.address] = 0.0, OSError()
    assert process.membership._put(full.address, PART, SHARDS)  # the connection is as good as before
    assert process.membership._put(kept.address, PART, SHARDS)


def test_who_waits_as_a_spare_prepares(process: Process) -> None:
    """Once, and then it waits for what comes."""
    prepared: list[int] = []
    process.head.send(spare=4)

    def prepare(count: int) -> None:
        prepared.append(count)
        process.head.send(end="all is over")

    with pytest.raises(EndError, match=r"^all is over$"):
        process.membership.join(prepare)
    assert prepared == [4]


def test_every_launcher_that_holds_a_state_is_asked(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpp.healing.member.ANSWER_SECONDS", 0.3)
    frozen, kept = silent(), Store("127.0.0.1", SECRET)
    assert process.membership._put(kept.address, PART, SHARDS)
    holders = [frozen.address, "127.0.0.1:1", kept.address]
    resume = {"generation": 1, "step": 7, "holders": [holders]}
    process.membership.generation = Go(**begin(2, resume=resume))
    assert [(shard, bytes(get())) for shard, get in process.membership.held()] == [(SHARDS[0][0], b"four")]


def test_launchers_that_give_nothing_are_told_to_the_head(process: Process) -> None:
    process.membership._head.patience = 0.1
    resume = {"generation": 1, "step": 7, "holders": [["127.0.0.1:1"]]}
    process.membership.generation = Go(**begin(2, resume=resume))
    with pytest.raises(
        BrokenError, match=r"^no launcher gives a part of the state that it holds \(127.0.0.1:1: .*refused"
    ):
        process.membership.held()
    assert process.membership._unreachable == ["127.0.0.1:1"]
