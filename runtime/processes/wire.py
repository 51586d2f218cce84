"""Sends small values from process to process, over separate connections.

A frame has the number of a transfer, a length, and the bytes of its arrays or the text of an error. The thread that
dispatches sends arrays that are computed, or will be in a moment, as far as the system's buffer takes them. It also
receives. A thread of the connection sends the rest. So the thread that dispatches never waits for a peer that doesn't
read, which may itself be waiting.

Ctrl-C may strike between any two instructions of Python, and must not leave a connection in the middle of a frame. So
one C call reads bytes and keeps them, and one C call sends bytes and counts them: `extend(map(...))`.
"""

import collections
import contextlib
import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxpp import _compat

SMALL = 1 << 16
"""The largest number of bytes of a frame. From four times as many on `jax.experimental.transfer` is faster."""

TICK = 0.1
"""Seconds between two checks during a wait."""

_YIELDS = 5
"""How often a send yields its core to other threads, above all XLA's, before it leaves an array to the thread."""

_HEAD = struct.Struct("<QI?")  # number, length, whether it is an error


class WireError(RuntimeError):
    """An expected frame will not come."""


class Wire:
    """One end of a connection. Frames arrive in the order in which they were sent.

    connected: a socket whose other end has proven its identity.
    beginning: bytes that were already received from it.
    """

    def __init__(self, connected: socket.socket, beginning: bytes = b"") -> None:
        self._socket = connected
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:  # a Unix socket's buffer, which does not grow by itself as TCP's does
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * SMALL)
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(TICK * 1e6)))
        self._chunks = collections.deque([beginning])
        self._arrived: dict[int, tuple[bool, bytes]] = {}
        self._outgoing: collections.deque[_Outgoing] = collections.deque()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """One True for each time that the thread has to send, and False at the end."""
        self._asked = self._answered = 0
        """How often the thread was asked to send the queue, and has done so. While these differ, only it sends."""
        self._thread = threading.Thread(target=self._send_rest, name="jaxpp-send", daemon=True)
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._take_apart()

    def send(self, number: int, arrays: Sequence[Any]) -> None:
        """Sends the bytes of arrays on CPU devices, or the error of their computation. Returns at once."""
        self._send(_Outgoing(number, arrays), _are_soon_ready(arrays))

    def send_bytes(self, number: int, data: bytes, is_error: bool = False) -> None:
        """Sends these bytes, or the text of an error. Returns at once."""
        self._send(_Outgoing(number, (), _HEAD.pack(number, len(data), is_error) + data), True)

    def _send(self, outgoing: "_Outgoing", is_ready: bool) -> None:
        with self._sending:
            may_send = is_ready and self._asked == self._answered
            self._outgoing.append(outgoing)
            if may_send and self._outgoing[0] is outgoing and outgoing.send_what_fits(self._socket):
                self._outgoing.popleft()
                return
            if not self._thread.is_alive():
                self._thread.start()
            self._asked += 1
            self._wake.put(True)

    def _send_rest(self) -> None:
        while self._wake.get():
            while self._outgoing:
                self._outgoing[0].send(self._socket)
                self._outgoing.popleft()
            self._answered += 1

    def receive(self, number: int, look: Callable[[float], None], end: int, first: bool = False) -> bytes:
        """Waits for the peer's frame with `number`, and calls `look` every TICK with the seconds so far.

        end: a number that the peer uses only later. If a frame with it is there, the awaited frame will not come.
        first: whether to drop all earlier frames that nobody has received, as after a failed step.
        Raises WireError with the peer's error, or if the frame will not come. Also raises the errors of `look`.
        """
        start = time.monotonic()
        while number not in self._arrived:
            if end in self._arrived:
                raise WireError("it is in its next step, and has not sent this")
            if not self._read(number):
                look(time.monotonic() - start)
        if first:
            for each in list(self._arrived):
                if each == number:
                    break
                del self._arrived[each]
        is_error, data = self._arrived.pop(number)
        if is_error:
            raise WireError(data.decode(errors="replace"))
        return data

    def error(self, number: int) -> str | None:
        """Returns the error that the peer has sent under `number`, if any. Raises WireError for a lost connection."""
        while number not in self._arrived and select.select([self._socket], [], [], 0)[0]:
            self._read(number)
        is_error, data = self._arrived.get(number, (False, b""))
        return data.decode(errors="replace") if is_error else None

    def finish(self, seconds: float) -> None:
        """Waits at most so many seconds for the thread. Python must not exit while the thread waits for an array."""
        end = time.monotonic() + seconds
        while self._asked != self._answered and time.monotonic() < end:
            time.sleep(0.01)

    def end(self) -> None:
        """Ends the thread after it has sent its queue. The caller closes the connection."""
        self._wake.put(False)

    def _read(self, number: int) -> bool:
        """Reads available bytes, waiting for them at most a TICK; returns whether there were any."""
        with self._receiving:
            if len(self._chunks) > 1:  # Ctrl-C interrupted an earlier call after it had read
                self._take_apart()
            if number in self._arrived:  # another thread has read it
                return True
            try:
                self._chunks.extend(map(self._socket.recv, (SMALL,)))
            except BlockingIOError:
                return False
            except OSError as error:
                raise WireError(f"Connection closed ({error.strerror})") from None
            if not self._chunks[-1]:
                raise WireError("Connection closed")
            self._take_apart()
            return True

    def _take_apart(self) -> None:
        """Finds the frames in the received bytes. If Ctrl-C interrupts it, the next call finds the same frames."""
        data = b"".join(self._chunks)
        start = 0
        while len(data) >= start + _HEAD.size:
            number, length, is_error = _HEAD.unpack_from(data, start)
            if length > SMALL:
                raise WireError(f"a frame of {length} bytes came, of at most {SMALL}")
            begin = start + _HEAD.size
            if len(data) < begin + length:
                break
            start = begin + length
            self._arrived[number] = is_error, data[begin:start]
        self._chunks = collections.deque([data[start:]])


