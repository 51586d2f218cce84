"""Connections between the processes of a job that heals: messages in JSON, and arrays as plain bytes.

Nothing is unpickled. Both ends of a connection first prove that they know the secret of the job (`handshake`). Waits
for the other end have a timeout, so an end that is silent for long sends heartbeats.
"""

import contextlib
import json
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from jaxpp._system import tell
from jaxpp.runtime.processes.handshake import (
    PROOF_SECONDS,
    STRANGERS,
    Connection,
    RefusedError,
    WrongSecretError,
    converse,
    introduce,
)
from jaxpp.runtime.processes.membership import watchdog_seconds

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""The system's settings after which a silent host counts as gone: seconds, seconds, and a number of probes."""

DIAL_SECONDS = 10.0
"""Seconds that a dialled process has to answer and to prove its identity."""

USE = "healing"
"""The use of the connections, for `handshake`."""

CHUNK = 1 << 20
"""The number of bytes to send at once. They must be sent within the patience of a connection."""

LONGEST = 1 << 26
"""The largest number of bytes of a message. A message about a large state lists each of its shards."""


class MessageConnection:
    """A connection that carries messages. One thread receives; several may send.

    connected: a socket whose other end has proven its identity.
    beginning: bytes that were already received from it.
    """

    def __init__(self, connected: socket.socket, beginning: bytes = b"") -> None:
        self._socket, self._beginning = connected, beginning
        self._sending = threading.Lock()
        weakref.finalize(self, connected.close).atexit = False  # not in `close`: another thread may be reading
        self.patience = watchdog_seconds()
        """Seconds that the other end may read nothing during a send, or send nothing during a receive."""
        whole, part = divmod(self.patience, 1)
        connected.settimeout(None)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(whole), int(part * 1e6)))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, **message: Any) -> None:
        """Sends a message. Raises OSError if the other end is gone, or reads nothing."""
        text = json.dumps(message).encode()
        with self._sending:
            self.send_array(memoryview(struct.pack(">I", len(text)) + text))

    def receive(self, *, may_rest: bool = False) -> dict[str, Any]:
        """Returns the next message that is not a heartbeat.

        Raises EOFError or OSError if the other end is gone or silent, ValueError for a message that is too long.

        may_rest: whether the other end may be silent for any time before the message.
        """
        while True:
            if may_rest and not self._beginning:
                _has_come(self._socket, None)
            (length,) = struct.unpack(">I", self.receive_array(4))
            if length > LONGEST:
                raise ValueError(f"a message of {length} bytes")
            if message := json.loads(self.receive_array(length)):
                return message

    def send_array(self, data: memoryview) -> None:
        """Sends bytes for the other end's `receive_array`. Raises OSError as `send`."""
        try:
            for start in range(0, len(data), CHUNK):
                self._socket.sendall(data[start : start + CHUNK])
        except BlockingIOError:
            raise TimeoutError(f"it has read nothing for {self.patience:g} s") from None

    def receive_array(self, size: int) -> bytearray:
        """Returns the next `size` bytes. Raises EOFError or OSError as `receive`."""
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return data

    def receive_into(self, rest: memoryview) -> None:
        """Fills a memory with the next bytes. Raises EOFError or OSError as `receive`."""
        had = min(len(rest), len(self._beginning))
        rest[:had] = self._beginning[:had]
        self._beginning, rest = self._beginning[had:], rest[had:]
        while rest:
            if not _has_come(self._socket, self.patience):
                raise TimeoutError(f"no word from it for {self.patience:g} s")
            if not (count := self._socket.recv_into(rest)):
                raise EOFError("it hung up")
            rest = rest[count:]

    def beat(self) -> None:
        """Sends a heartbeat every few seconds from now on."""
        threading.Thread(target=self._beat, name="jaxpp-beat", daemon=True).start()

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.send()
                time.sleep(min(self.patience / 4, 5.0))

    def close(self) -> None:
        """Hangs up. A thread that receives gets EOFError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def dial(address: str, secret: bytes, seconds: float = DIAL_SECONDS) -> MessageConnection:
    """Connects to a `Listener` at host:port, within so many seconds.

    Raises ConnectionError if nobody listens there, or the listener has another secret.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return _dialled(address, secret, end)
        except WrongSecretError:
            raise ConnectionError(
                f"{address} has another job secret (JAXPP_JOB_SECRET), or what listens there passes the connection on"
            ) from None
        except Exception as error:  # of any kind: anything may listen there
            is_hung_up = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
            if is_hung_up and time.monotonic() < end:  # perhaps there were too many strangers
                time.sleep(0.1)
                continue
            raise ConnectionError(f"{address} can't be reached: {error}") from None


def _dialled(address: str, secret: bytes, end: float) -> MessageConnection:
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host, int(port)), max(end - time.monotonic(), 0.1))
    try:
        connection = Connection(connected, True, USE)
        converse(connection, introduce(connection, 0, secret, _admit), lambda: end)
        return MessageConnection(connected, connection.rest)
    except BaseException:
        connected.close()
        raise


def _admit(number: int, name: str, use: str) -> None:
    if use != USE:
        raise RefusedError(f"{name} wants something else")


class Listener:
    """A server of connections. Each connection has a thread, so that a stranger blocks nobody.

    host: the address to listen at.
    serve: called with each connection whose other end knows the secret. Its OSError and EOFError end the connection.
    """

    def __init__(self, host: str, secret: bytes, serve: Callable[[MessageConnection], None], port: int = 0) -> None:
        self._secret, self._serve = secret, serve
        self._strangers: list[socket.socket] = []
        self._socket = socket.create_server((host, port))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, name="jaxpp-listen", daemon=True).start()

    def _accept(self) -> None:
        told = ""
        while True:
            try:
                accepted, _ = self._socket.accept()
                while len(self._strangers) >= STRANGERS:
                    with contextlib.suppress(OSError):  # the connection's thread closes it
                        self._strangers.pop(0).shutdown(socket.SHUT_RDWR)
                self._strangers.append(accepted)
                try:
                    threading.Thread(target=self._talk, args=[accepted], name="jaxpp-serve", daemon=True).start()
                except BaseException:
                    self._forget(accepted)
                    accepted.close()
                    raise
            except Exception as error:  # the process may lack a descriptor or a thread, and get one later
                if str(error) != told:
                    told = str(error)
                    tell(f"a connection to {self.address} can't be taken now: {error}")
                time.sleep(0.1)

    def _talk(self, accepted: socket.socket) -> None:
        connection = Connection(accepted)
        end = time.monotonic() + PROOF_SECONDS
        with accepted:
            try:
                converse(connection, introduce(connection, 0, self._secret, _admit), lambda: end)
            except Exception:  # of any kind: a stranger may send anything
                return
            finally:
                self._forget(accepted)
            with contextlib.suppress(OSError, EOFError, ValueError, LookupError, TypeError):  # or a malformed message
                self._serve(MessageConnection(accepted, connection.rest))

    def _forget(self, accepted: socket.socket) -> None:
        with contextlib.suppress(ValueError):  # `_accept` may have removed it
            self._strangers.remove(accepted)


def _has_come(connected: socket.socket, seconds: float | None) -> bool:
    """Waits until bytes have come or the other end has hung up; returns False after so many seconds (None: never)."""
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
