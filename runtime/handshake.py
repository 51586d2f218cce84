"""How two processes of a job meet: over a new connection each proves that it knows the secret of the job.

The secret itself is not sent. Messages are JSON behind four bytes of length: nothing is unpickled.
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
from typing import Any

LONGEST = 4096
"""Bytes of a message at most."""


class RefusedError(Exception):
    """What came over a connection is not from a process of the job."""


class WrongSecretError(RefusedError):
    """peer: the process that the other end said to be."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"process {peer} has another secret")
        self.peer = peer


class Line:
    """One connection, in messages, for as long as it is one of messages.

    dialled: whether this end asked for it; use: what for, in the words of who dialled.
    heard: when the last message came, of a peer that has proven who it is; before, since when it is there.
    peer: who that is; talk: what follows the connection message by message, and begins with `introduce`.
    asks: the peer whose life the connection is to prove, because the one before it broke.
    rest: bytes that have come, and are no message yet.
    """

    def __init__(self, connected: socket.socket, dialled: bool = False, use: str = "") -> None:
        self.socket, self.dialled, self.use = connected, dialled, use
        self.heard = time.monotonic()
        self.peer: int | None = None
        self.asks: int | None = None
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
        while len(self.rest) >= 4:
            end = 4 + struct.unpack(">I", self.rest[:4])[0]
            if end > LONGEST:
                raise ValueError("too long")
            if len(self.rest) < end:
                break
            message, self.rest = self.rest[4:end], self.rest[end:]
            yield message


def introduce(
    line: Line, me: int, secret: bytes, admit: Callable[[int, str, str], None]
) -> Generator[None, bytes, tuple[int, str]]:
    """Each end sends a greeting, then a proof; is sent the messages of the other end, and returns its number and name.

    admit: called with the number, the name and the use of the connection, before this end proves anything; raises to
        hang up.
    Raises WrongSecretError when the other end doesn't know the secret, and whatever a message that is none gives.
    """
    own = {"process": me, "host": socket.gethostname(), "pid": os.getpid(), "nonce": secrets.token_hex(32)}
    mine = line.send(own | {"use": line.use})
    theirs = yield
    found = json.loads(theirs)
    peer = int(found["process"])
    line.use = line.use or str(found["use"])
    name = f"process {peer} ({found['host']}, pid {found['pid']})"
    admit(peer, name, line.use)
    line.send({"proof": _proof(secret, mine, theirs)})
    if not hmac.compare_digest(str(json.loads((yield))["proof"]), _proof(secret, theirs, mine)):
        raise WrongSecretError(peer)
    return peer, name


def _proof(secret: bytes, first: bytes, second: bytes) -> str:
    """That whoever sent the greeting `first`, and was sent `second`, knows the secret."""
    return hmac.new(secret, struct.pack(">I", len(first)) + first + second, hashlib.sha256).hexdigest()
