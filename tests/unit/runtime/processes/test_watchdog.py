"""The watchdog alone: connections between watchdogs of this process, and strangers at its door."""

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from unit.runtime.processes import forks

from jaxpp.runtime.processes import unix
from jaxpp.runtime.processes.handshake import STRANGERS
from jaxpp.runtime.processes.watchdog import Loss, Watchdog

SECRET = b"the secret of the job"

Make = Callable[..., Watchdog]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes watchdogs, and closes them in the end."""
    made: list[Watchdog] = []

    def make(me: int, secret: bytes = SECRET, seconds: float = 60.0, losses: list[Loss] | None = None) -> Watchdog:
        heard: list[Loss] = [] if losses is None else losses
        made.append(Watchdog(me, secret, "127.0.0.1", seconds, heard.append))
        return made[-1]

    yield make
    for each in made:
        each.close()


def connected(*watchdogs: Watchdog) -> None:
    """Each connects to all others, all at the same time, as processes do."""
    addresses = {each.me: each.address for each in watchdogs}
    problems: list[str] = []

    def connect(watchdog: Watchdog) -> None:
        try:
            watchdog.connect({peer: each for peer, each in addresses.items() if peer != watchdog.me})
        except ConnectionError as error:
            problems.append(str(error))

    threads = [threading.Thread(target=connect, args=(each,)) for each in watchdogs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if problems:
        raise ConnectionError("; ".join(problems))


def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within a few seconds."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def dial(watchdog: Watchdog) -> socket.socket:
    host, port = watchdog.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 20)


def test_a_goodbye_is_no_loss(make: Make) -> None:
    losses: list[Loss] = []
    first, second, third = make(0, losses=losses), make(1), make(2)
    connected(first, second, third)
    second.goodbye("KeyboardInterrupt")
    second.close()
    assert until(lambda: bool(first.lost) and bool(third.lost))
    where = f"process 1 ({socket.gethostname()}, pid {os.getpid()})"
    assert [str(each) for each in first.lost] == [f"{where} failed: KeyboardInterrupt"]
    assert until(lambda: losses == first.lost)
    assert not first.wait_for_loss(0)
    third.goodbye("")
    assert first.wait_for_goodbyes(20)


def _stranger(connected: socket.socket) -> int:
    return os.geteuid() + 1


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        (socket.AF_UNIX, {}),
        # As where a system has no such names, or the peer is on another machine.
        (socket.AF_INET, {"_name": partial(str.format, "/no/such/folder/{}")}),
        # As where another user has taken the name.
        (socket.AF_INET, {"_user": _stranger}),
    ],
)
def test_a_second_connection_is_left_to_others(
    make: Make, monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, changed: dict[str, Any]
) -> None:
    for name, other in changed.items():
        monkeypatch.setattr(unix, name, other)
    first, second = make(0), make(1)
    connected(first, second)
    (one, before), (other, after) = first.wires[1], second.wires[0]
    assert one.family == other.family == family
    one.setblocking(True)
    other.setblocking(True)
    one.sendall(b"\xff" * 5000)  # no message of a watchdog
    assert before == after == b""
    assert other.recv(5000, socket.MSG_WAITALL) == b"\xff" * 5000
    assert first.lost == second.lost == []


def test_a_connection_that_breaks_is_a_death(make: Make) -> None:
    losses: list[Loss] = []
    first, second = make(0, losses=losses), make(1)
    connected(first, second)
    second.close()
    assert first.wait_for_loss(20)
    assert until(lambda: [each.how for each in losses] == ["died"])
    assert not first.wait_for_goodbyes(20)


@pytest.mark.parametrize("at", [0, 1])
def test_a_connection_that_is_cut_is_made_anew(make: Make, at: int) -> None:
    """At either end, and twice. A goodbye is heard after that too, and nobody else can come back as the peer."""
    both = make(0), make(1)
    connected(*both)
    for _ in range(2):
        lines = [line for watchdog in both for line in watchdog._connections.values()]
        lines[at].socket.shutdown(socket.SHUT_RDWR)
        assert until(partial(are_connected_anew, both, lines))
    assert [each.lost for each in both] == [[], []]
    both[0]._names[1] = "another process 1"
    both[at]._connections[1 - at].socket.shutdown(socket.SHUT_RDWR)
    assert until(lambda: [each.how for each in both[1].lost] == ["died"])


def are_connected_anew(watchdogs: Sequence[Watchdog], former: Sequence[Any]) -> bool:
    return all(watchdog._connections and not {*former} & {*watchdog._connections.values()} for watchdog in watchdogs)


def test_a_goodbye_while_the_connection_is_cut(make: Make) -> None:
    both = make(0), make(1)
    connected(*both)
    line = both[1]._connections[0]
    line.socket.shutdown(socket.SHUT_RDWR)
    both[1].goodbye("")
    assert both[0].wait_for_goodbyes(20)


@pytest.mark.parametrize("error", [OSError, BlockingIOError])
def test_the_thread_goes_on(make: Make, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """Whatever fails: who dialled has hung up before he is greeted; whoever hears of a loss raises."""
    first, second, third = make(0), make(1), make(2)
    failures: list[int] = []

    def fail(*_: Any) -> Any:
        failures.append(1)
        raise error("closed")

    connected(first, second)
    first._on_loss = fail
    with monkeypatch.context() as patch:
        patch.setattr("jaxpp.runtime.processes.handshake.Connection.send", fail)
        with dial(first) as stranger:
            assert until(lambda: bool(failures))
            assert _rest(stranger) == b""
    second.close()
    assert until(lambda: len(failures) > 1 and bool(first.lost))
    connected(first, third)
    assert [each.peer for each in first.lost] == [1]


def test_silence_is_a_freeze(make: Make) -> None:
    first, second = make(0, seconds=0.4), make(1, seconds=60)
    connected(first, second)
    assert first.wait_for_loss(20)
    assert [each.how for each in first.lost] == ["is frozen: it gave no sign of life for 0.4 s"]
    assert until(lambda: [each.how for each in second.lost] == ["died"])  # for the frozen one, when it thaws


def test_quiet_peers_are_alive(make: Make) -> None:
    first, second = make(0, seconds=0.8), make(1, seconds=0.8)
    connected(first, second)
    assert not first.wait_for_loss(2.0)


def test_another_secret_is_refused_by_both(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpp.runtime.processes.watchdog.PROOF_SECONDS", 1.0)
    first, second = make(0), make(1, secret=b"another")
    with pytest.raises(ConnectionError) as raised:
        connected(first, second)
    assert str(raised.value).count("has another job secret (JAXPP_JOB_SECRET)") == 2


def test_a_missing_peer(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpp.runtime.processes.watchdog.PROOF_SECONDS", 0.1)
    first, second = make(0), make(2)
    with pytest.raises(ConnectionError, match=r"^process 2 at 127.0.0.1:\d+ did not connect within 0.3 s$"):
        first.connect({2: second.address}, 0.3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError, match=rf"^process 1 can't be reached at 127.0.0.1:{port}: .*refused"):
        second.connect({1: f"127.0.0.1:{port}"})


def test_strangers_are_hung_up_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpp.runtime.processes.watchdog.PROOF_SECONDS", 1.0)
    first, second = make(0), make(1)

    def framed(message: Any) -> bytes:
        text = json.dumps(message).encode()
        return struct.pack(">I", len(text)) + text

    nested = b"[" * 4000
    claims = {"process": 1, "host": "here", "pid": 1, "nonce": ""}
    proof = framed({"proof": "0" * 64})
    texts = [b"GET / HTTP/1.1\r\n\r\n", b"", struct.pack(">I", len(nested)) + nested, struct.pack(">I", 2) + b"{}"]
    texts += [framed(claims | {"use": use}) + proof for use in ("life", "values", "nothing")]
    strangers = [dial(first) for _ in texts]
    for stranger, text in zip(strangers, texts, strict=True):
        stranger.sendall(text)
    for stranger in strangers:
        received = b""
        while data := _rest(stranger):
            received += data
        assert len(received) < 500
        stranger.close()
    connected(first, second)  # also the number that a stranger claimed
    assert first.lost == []
    assert list(first.wires) == [1]


def test_a_strangers_wrong_proof_does_not_end_the_wait_for_the_peer(make: Make) -> None:
    """Whoever listens at the peer's address is asked, and is no stranger."""
    first, second = make(0), make(1)
    text = json.dumps({"process": 1, "host": "here", "pid": 1, "nonce": "", "use": "life"}).encode()
    wrong = json.dumps({"proof": "0" * 64}).encode()
    with dial(first) as stranger:
        stranger.sendall(b"".join(struct.pack(">I", len(each)) + each for each in (text, wrong)))
        while _rest(stranger):
            pass
    assert until(lambda: 1 in first._refused)
    thread = threading.Thread(target=first.connect, args=({1: second.address},))
    thread.start()
    assert until(lambda: 1 in first._asked)
    assert until(lambda: all(each.data is None for each in first._selector.get_map().values()))
    assert thread.is_alive()
    assert first._hopeless == set()
    second.connect({0: first.address})
    thread.join(20)
    assert not thread.is_alive()
    assert first.lost == second.lost == []


