"""Which of the processes that this one works with are alive: a connection to each, and one thread that listens to all.

Over each connection, when both ends have proven who they are (see `handshake`), each says every few seconds that it is
alive, and at last goodbye. One that breaks without a goodbye is a process that died; one that falls silent is a process
that froze. A second connection to each peer, for values, begins in the same way, and is then left to others.
"""

import contextlib
import dataclasses
import json
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any

from jaxpp.runtime.handshake import LONGEST, Line, RefusedError, WrongSecretError, introduce

LIFE, VALUES = "life", "values"
"""What a connection is for."""

ANSWER_SECONDS = 60.0
"""How long a peer has to connect."""

PROOF_SECONDS = 10.0
"""How long the other end of a new connection has to prove that it belongs to the job."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A peer that is gone.

    peer: its number; name: as which process, host and pid it introduced itself.
    how: "died", "is frozen: ..." or "has ended", with the reason that it gave.
    ended: whether it said goodbye.
    """

    peer: int
    name: str
    how: str
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.how}"


class Watchdog:
    """Tells when a peer dies, freezes or ends. It knows nothing of `jax.distributed`, nor of JAX.

    me: the number of this process; all processes of the job agree on the numbers.
    secret: what only the processes of the job know.
    host: the address to listen at.
    seconds: a peer that says nothing for so long is frozen. It must hold for all its work that keeps Python's lock.
    on_loss: called with the Loss, in the watchdog's thread, when a peer died or froze; not when it said goodbye.
    """

    def __init__(
        self,
        me: int,
        secret: bytes,
        host: str = "127.0.0.1",
        seconds: float = 60.0,
        on_loss: Callable[[Loss], None] = lambda loss: None,
    ) -> None:
        self.me, self.seconds = me, seconds
        self._secret, self._on_loss = secret, on_loss
        self._pause = min(seconds / 4, 5.0)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host.strip("[]"), 0), family=family)
        self._host = host
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._changed = threading.Condition()
        self._new: list[Line] = []
        self._lines: dict[int, Line] = {}
        self._names: dict[int, str] = {}
        self.wires: dict[int, tuple[socket.socket, bytes]] = {}
        """Of each peer the connection for values, and what has already come over it."""
        self._refused: dict[int, str] = {}
        """Why somebody who said that he was this peer was not believed."""
        self._hopeless: set[int] = set()
        """Those of them that were dialled, and so are no strangers."""
        self._lost: dict[int, Loss] = {}
        self._open = True
        _watchdogs.add(self)
        self._thread = threading.Thread(target=self._run, name="jaxpp-watchdog", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port where peers connect to."""
        return f"{self._host}:{self._listener.getsockname()[1]}"

    @property
    def lost(self) -> list[Loss]:
        """The peers that are gone, in the order in which they went."""
        return list(self._lost.values())

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Watch these peers: number -> address. Both ends call this; returns when each has proven who it is, twice.

        Raises ConnectionError when a peer can't be reached within ANSWER_SECONDS, or belongs to another job.
        """
        for peer, address in addresses.items():
            if peer < self.me and peer not in self._names:  # the higher number dials
                self._new += [self._dial(peer, address, use) for use in (LIFE, VALUES)]
        self._wake.send(b"!")

        def decided() -> bool:
            connected = self._names.keys() & self.wires.keys()
            return connected >= addresses.keys() or not self._hopeless.isdisjoint(addresses)

        with self._changed:
            self._changed.wait_for(lambda: decided() or bool(self._refused), ANSWER_SECONDS)
            self._changed.wait_for(decided, PROOF_SECONDS)  # who was refused may have been a stranger
            for peer in addresses.keys() - (self._names.keys() & self.wires.keys()):
                reason = self._refused.get(peer, f"did not connect within {ANSWER_SECONDS:g} s")
                raise ConnectionError(f"process {peer} at {addresses[peer]} {reason}")

    def _dial(self, peer: int, address: str, use: str) -> Line:
        host, port = address.rsplit(":", 1)
        try:
            return Line(socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS), True, use)
        except OSError as error:
            raise ConnectionError(f"process {peer} can't be reached at {address}: {error}") from None

    def wait_for_loss(self, seconds: float) -> bool:
        """Wait until a peer has died or froze; whether one has."""
        with self._changed:
            return self._changed.wait_for(self._is_one_dead, seconds)

    def goodbye(self, reason: str) -> None:
        """Tell the peers that this process ends, and why. It goes on listening to them."""
        self._say({"goodbye": reason})

    def wait_for_goodbyes(self, seconds: float) -> bool:
        """Wait until every peer has said goodbye, or one is dead or frozen; whether every one did."""
        with self._changed:
            self._changed.wait_for(lambda: self._names.keys() <= self._lost.keys() or self._is_one_dead(), seconds)
            return self._names.keys() <= self._lost.keys() and not self._is_one_dead()

    def wait_until_alone(self, seconds: float) -> bool:
        """Wait until no peer is connected any more; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines, seconds)

    def close(self) -> None:
        """End the thread and all connections."""
        if self._open:
            self._open = False
            self._wake.send(b"!")
            self._thread.join()
            self._selector.close()
            self.drop()

    def drop(self) -> None:
        """Close all sockets: also in a forked child, which must not keep a dead parent's connections alive."""
        sockets = [each.socket for each in (*self._lines.values(), *self._new)]
        for each in (*sockets, *(wire for wire, _ in self.wires.values()), self._listener, self._wake, self._woken):
            each.close()

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        said = time.monotonic()
        while self._open:
            # Again, as after a SIGSTOP of this process the first one has heard nothing, whatever has come meanwhile.
            for key, _ in self._selector.select(self._pause / 2) or self._selector.select(0):
                self._handle(key)
            while self._new:
                self._add(self._new.pop())
            if time.monotonic() - said > self._pause:
                self._say({})
                said = time.monotonic()
            self._find_silent()

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._woken:
            self._woken.recv(LONGEST)
        elif key.fileobj is self._listener:
            with contextlib.suppress(OSError):  # who dialled has hung up already
                self._add(Line(self._listener.accept()[0]))
        else:
            self._read(key.data)

    def _is_one_dead(self) -> bool:
        return not all(loss.ended for loss in self.lost)

    def _add(self, line: Line) -> None:
        """Begin to talk over a new connection."""
        line.socket.setblocking(False)
        line.talk = self._talk(line)
        next(line.talk)
        self._selector.register(line.socket, selectors.EVENT_READ, line)

    def _read(self, line: Line) -> None:
        try:
            for message in line.receive():
                line.talk.send(message)
        except StopIteration:  # it is one for values
            self._hand_over(line)
        except Exception:  # whatever a stranger sends ends his connection, and nothing else
            self._hang_up(line, "died")

    def _talk(self, line: Line) -> Generator[None, bytes, None]:
        """Follow a connection message by message."""
        try:
            peer, name = yield from introduce(line, self.me, self._secret, self._admit)
        except WrongSecretError as error:
            with self._changed:
                self._refused[error.peer] = "has another job secret (JAXPP_JOB_SECRET)"
                if line.dialled:
                    self._hopeless.add(error.peer)
                self._changed.notify_all()
            raise
        line.peer, line.heard = peer, time.monotonic()
        if line.use == VALUES:
            return
        with self._changed:
            self._lines[peer] = line
            self._names[peer] = name
            self._changed.notify_all()
        while True:
            message: dict[str, Any] = json.loads((yield))
            if "goodbye" in message:
                reason = str(message["goodbye"])
                self._lose(peer, f"has ended{f' ({reason})' if reason else ''}", ended=True)

    def _admit(self, peer: int, use: str) -> None:
        if use not in {LIFE, VALUES} or peer == self.me or peer in (self._names if use == LIFE else self.wires):
            raise RefusedError(f"a second process {peer}")

    def _hand_over(self, line: Line) -> None:
        """End the conversation over a connection for values; `wires` has it from now on."""
        assert line.peer is not None  # it has introduced itself
        self._selector.unregister(line.socket)
        with self._changed:
            self.wires[line.peer] = line.socket, line.rest
            self._changed.notify_all()

    def _say(self, message: Mapping[str, Any]) -> None:
        for line in list(self._lines.values()):
            with contextlib.suppress(OSError):  # what is wrong shows when it is read
                line.send(message)

    def _find_silent(self) -> None:
        now = time.monotonic()
        for key in list(self._selector.get_map().values()):
            line = key.data
            if line is None:
                continue
            if line.peer is None and now - line.heard > PROOF_SECONDS:
                self._hang_up(line, "")
            elif line.peer is not None and now - line.heard > self.seconds:
                self._hang_up(line, f"is frozen: it gave no sign of life for {self.seconds:g} s")

    def _hang_up(self, line: Line, how: str) -> None:
        self._selector.unregister(line.socket)
        line.socket.close()
        if line.peer is not None:
            with self._changed:
                del self._lines[line.peer]
                self._changed.notify_all()
            self._lose(line.peer, how)

    def _lose(self, peer: int, how: str, ended: bool = False) -> None:
        """Note that a peer is gone; the first reason stands."""
        if peer in self._lost:
            return
        loss = Loss(peer, self._names[peer], how, ended)
        with self._changed:
            self._lost[peer] = loss
            self._changed.notify_all()
        if not ended:
            self._on_loss(loss)


_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _drop_in_child() -> None:
    for each in _watchdogs:
        each.drop()


os.register_at_fork(after_in_child=_drop_in_child)
