"""Connections of a job that heals: who is let in, and who holds up nobody."""

import contextlib
import json
import os
import re
import resource
import select
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from unit.runtime.processes import forks

from jaxpp.healing.messages import Listener, MessageConnection, dial
from jaxpp.runtime.processes.handshake import STRANGERS

SECRET = b"the secret of the job"


def greeting(connection: MessageConnection) -> None:
    connection.send(hello=1)
    with contextlib.suppress(EOFError):
        connection.receive()


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 20)


def test_strangers_that_say_nothing_keep_nobody_out() -> None:
    listener = Listener("127.0.0.1", SECRET, greeting)
    with contextlib.ExitStack() as strangers:
        held = [strangers.enter_context(connect(listener.address)) for _ in range(3 * STRANGERS)]
        assert dial(listener.address, SECRET).receive() == {"hello": 1}
        assert len(listener._strangers) <= STRANGERS
        for each in held[:STRANGERS]:  # who came first was hung up on
            while each.recv(4096):
                pass


def test_a_stranger_has_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpp.healing.messages.PROOF_SECONDS", 0.1)
    listener = Listener("127.0.0.1", SECRET, greeting)
    with connect(listener.address) as stranger:
        while stranger.recv(4096):
            pass


def full(closes: str) -> None:
    """A listener without a free descriptor, until it is told to close some."""
    listener = Listener("127.0.0.1", b"the secret of the job", lambda connection: connection.send(hello=1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    print(listener.address, flush=True)
    while not os.path.exists(closes):
        time.sleep(0.01)
    for each in held:
        os.close(each)
    threading.Event().wait()


def test_it_goes_on_when_descriptors_had_run_out(tmp_path: Path) -> None:
    with forks.running(full, str(tmp_path / "closes")) as child:
        (line,) = child.lines(1)
        address = re.findall(r"127\.0\.0\.1:\d+", line)[0]
        with connect(address) as early:
            told = f"jaxpp: a connection to {address} can't be taken now: [Errno 24] Too many open files"
            assert told in (line, *child.lines(1))  # before the connection, where the listener had not begun to wait
            (tmp_path / "closes").touch()
            assert early.recv(4)
        assert dial(address, SECRET).receive() == {"hello": 1}


def relay(listener: socket.socket, to: str) -> None:
    """Take a connection, and pass on what comes to another one, and back."""
    with listener.accept()[0] as one, connect(to) as other:
        ways = {one: other, other: one}
        while ways:
            for each in select.select(list(ways), [], [], 20)[0]:
                data = each.recv(4096)
                if not data:
                    return
                ways[each].sendall(data)


def test_a_relay_is_refused() -> None:
    served: list[MessageConnection] = []
    listener = Listener("127.0.0.1", SECRET, served.append)
    with socket.create_server(("127.0.0.1", 0)) as between:
        address = f"127.0.0.1:{between.getsockname()[1]}"
        thread = threading.Thread(target=relay, args=(between, listener.address))
        thread.start()
        with pytest.raises(ConnectionError) as raised:
            dial(address, SECRET)
        thread.join(20)
    reason = "has another job secret (JAXPP_JOB_SECRET), or what listens there passes the connection on"
    assert str(raised.value) == f"{address} {reason}"
    assert served == []


def test_an_echo_is_refused() -> None:
    served: list[MessageConnection] = []
    listener = Listener("127.0.0.1", SECRET, served.append)
    with connect(listener.address) as stranger:
        while data := stranger.recv(4096):
            stranger.sendall(data)
    assert served == []


def test_the_proof_has_a_digest_of_256_bits() -> None:
    listener = Listener("127.0.0.1", SECRET, greeting)
    with connect(listener.address) as stranger:
        text = json.dumps({"process": 0, "host": "here", "pid": 1, "nonce": "", "use": "healing"}).encode()
        stranger.sendall(struct.pack(">I", len(text)) + text)
        received = b""
        while b"proof" not in received or not received.endswith(b"}"):
            received += stranger.recv(4096)
    assert len(json.loads(received[received.index(b'{"proof"') :])["proof"]) == 64


def test_silence_is_an_end_unless_the_other_end_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "0.5")
    done = threading.Event()

    def serve(connection: MessageConnection) -> None:
        if connection.receive()["beats"]:
            connection.beat()
            done.wait(1.5)
            connection.send(hello=1)
        done.wait(20)

    listener = Listener("127.0.0.1", SECRET, serve)
    beating = dial(listener.address, SECRET)
    beating.send(beats=True)
    assert beating.receive() == {"hello": 1}
    silent = dial(listener.address, SECRET)
    silent.send(beats=False)
    with pytest.raises(TimeoutError, match=r"^no word from it for 0.5 s$"):
        silent.receive()
    done.set()


def test_who_reads_nothing_holds_up_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "0.5")
    done = threading.Event()

    def serve(connection: MessageConnection) -> None:
        done.wait(20)

    listener = Listener("127.0.0.1", SECRET, serve)
    connection = dial(listener.address, SECRET)
    with pytest.raises(TimeoutError, match=r"^it has read nothing for 0.5 s$"):
        connection.send_array(memoryview(bytes(1 << 26)))
    done.set()