def test_idle_strangers_are_limited(make: Make) -> None:
    first, second = make(0), make(1)
    with contextlib.ExitStack() as strangers:
        for _ in range(2 * STRANGERS):
            strangers.enter_context(dial(first))
        connected(first, second)
        open_now = [key for key in first._selector.get_map().values() if key.data is not None]
        assert len(open_now) <= STRANGERS + 2


def test_it_goes_on_when_there_is_no_room_for_a_connection(make: Make) -> None:
    first, second = make(0), make(1)
    failures: list[OSError] = []

    class Full:
        def accept(self) -> Any:
            failures.append(OSError(errno.EMFILE, "Too many open files"))
            raise failures[-1]

    first._accept(Full())  # pyright: ignore[reportArgumentType]  # a listener at a time when no descriptor is left
    assert failures
    connected(first, second)


def _rest(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(4096)
    except ConnectionResetError:
        return b""


def test_it_listens_where_it_is_told_to(make: Make) -> None:
    first = make(0)
    assert first.address.startswith("127.0.0.1:")
    port = int(first.address.rsplit(":", 1)[1])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)


def is_stopped_and_goes_on(continued: str) -> None:
    first = Watchdog(0, b"secret", seconds=2.0)
    print(first.address, flush=True)
    first.connect({1: "the test"})
    print("connected", flush=True)
    while not Path(continued).exists():
        time.sleep(0.01)
    time.sleep(0.5)
    print([str(each) for each in first.lost], flush=True)


