"""How two processes of a job meet: over a new connection each proves that it knows the secret of the job.

The secret itself is not sent. The proof covers who both ends say to be, and the addresses of the connection as each end
sees them: whoever passes it on over another connection is refused. Messages are JSON behind four bytes of length:
nothing is unpickled.
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

Found = TypeVar("Found")

LONGEST = 4096
"""Bytes of a message at most."""

PROOF_SECONDS = 10.0
"""How long the other end of a new connection has to prove that it belongs to the job."""

STRANGERS = 64
"""How many connections may be open whose other end has not proven who it is. Who comes first is hung up on first."""


class RefusedError(Exception):
    """The other end of a connection is no process of the job."""


class WrongSecretError(RefusedError):
    """peer: the process that the other end said to be."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"process {peer} has another secret")
        self.peer = peer


class Connection:
    """A connection that carries messages.

    dialled: whether this end asked for it; use: what for, as the end that dialled has said.
    peer: the process at the other end, as soon as that has proven which one it is; name: its number, host and pid.
    heard: when the peer's last message came; before it is known, when the connection was made.
    talk: follows the connection message by message, from `introduce` on.
    asks: the peer that this connection is to prove alive, because the one before it broke.
    meant: the peer that is dialled anew if it hangs up before it knows this end, because there are too many strangers.
    rest: bytes that have come, and make no whole message yet.
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
        """Send a message: far less than the system's buffer holds. Returns it without its length."""
        text = json.dumps(message).encode()
        self.socket.send(struct.pack(">I", len(text)) + text)
        return text

    def receive(self) -> Generator[bytes, None, None]:
        """The messages that have come. Raises ConnectionError when the other end hung up, ValueError for a long one."""
        data = self.socket.recv(LONGEST)
        if not data:
            raise ConnectionError("closed")
        if self.peer is not None:  # a stranger's time runs from the start
            self.heard = time.monotonic()
        self.rest += data
        yield from self.taken_apart()

    def taken_apart(self) -> Generator[bytes, None, None]:
        """The messages that make up what has come. Raises ValueError for a long one."""
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
    """Exchange a greeting and a proof with the other end, whose messages are sent in; returns its number and name.

    admit: called with the number, the name and the use of the connection, before this end proves anything; raises to
        hang up.
    is_direct: whether both ends see the same addresses. Both have to say the same; no for a load balancer between them.
    Raises WrongSecretError when the other end doesn't know the secret, and any exception for a malformed message.
    """
    own = {"process": me, "host": socket.gethostname(), "pid": os.getpid(), "nonce": secrets.token_hex(32)}
    mine = connection.send(own | {"use": connection.use})
    theirs = yield
    if mine == theirs:
        raise RefusedError("an echo")
    found = json.loads(theirs)
    peer = int(found["process"])
    connection.use = connection.use or str(found["use"])
    name = f"process {peer} ({found['host']}, pid {found['pid']})"
    admit(peer, name, connection.use)
    ends = _ends(connection.socket) if is_direct else b""
    connection.send({"proof": _proof(secret, mine, theirs, ends)})
    if not hmac.compare_digest(str(json.loads((yield))["proof"]), _proof(secret, theirs, mine, ends)):
        raise WrongSecretError(peer)
    return peer, name


def converse(connection: Connection, talk: Generator[None, bytes, Found], until: Callable[[], float]) -> Found:
    """What `talk` returns, which is sent the messages that come. Raises what it raises, and TimeoutError.

    until: when to give up, as of `time.monotonic`; asked again after each message.
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
    """The proof that the sender of the greeting `first`, who was sent `second`, knows the secret."""
    return hmac.new(secret, struct.pack(">I", len(first)) + first + second + ends, hashlib.sha256).hexdigest()


def _ends(connected: socket.socket) -> bytes:
    """The addresses and ports of a connection, the same at both of its ends; empty for a Unix socket."""
    if connected.family == socket.AF_UNIX:
        return b""
    names = connected.getsockname()[:2], connected.getpeername()[:2]
    return json.dumps(
        sorted([str(host).removeprefix("::ffff:").partition("%")[0], port] for host, port in names)
    ).encode()
