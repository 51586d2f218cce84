"""A wire alone: both ends in this process."""

import collections
import contextlib
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxpp.runtime.processes import wire
from jaxpp.runtime.processes.payload import Payload
from jaxpp.runtime.processes.wire import SMALL, Wire, WireError

NEVER = 1 << 60
"""A number under which nothing comes."""


def pair(kind: str = "tcp") -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        return first, server.accept()[0]


@pytest.fixture(params=["tcp", "unix"])
def sockets(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    first, second = pair(request.param)
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def ends(sockets: tuple[socket.socket, socket.socket]) -> tuple[Wire, Wire]:
    """Both ends of a wire."""
    return Wire(sockets[0]), Wire(sockets[1])


def received(end: Wire, number: int, seconds: float = 20.0) -> bytes:
    def look(waited: float) -> None:
        if waited > seconds:
            raise TimeoutError

    return end.receive(number, look, NEVER)


class Later:
    """An array that is not computed yet."""

    def __init__(self, array: Any) -> None:
        self.array, self.done = array, threading.Event()

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        return self.done.is_set()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        assert self.done.wait(20)
        return np.array(self.array, dtype, copy=copy)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "float8_e4m3fn", "bool", "complex64", "uint8"])
def test_arrays_arrive_as_they_were(ends: tuple[Wire, Wire], dtype: str) -> None:
    arrays = [jnp.arange(-6, 6).reshape(shape).astype(dtype) for shape in ((3, 4), (12,), (1, 2, 6))]
    arrays += [jnp.zeros((0, 3), dtype), jnp.ones((), dtype)]
    place = SingleDeviceSharding(jax.devices()[0])
    payload = Payload([jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=place) for each in arrays])
    with jax.transfer_guard("disallow"):
        ends[0].send(7, arrays)
        unpacked = payload.unpack(received(ends[1], 7))
    for found, array in zip(unpacked, arrays, strict=True):
        assert (found.shape, found.dtype, found.sharding) == (array.shape, array.dtype, place)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(array))


def test_another_size_is_an_error() -> None:
    place = SingleDeviceSharding(jax.devices()[0])
    payload = Payload([jax.ShapeDtypeStruct((3,), np.float32, sharding=place)] * 2)
    with pytest.raises(WireError, match=r"^16 bytes came, 24 were expected$"):
        payload.unpack(bytes(16))