def _are_ready(arrays: Sequence[Any]) -> bool:
    """Whether all arrays are computed. A deleted array counts, since it never will be."""
    return all(array.is_deleted() or array.is_ready() for array in arrays)


def _are_soon_ready(arrays: Sequence[Any]) -> bool:
    """Does `_are_ready` after a few yields: a tiny program that has just begun ends before a thread would wake."""
    for _ in range(_YIELDS):
        if _are_ready(arrays):
            return True
        os.sched_yield()
    return _are_ready(arrays)


class _Outgoing:
    """A frame, and the number of its bytes that are sent.

    frame: the bytes; empty until they are made from the arrays.
    """

    def __init__(self, number: int, arrays: Sequence[Any], frame: bytes = b"") -> None:
        self.number, self.arrays, self.frame = number, arrays, frame
        self.sent: list[int] = []

    def make(self) -> bytes:
        """Waits until the arrays are computed; returns the frame."""
        if not self.frame:
            try:
                data, is_error = b"".join([_compat.to_host(array).tobytes() for array in self.arrays]), False
            except Exception as error:  # the receiver gets the error of the computation
                data, is_error = str(error).encode()[: SMALL // 16], True
            self.frame = _HEAD.pack(self.number, len(data), is_error) + data
        return self.frame

    def send_what_fits(self, connected: socket.socket) -> bool:
        """Sends as many bytes as the system's buffer takes; returns whether that is the whole frame."""
        frame = self.make()
        with contextlib.suppress(OSError):  # the buffer is full, or the peer is gone; a wait for the peer notices that
            self.sent.extend(map(connected.send, (frame,), (socket.MSG_DONTWAIT,)))
        return self.sent == [len(frame)]

    def send(self, connected: socket.socket) -> None:
        """Sends the rest of the frame."""
        rest = self.make()[sum(self.sent) :]
        with contextlib.suppress(OSError):
            connected.sendall(rest)