def test_a_process_that_was_stopped_blames_nobody(make: Make, tmp_path: Path) -> None:
    with forks.running(is_stopped_and_goes_on, str(tmp_path / "continued")) as child:
        second = make(1, secret=b"secret", seconds=2.0)
        second.seconds = 60.0  # it speaks often, and has patience
        second.connect({0: child.lines(1)[0]})
        assert child.lines(1) == ["connected"]
        child.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        child.send_signal(signal.SIGCONT)
        (tmp_path / "continued").touch()
        assert child.lines(1) == ["[]"]


def forks_twice() -> None:
    """Its child has a connection to it, and dies, but not the child of this child."""
    first = Watchdog(0, b"secret")
    address = first.address
    read, write = os.pipe()
    if os.fork() == 0:
        second = Watchdog(1, b"secret")
        second.connect({0: address})
        if (child := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        os.write(write, str(child).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    first.connect({1: "child"})
    first.wait_for_loss(20)
    print([each.how for each in first.lost], flush=True)
    os.kill(int(os.read(read, 20)), signal.SIGKILL)


def test_a_forked_child_does_not_hide_that_its_parent_died() -> None:
    with forks.running(forks_twice) as child:
        assert child.wait() == 0
        assert "['died']" in child.output.read_text().splitlines()