def test_only_small_payloads_of_cpus_go_over_a_wire() -> None:
    place = SingleDeviceSharding(jax.devices()[0])

    def payload(*sizes: int) -> Payload:
        return Payload([jax.ShapeDtypeStruct((size,), np.float32, sharding=place) for size in sizes])

    assert payload(SMALL // 8, SMALL // 8).is_small
    assert not payload(SMALL // 8, SMALL // 8, 1).is_small


def test_what_is_not_asked_for_yet_waits(ends: tuple[Wire, Wire]) -> None:
    for number in range(3):
        ends[0].send_bytes(number, bytes([number]))
    assert [received(ends[1], number) for number in (2, 0, 1)] == [b"\2", b"\0", b"\1"]


def test_what_is_not_computed_yet_is_sent_when_it_is(ends: tuple[Wire, Wire]) -> None:
    later, number = Later(np.arange(4, dtype=np.uint8)), np.arange(2, dtype=np.uint8)
    ends[0].send(1, [later])
    ends[0].send(2, [jnp.asarray(number)])
    with pytest.raises(TimeoutError):
        received(ends[1], 2, 0.2)  # what is sent arrives in order
    later.done.set()
    assert received(ends[1], 2) == bytes([0, 1])
    assert received(ends[1], 1) == bytes([0, 1, 2, 3])
    ends[0].finish(20)


def test_nobody_waits_for_one_that_does_not_read(ends: tuple[Wire, Wire]) -> None:
    """Both send more than the buffers of the system hold, before either reads: a send that waits has no end."""
    data = [np.full(SMALL, number % 251, np.uint8).tobytes() for number in range(300)]
    for end in ends:
        for number, each in enumerate(data):
            end.send_bytes(number, each)
    for end in ends:
        assert [received(end, number) for number in range(300)] == data
    for end in ends:
        end.finish(20)


def test_errors_arrive_instead_of_arrays(ends: tuple[Wire, Wire]) -> None:
    deleted = jnp.ones(3)
    deleted.delete()
    ends[0].send(1, [deleted])
    ends[0].send_bytes(2, b"out of memory", is_error=True)
    ends[0].send(3, [jnp.ones(1)])
    for number, text in ((1, "Array has been deleted"), (2, "^out of memory$")):
        with pytest.raises(WireError, match=text):
            received(ends[1], number)
    assert len(received(ends[1], 3)) == 4


def test_an_error_is_seen_without_a_wait(ends: tuple[Wire, Wire]) -> None:
    """Also behind something that nobody has asked for; what is no error is left for who waits for it."""
    one, other = ends
    assert other.error(2) is None
    one.send_bytes(1, b"a value")
    one.send_bytes(2, b"the disk is full", is_error=True)
    end = time.monotonic() + 20
    while (error := other.error(2)) is None and time.monotonic() < end:
        time.sleep(0.01)
    assert error == "the disk is full"
    assert other.error(1) is None
    assert received(other, 1) == b"a value"


def test_a_peer_that_is_gone_is_an_error_for_who_waits(sockets: tuple[socket.socket, socket.socket]) -> None:
    end = Wire(sockets[0])
    sockets[1].close()
    for number in range(2):
        with pytest.raises(WireError, match=r"^Connection closed"):
            received(end, number)
    for number in range(9):
        end.send_bytes(number, bytes(SMALL))  # as an offer, which nobody may ever want


def test_what_was_not_sent_before_the_next_step_is_an_error(ends: tuple[Wire, Wire]) -> None:
    ends[0].send_bytes(1, b"of this step")
    ends[0].send_bytes(NEVER, b"the next step")
    with pytest.raises(WireError, match=r"^it is in its next step, and has not sent this$"):
        received(ends[1], 2)
    assert received(ends[1], 1) == b"of this step"


def test_what_a_failed_step_left_is_forgotten(ends: tuple[Wire, Wire]) -> None:
    for number in (1, 2, 3):
        ends[0].send_bytes(number, b"")
    ends[1].receive(2, lambda seconds: None, NEVER, first=True)
    received(ends[1], 3)
    with pytest.raises(TimeoutError):
        received(ends[1], 1, 0.1)


def test_what_is_no_frame_ends_it(sockets: tuple[socket.socket, socket.socket]) -> None:
    end = Wire(sockets[0])
    sockets[1].sendall(struct.pack("<QI?", 1, SMALL + 1, False))
    with pytest.raises(WireError, match=f"^a frame of {SMALL + 1} bytes came, of at most {SMALL}$"):
        received(end, 1)


def test_what_came_before_the_wire_was_made(sockets: tuple[socket.socket, socket.socket]) -> None:
    frame = struct.pack("<QI?", 5, 3, False) + b"abc"
    sockets[1].sendall(frame[7:])
    assert received(Wire(sockets[0], frame[:7]), 5) == b"abc"
    whole = Wire(sockets[0], frame)
    assert received(whole, 5) == b"abc"


class Slow(collections.deque[Any]):
    """Takes its time before and after it gives something away."""

    def popleft(self) -> Any:
        time.sleep(0.2)
        found = super().popleft()
        time.sleep(0.1)
        return found


def test_nothing_is_sent_by_two_threads(ends: tuple[Wire, Wire]) -> None:
    late = Later(np.zeros(1, np.uint8))
    ends[0]._outgoing = Slow()
    ends[0].send(1, [late])
    late.done.set()
    while ends[0]._outgoing:  # then the other thread has sent it, and looks what else there is
        time.sleep(0.01)
    ends[0].send_bytes(2, b"2")
    ends[0].finish(20)
    ends[0].send_bytes(3, b"3")
    assert [received(ends[1], number) for number in (1, 2, 3)] == [b"\0", b"2", b"3"]
    assert not ends[0]._outgoing


def test_ctrl_c_leaves_whole_frames(sockets: tuple[socket.socket, socket.socket]) -> None:
    """Many times, at any moment in wire.py: while this end sends more than fits, or receives."""
    armed: list[bool] = []

    def strike(number: int, frame: FrameType | None) -> None:
        if armed and frame is not None and frame.f_code.co_filename == wire.__file__:
            armed.clear()
            raise KeyboardInterrupt

    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    sender, receiver = map(Wire, sockets)
    data = bytes(range(256)) * (SMALL // 256)
    number = struck = 0
    kept = signal.signal(signal.SIGALRM, strike)
    try:
        for delay in random.Random(0).choices(range(1, 2000), k=500):
            with contextlib.suppress(KeyboardInterrupt):
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, delay * 1e-6, 3e-4)
                while armed:
                    number += 4
                    for each in range(4):
                        sender.send_bytes(number + each, data)
                    for each in range(4):
                        received(receiver, number + each)
            struck += 1
            number += 4
            sender.send_bytes(number, data)
            assert received(receiver, number) == data
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)
    assert struck == 500
