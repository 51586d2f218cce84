"""The processes of a job meet: those that are missing, too many or different. Threads play the processes."""

import json
import socket
import threading

import pytest

from jaxpp.runtime.processes import ProcessError
from jaxpp.runtime.roll_call import roll_call


@pytest.fixture
def port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
    return found


def meet(port: int, *processes: tuple[int, int], seconds: float = 20) -> list[str]:
    """What each (number, of how many) is told; empty where all is well."""
    told = [""] * len(processes)

    def come(place: int, process: int, count: int) -> None:
        try:
            roll_call(f"127.0.0.1:{port}", count, process, seconds)
        except ProcessError as error:
            told[place] = str(error)

    threads = [threading.Thread(target=come, args=(place, *each)) for place, each in enumerate(processes)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return told


def test_all_come(port: int) -> None:
    assert meet(port, (0, 3), (1, 3), (2, 3)) == ["", "", ""]
    assert meet(port, (0, 1)) == [""]


def test_some_are_missing(port: int) -> None:
    expected = f"processes 1, 3 of 4 did not come to 127.0.0.1:{port} within 0.5 s; start all of them"
    assert meet(port, (0, 4), (2, 4), seconds=0.5) == [expected, expected]


def test_one_comes_twice(port: int) -> None:
    assert set(meet(port, (0, 3), (1, 3), (1, 3))) == {"two processes are process 1; give each its own number"}


def test_they_were_told_different_numbers(port: int) -> None:
    expected = "process 1 was told that there are 3 processes, process 0 that there are 2"
    assert meet(port, (0, 2), (1, 3)) == [expected, expected]
    assert meet(port, (2, 2)) == ["process 2 of 2: the numbers go from 0 to 1"]


def test_another_version_of_jax(port: int) -> None:
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(meet(port, (0, 2))))
    thread.start()
    answer = say(port, json.dumps({"process": 1, "processes": 2, "jax": "0.0.1"}).encode() + b"\n")
    thread.join()
    assert told[0].startswith("process 1 has jax 0.0.1, process 0 has ")
    assert json.loads(answer) == {"problem": told[0]}


def test_strangers_are_passed_over(port: int) -> None:
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(meet(port, (0, 2))))
    thread.start()
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"process": "1"}\n'):
        assert say(port, text) == b""
    assert meet(port, (1, 2)) == [""]
    thread.join()
    assert told == [""]


def say(port: int, text: bytes) -> bytes:
    """What is answered."""
    while True:
        try:
            dialled = socket.create_connection(("127.0.0.1", port), 20)
            break
        except ConnectionRefusedError:
            continue
    with dialled:
        dialled.sendall(text)
        try:
            return dialled.recv(4096)
        except ConnectionResetError:
            return b""


def test_no_coordinator(port: int) -> None:
    (told,) = meet(port, (1, 2), seconds=0.3)
    assert told.startswith(f"no coordinator at 127.0.0.1:{port} within 0.3 s (")
    assert told.endswith("refused); is process 0 started, and is that its address?")


def test_somebody_else_listens(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as other:
        (told,) = meet(port, (0, 2))
        assert told == f"port {port} is in use on this host; choose another one for the coordinator"
        thread = threading.Thread(target=lambda: other.accept()[0].close())
        thread.start()
        (told,) = meet(port, (1, 2))
        thread.join()
        assert told.startswith(f"what listens at 127.0.0.1:{port} is no coordinator; all processes have to call ")


def test_no_address() -> None:
    with pytest.raises(ProcessError, match=r"^the coordinator's address is 'host0'; give host:port of process 0$"):
        roll_call("host0", 2, 0, 1)


def test_an_address_that_only_the_others_see(port: int) -> None:
    assert not roll_call(f"192.0.2.1:{port}", 2, 0, 1)  # of no host: for documentation (RFC 5737)
