"""All processes start JAX, or all hear why not. Threads play the processes, and the start of JAX."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import pytest

from jaxpp.runtime.processes import joint_start
from jaxpp.runtime.processes.handshake import Connection
from jaxpp.runtime.processes.joint_start import JointStart
from jaxpp.runtime.processes.membership import ProcessError

Start = Callable[[float, Callable[[], None]], None]


def joined(count: int, seconds: float = 20) -> list[JointStart]:
    """The starts of so many processes, as after a roll call."""
    ends = [socket.socketpair() for _ in range(1, count)]
    zero = {number: named(here, number) for number, (here, _) in enumerate(ends, 1)}
    others = [{0: named(there, 0)} for _, there in ends]
    return [JointStart(number, count, peers, seconds) for number, peers in enumerate([zero, *others])]


def named(end: socket.socket, number: int) -> Connection:
    connection = Connection(end)
    connection.peer = number
    connection.name = f"process {number} (node{number}, pid 1)"
    return connection


def run(starts: list[JointStart], *functions: Start) -> list[str]:
    """What each process raises, whose start of JAX is a function; empty where all is well."""
    told = [""] * len(functions)

    def come(number: int) -> None:
        try:
            starts[number].run(functions[number])
        except Exception as error:
            told[number] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=come, args=[number]) for number in range(len(functions))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    return told


def well(seconds: float, look: Callable[[], None]) -> None: ...


def waits(seconds: float, look: Callable[[], None]) -> None:
    """As JAX waits for the others; ends when it was given up."""
    with contextlib.suppress(ProcessError):
        while True:
            look()
            time.sleep(0.01)


def fails(seconds: float, look: Callable[[], None]) -> None:
    raise ValueError("no such device")


def test_all_start() -> None:
    assert run(joined(3), well, well, well) == ["", "", ""]
    assert run(joined(1), well) == [""]


@pytest.mark.parametrize("victim", [0, 1])
def test_one_fails(victim: int) -> None:
    functions = [waits] * 3
    functions[victim] = fails
    expected = [f"ProcessError: process {victim} could not start: ValueError: no such device"] * 3
    expected[victim] = "ValueError: no such device"
    assert run(joined(3), *functions) == expected


@pytest.mark.parametrize("victim", [0, 2])
def test_one_dies(victim: int) -> None:
    starts = joined(3)
    for each in starts[victim].others.values():
        each.socket.close()
    told = [each for each in run(starts[:2] if victim else starts[1:], waits, waits) if each]
    expected = (
        f"ProcessError: process {victim} (node{victim}, pid 1) has ended after all had come, and before JAX had "
        "started on all 3 processes; its own output says why: start all of them again"
    )
    assert told == [expected] * 2


@pytest.mark.parametrize("victim", [0, 2])
def test_one_is_frozen(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_start, "SILENT", 1.0)
    monkeypatch.setattr(joint_start, "BEAT", 0.05)
    starts = joined(3, seconds=2)
    told = run(starts[:2] if victim else starts[1:], waits, waits)
    for each in starts[victim].others.values():
        each.socket.close()
    expected = (
        "ProcessError: not all 3 processes have started JAX within 2 s after they had come: nothing is heard of "
        f"process {victim} (node{victim}, pid 1); start all of them again"
    )
    assert told == [expected] * 2


def test_jax_takes_too_long() -> None:
    expected = (
        "ProcessError: not all 2 processes have started JAX within 1 s after they had come: processes 0, 1 did not; "
        "start all of them again, with a longer initialization_timeout"
    )
    assert run(joined(2, seconds=1), waits, waits) == [expected] * 2


def test_what_came_with_the_outcome_is_heard() -> None:
    """Process 0 may fail at once, and hang up."""
    zero, one = joined(2)
    text = b'{"problem": "process 0 could not start: ValueError: no"}'
    one.others[0].rest = len(text).to_bytes(4, "big") + text
    zero.others[1].socket.close()
    assert run([one], waits) == ["ProcessError: process 0 could not start: ValueError: no"]
