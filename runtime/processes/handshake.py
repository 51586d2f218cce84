"""The handshake of two processes of a job: over a new connection each proves that it knows the secret of the job.

The secret itself is not sent. The proof covers the names that both ends give, and the addresses of the connection as
each end sees them. So an attacker who relays the messages over another connection is refused. Messages are JSON after
four bytes of length. Nothing is unpickled.
"""

import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from jaxpp.runtime.processes.autopsy import process_name

Found = TypeVar("Found")

LONGEST = 4096
"""The largest number of bytes of a message, with its length."""

PROOF_SECONDS = 10.0
"""Seconds that the other end of a new connection has to prove that it belongs to the job."""

STRANGERS = 64
"""The largest number of open connections whose other end has not proven its identity. The oldest is closed first."""


class RefusedError(Exception):
    """The other end of a connection is not a process of the job, or is not expected."""


class WrongSecretError(RefusedError):
    """The other end does not know the secret. peer: the process number that the other end gave."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"process {peer} has another secret")
        self.peer = peer


class Connection:
    """A connection that carries messages.

    dialled: whether this end began the connection.
    use: the purpose of the connection, which the end that dialled has given.
    peer: the process at the other end, once it has proven its identity.
    name: the peer's number, host and pid.
    heard: the time of the peer's last message; before the proof, the time when the connection was made.
    talk: a generator that gets each message of the connection, from `introduce` on.
    asks: the peer whose life this connection is to prove, because the former connection broke.
    meant: the peer to dial again if it hangs up before the proof, because it has too many strangers.
    rest: received bytes that are not yet a whole message.
    """

    def __init__(self, connected: socket.socket, dialled: bool = False, use: str = "") -> None:
        self.socket, self.dialled, self.use = connected, dialled, use
        self.heard = time.monotonic()
        self.peer: int | None = None
        self.name = ""
        self.asks: int | None = None
        self.meant: int | None = None
        self.talk: Generator[None, bytes, None]
        self.rest = b""

    def send(self, message: Mapping[str, Any]) -> bytes:
        """Sends a message, which is far smaller than the system's buffer. Returns its bytes without the length."""
        text = json.dumps(message).encode()
        self.socket.send(struct.pack(">I", len(text)) + text)
        return text

    def receive(self) -> Generator[bytes, None, None]:
        """Reads the socket, and yields the whole messages so far.

        Raises ConnectionError if the other end hung up, ValueError for a message that is too long.
        """
        data = self.socket.recv(LONGEST)
        if not data:
            raise ConnectionError("closed")
        if self.peer is not None:  # the time of a stranger counts from the beginning of the connection
            self.heard = time.monotonic()
        self.rest += data
        yield from self.taken_apart()

    def taken_apart(self) -> Generator[bytes, None, None]:
        """Yields the whole messages in `rest`. Raises ValueError for a message that is too long."""
        while len(self.rest) >= 4:
            end = 4 + struct.unpack(">I", self.rest[:4])[0]
            if end > LONGEST:
                raise ValueError("too long")
            if len(self.rest) < end:
                break
            message, self.rest = self.rest[4:end], self.rest[end:]
            yield message


def introduce(
    connection: Connection, me: int, secret: bytes, admit: Callable[[int, str, str], None], *, is_direct: bool = True
) -> Generator[None, bytes, tuple[int, str]]:
    """Exchanges greetings and proofs with the other end; returns its number and name. The generator is sent messages.

    admit: called with the number, the name and the use of the connection, before this end proves anything. It raises
        to hang up.
    is_direct: whether both ends see the same addresses, so that the proof covers them. Both ends must agree. False if
        there may be a load balancer between them.
    Raises WrongSecretError if the other end doesn't know the secret, and any exception for a malformed message.
    """
    own = {"process": me, "host": socket.gethostname(), "pid": os.getpid(), "nonce": secrets.token_hex(32)}
    mine = connection.send(own | {"use": connection.use})
    theirs = yield
    if mine == theirs:
        raise RefusedError("an echo")
    found = json.loads(theirs)
    peer = int(found["process"])
    connection.use = connection.use or str(found["use"])
    name = process_name(peer, found["host"], found["pid"])
    admit(peer, name, connection.use)
    ends = _ends(connection.socket) if is_direct else b""
    connection.send({"proof": _proof(secret, mine, theirs, ends)})
    if not hmac.compare_digest(str(json.loads((yield))["proof"]), _proof(secret, theirs, mine, ends)):
        raise WrongSecretError(peer)
    return peer, name


def converse(connection: Connection, talk: Generator[None, bytes, Found], until: Callable[[], float]) -> Found:
    """Sends each message to the generator `talk`, and returns its result. Raises its errors, and TimeoutError.

    until: returns the deadline on the clock of `time.monotonic`; called again after each message.
    """
    try:
        next(talk)
        while (left := until() - time.monotonic()) > 0:
            connection.socket.settimeout(left)
            for message in connection.receive():
                talk.send(message)
    except StopIteration as found:
        return found.value
    raise TimeoutError("no answer in time")


def _proof(secret: bytes, first: bytes, second: bytes, ends: bytes) -> str:
    """Returns the proof that the sender of greeting `first`, who has received `second`, knows the secret."""
    return hmac.new(secret, struct.pack(">I", len(first)) + first + second + ends, hashlib.sha256).hexdigest()


def _ends(connected: socket.socket) -> bytes:
    """Returns the addresses and ports of a connection, the same at both ends; empty for a Unix socket."""
    if connected.family == socket.AF_UNIX:
        return b""
    names = connected.getsockname()[:2], connected.getpeername()[:2]
    return json.dumps(
        sorted([str(host).removeprefix("::ffff:").partition("%")[0], port] for host, port in names)
    ).encode()
