"""Connections between the processes of a job that heals: messages in JSON, and arrays as plain bytes.

Nothing is unpickled. Both ends of a connection prove first that they know the secret of the job.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""After so many seconds the system takes a silent host to be gone."""


class MessageConnection:
    """A connection that carries messages. One thread receives; several may send."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        with socket.socket(fileno=socket.dup(connection.fileno())) as same:
            same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    same.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, **message: Any) -> None:
        """Send a message. Raises OSError when the other end is gone."""
        with self._sending:
            self._connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """The next message. Raises EOFError or OSError when the other end is gone."""
        return json.loads(self._connection.recv_bytes())

    def send_array(self, data: memoryview) -> None:
        """Send bytes, for which `receive_array` waits at the other end."""
        self._connection.send_bytes(data)

    def receive_array(self, size: int) -> bytearray:
        """So many bytes. Raises EOFError or OSError as `receive`."""
        data = bytearray(size)
        if size:
            self._connection.recv_bytes_into(data)
        else:
            self._connection.recv_bytes(0)
        return data

    def close(self) -> None:
        """Hang up; a thread that receives gets EOFError."""
        with contextlib.suppress(OSError), socket.socket(fileno=socket.dup(self._connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


def dial(address: str, secret: bytes) -> MessageConnection:
    """Connect to a `Listener` at host:port. Raises ConnectionError when nobody is there, or has another secret."""
    host, _, port = address.rpartition(":")
    try:
        return MessageConnection(Client((host, int(port)), authkey=secret))
    except AuthenticationError:
        raise ConnectionError(f"{address} has another job secret (JAXPP_JOB_SECRET)") from None
    except (OSError, EOFError) as error:
        raise ConnectionError(f"{address} can't be reached: {error}") from None


class Listener:
    """Takes connections, each served by a thread of its own, so that a stranger holds up nobody.

    host: the address to listen at.
    serve: called with each connection whose other end knows the secret; its OSError and EOFError end the connection.
    """

    def __init__(self, host: str, secret: bytes, serve: Callable[[MessageConnection], None], port: int = 0) -> None:
        self._secret, self._serve = secret, serve
        self._socket = socket.create_server((host, port))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, name="jaxpp-listen", daemon=True).start()

    def _accept(self) -> None:
        while True:
            accepted, _ = self._socket.accept()
            threading.Thread(target=self._talk, args=[accepted], name="jaxpp-serve", daemon=True).start()

    def _talk(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, AuthenticationError, ValueError):
            with Connection(accepted.detach()) as connection:
                deliver_challenge(connection, self._secret)
                answer_challenge(connection, self._secret)
                self._serve(MessageConnection(connection))
