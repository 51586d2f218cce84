"""Watches the processes that this one works with: one thread listens to a connection to each.

First both ends of a connection prove their identity (`handshake`). Then each sends a heartbeat every few seconds, and a
goodbye at the end. A process that falls silent is frozen. When a connection breaks without a goodbye, both ends dial
the other's address at once. The end that dialled before makes a new connection. The other end only finds out whether
anybody listens there. If nobody does, the process has died.

There is a second connection to each peer, for values. It begins in the same way, and then belongs to a `Wire`. It is
not replaced when it breaks, because values in flight are lost. Within one machine it is a Unix socket, over which a
small value takes less processor time than over TCP.
"""

import contextlib
import dataclasses
import errno
import json
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any

from jaxpp.runtime.processes import unix
from jaxpp.runtime.processes.handshake import (
    LONGEST,
    PROOF_SECONDS,
    STRANGERS,
    Connection,
    RefusedError,
    WrongSecretError,
    introduce,
)

LIFE, VALUES, NOTHING, PROOF = "life", "values", "nothing", "proof"
"""The uses of a connection. NOTHING finds out whether anybody listens at the other end, PROOF finds out who does."""

ANSWER_SECONDS = 60.0
"""Seconds that a peer has to connect."""

REDIAL_SECONDS = 0.2
"""Seconds until a peer that has hung up during the handshake is dialled again."""

RETURN_SECONDS = 10.0
"""Seconds that a peer whose connection broke has to come back, if its address still answers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A peer that is gone.

    peer: the peer's number.
    name: the process number, host and pid that the peer gave.
    how: "died", "is frozen: ...", "failed: ..." with the error that ended it, or "has ended".
    ended: whether the peer said goodbye.
    has_failed: whether the goodbye gave an error.
    is_stuck: whether a thread of the peer may still wait in XLA for other processes, in a step or because JAX had not
        started everywhere. The peer then completes no collective, and takes no part in JAX's own shutdown.
    """

    peer: int
    name: str
    how: str
    ended: bool = False
    has_failed: bool = False
    is_stuck: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.how}"


class Watchdog:
    """A watchdog, which notices when a peer dies, freezes or ends. It does not depend on JAX.

    me: the number of this process; all processes of the job agree on the numbers.
    secret: a secret that only the processes of the job know.
    host: the address to listen at.
    seconds: the heartbeat timeout, after which a silent peer is frozen. A peer must not hold Python's lock for longer.
    on_loss: called with the Loss, in the watchdog's thread.
    state: makes the content of each heartbeat, for JSON. `heard` has the last one of each peer, and when it came.
    pause: the largest number of seconds between two heartbeats.
    """

    def __init__(
        self,
        me: int,
        secret: bytes,
        host: str = "127.0.0.1",
        seconds: float = 60.0,
        on_loss: Callable[[Loss], None] = lambda loss: None,
        state: Callable[[], Mapping[str, Any]] = dict,
        pause: float = 5.0,
    ) -> None:
        self.me, self.seconds = me, seconds
        self._secret, self._on_loss, self._state = secret, on_loss, state
        self.pause = min(seconds / 4, pause)
        self.heard: dict[int, tuple[float, Mapping[str, Any]]] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._host, self._listeners = host, [socket.create_server((host.strip("[]"), 0), family=family)]
        if local := unix.listen(self.address):
            self._listeners.append(local)
        for each in self._listeners:
            each.setblocking(False)
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._changed = threading.Condition()
        self._new: list[Connection] = []
        self._connections: dict[int, Connection] = {}
        self._names: dict[int, str] = {}
        self.wires: dict[int, tuple[socket.socket, bytes]] = {}
        """For each peer: the connection for values, and the bytes that were already received over it."""
        self._refused: dict[int, str] = {}
        """For each peer: why a process that gave the peer's number was refused."""
        self._hopeless: set[int] = set()
        """The peers that this process dialled and refused. The listener at a peer's address is not a mere stranger."""
        self._dropped: list[tuple[int, str]] = []
        """(peer, use) of dialled connections that ended before the other end had proven its identity."""
        self._asked: set[int] = set()
        """The peers that were dialled because a process, perhaps a stranger, gave their number and a wrong proof."""
        self._addresses: dict[int, str] = {}
        self._cut: dict[int, float] = {}
        """The peers whose connection broke, and their deadlines to come back."""
        self._lost: dict[int, Loss] = {}
        self._goodbye: dict[str, Any] = {}
        self._open = True
        _watchdogs.add(self)
        self._thread = threading.Thread(target=self._run, name="jaxpp-watchdog", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address host:port to which peers connect."""
        return f"{self._host}:{self._listeners[0].getsockname()[1]}"

    @property
    def lost(self) -> list[Loss]:
        """The peers that are gone, in the order of their loss."""
        return list(self._lost.values())

    @property
    def names(self) -> Mapping[int, str]:
        """The name of each peer that was ever connected."""
        return self._names.copy()

    def ask(self) -> None:
        """Asks all peers for a heartbeat, which their own threads send at once."""
        self._say({**self._state(), "asks": True})

    def connect(
        self,
        addresses: Mapping[int, str],
        seconds: float = ANSWER_SECONDS,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins to watch these peers. Both ends must call this. Returns when both connections to each peer are proven.

        addresses: the peers' addresses, by number.
        look: called several times a second; its errors end the wait.
        Raises ConnectionError if a peer can't be reached within so many seconds, or belongs to another job.
        """
        self._addresses.update(addresses)
        self._asked.clear()
        end = time.monotonic() + seconds
        for peer, address in addresses.items():
            if peer < self.me and peer not in self._names:  # the higher number dials
                self._new += [self._dial(peer, address, use, end) for use in (LIFE, VALUES)]
        self._wake.send(b"!")

        def decided() -> bool:
            connected = self._names.keys() & self.wires.keys()
            return connected >= addresses.keys() or not self._hopeless.isdisjoint(addresses)

        while not decided() and (left := end - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait_for(lambda: decided() or bool(self._dropped), min(left, REDIAL_SECONDS))
            look()
            if self._dropped and not decided():
                time.sleep(REDIAL_SECONDS)
                again, self._dropped = self._dropped, []
                self._new += [self._dial(peer, addresses[peer], use, end) for peer, use in again if peer in addresses]
                self._wake.send(b"!")
        with self._changed:
            for peer in addresses.keys() - (self._names.keys() & self.wires.keys()):
                reason = self._refused.get(peer, f"did not connect within {seconds:g} s")
                raise ConnectionError(f"process {peer} at {addresses[peer]} {reason}")

    def _dial(self, peer: int, address: str, use: str, end: float) -> Connection:
        left = max(end - time.monotonic(), 0.1)
        connected = unix.connect(address, left) if use == VALUES else None
        host, port = address.rsplit(":", 1)
        try:
            connected = connected or socket.create_connection((host.strip("[]"), int(port)), left)
        except OSError as error:
            raise ConnectionError(f"process {peer} can't be reached at {address}: {error}") from None
        connection = Connection(connected, True, use)
        connection.meant = peer
        return connection

    def wait_for_loss(self, seconds: float) -> bool:
        """Waits until a peer has died or is frozen; returns whether one has."""
        with self._changed:
            return self._changed.wait_for(self._is_one_dead, seconds)

    def goodbye(self, reason: str, is_stuck: bool = False) -> None:
        """Tells the peers that this process ends, and the error that ends it. The thread goes on listening to them."""
        self._goodbye = {"goodbye": reason, "skips": is_stuck}
        self._say(self._goodbye)

    def wait_for_goodbyes(self, seconds: float) -> bool:
        """Waits until all peers have said goodbye, or one is dead or frozen; returns whether all said goodbye."""
        with self._changed:
            self._changed.wait_for(lambda: self._names.keys() <= self._lost.keys() or self._is_one_dead(), seconds)
            return self._names.keys() <= self._lost.keys() and not self._is_one_dead()

    def wait_until_alone(self, seconds: float) -> bool:
        """Waits until no peer is connected any more; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._connections and not self._cut, seconds)

    def close(self) -> None:
        """Ends the thread and all connections."""
        if self._open:
            self._open = False
            self._wake.send(b"!")
            self._thread.join()
            self.drop()
            self._selector.close()

    def drop(self) -> None:
        """Closes all sockets. A forked child calls this too: it would keep the connections of a dead parent open."""
        connections = [key.data for key in self._selector.get_map().values() if key.data is not None]
        sockets = [each.socket for each in (*connections, *self._new)]
        for each in (*sockets, *(wire for wire, _ in self.wires.values()), *self._listeners, self._wake, self._woken):
            each.close()

    def _run(self) -> None:
        for each in (*self._listeners, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        said = time.monotonic()
        while self._open:
            # Check twice: a process that was stopped by SIGSTOP has not read the messages that came meanwhile.
            for key, _ in self._selector.select(self.pause / 2) or self._selector.select(0):
                self._handle(key)
            while self._new:
                self._add(self._new.pop())
            if self._refused:
                self._ask_for_proof()
            if time.monotonic() - said > self.pause:
                self._say(self._state())
                said = time.monotonic()
            self._find_silent()

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._woken:
            self._woken.recv(LONGEST)
        elif (listener := key.fileobj) in self._listeners:
            assert isinstance(listener, socket.socket)
            self._accept(listener)
        elif key.events == selectors.EVENT_WRITE:
            self._connected(key.data)
        elif key.data.socket.fileno() >= 0:  # not closed since the selector saw it
            self._read(key.data)

    def _accept(self, listener: socket.socket) -> None:
        strangers = [key.data for key in self._selector.get_map().values() if _is_stranger(key.data)]
        if len(strangers) >= STRANGERS + len(self._addresses):
            self._hang_up(min(strangers, key=lambda each: each.heard), "")
        try:
            self._add(Connection(listener.accept()[0]))
        except OSError as error:  # the other end has hung up already
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                time.sleep(self.pause / 50)  # until a descriptor is free; otherwise the selector would not wait

    def _is_one_dead(self) -> bool:
        return not all(loss.ended for loss in self.lost)

    def _add(self, connection: Connection) -> None:
        """Begins the conversation over a new connection."""
        connection.socket.setblocking(False)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._begin(connection)

    def _begin(self, connection: Connection) -> None:
        connection.talk = self._talk(connection)
        try:
            next(connection.talk)
        except OSError:  # the other end has hung up already
            self._hang_up(connection, "died")

    def _read(self, connection: Connection) -> None:
        try:
            for message in connection.receive():
                connection.talk.send(message)
        except StopIteration:  # the connection is for values
            self._hand_over(connection)
        except Exception:  # messages of a stranger must end only this connection
            self._hang_up(connection, "died")

    def _talk(self, connection: Connection) -> Generator[None, bytes, None]:
        """Handles a connection message by message."""
        try:
            peer, name = yield from introduce(connection, self.me, self._secret, self._admit)
        except WrongSecretError as error:
            with self._changed:
                self._refused[error.peer] = "has another job secret (JAXPP_JOB_SECRET)"
                if connection.dialled:
                    self._hopeless.add(error.peer)
                self._changed.notify_all()
            raise
        if connection.use == PROOF:
            raise RefusedError("that was all")
        connection.peer, connection.heard = peer, time.monotonic()
        if connection.use == VALUES:
            return
        self._welcome(connection, peer, name)
        while True:
            message: dict[str, Any] = json.loads((yield))
            if "goodbye" in message:
                error, is_stuck = str(message["goodbye"]), bool(message.get("skips"))
                how = f"failed: {error}" if error else "has ended"
                self._lose(peer, how, ended=True, has_failed=bool(error), is_stuck=is_stuck)
            else:
                self.heard[peer] = time.monotonic(), message
                if message.get("asks"):
                    with contextlib.suppress(OSError):
                        connection.send(self._state())

    def _admit(self, peer: int, name: str, use: str) -> None:
        if use not in {LIFE, VALUES, PROOF} or peer == self.me or (use == VALUES and peer in self.wires):
            raise RefusedError(f"a second process {peer}")
        if self._names.get(peer, name) != name or peer in self._lost:
            raise RefusedError(f"{name} is not the process {peer} that was here, or that one was given up")

    def _welcome(self, connection: Connection, peer: int, name: str) -> None:
        """Stores the new connection of a peer that has proven its identity, and closes the former ones."""
        former = [self._connections.get(peer)]
        former += [key.data for key in self._selector.get_map().values() if key.data and key.data.asks == peer]
        for each in former:
            if each is not None and each is not connection:
                self._selector.unregister(each.socket)
                each.socket.close()
        with self._changed:
            self._connections[peer] = connection
            self._names[peer] = name
            self._cut.pop(peer, None)
            self._changed.notify_all()
        connection.asks = None
        if self._goodbye:
            connection.send(self._goodbye)

    def _hand_over(self, connection: Connection) -> None:
        """Ends the conversation over a connection for values, and moves the connection to `wires`."""
        assert connection.peer is not None  # the peer has proven its identity
        self._selector.unregister(connection.socket)
        with self._changed:
            self.wires[connection.peer] = connection.socket, connection.rest
            self._changed.notify_all()

    def _say(self, message: Mapping[str, Any]) -> None:
        for connection in list(self._connections.values()):
            with contextlib.suppress(OSError):  # a broken connection is noticed when it is read
                connection.send(message)

    def _find_silent(self) -> None:
        now = time.monotonic()
        for peer in [peer for peer, end in self._cut.items() if now > end]:
            self._lose(peer, "died")
        for key in list(self._selector.get_map().values()):
            connection = key.data
            if connection is None:
                continue
            if connection.peer is None and now - connection.heard > PROOF_SECONDS:
                self._hang_up(connection, "")
            elif connection.peer is not None and now - connection.heard > self.seconds:
                self._hang_up(connection, f"is frozen: it gave no sign of life for {self.seconds:g} s")

    def _hang_up(self, connection: Connection, how: str) -> None:
        if connection.socket.fileno() < 0:  # done already
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.asks is not None:
            self._lose(connection.asks, "died")
        if connection.peer is None:
            with self._changed:
                self._dropped += [(connection.meant, connection.use)] if connection.meant is not None else []
                self._changed.notify_all()
            return
        is_cut = how == "died" and connection.peer not in self._lost
        with self._changed:
            if is_cut:
                self._cut[connection.peer] = time.monotonic() + RETURN_SECONDS
            del self._connections[connection.peer]
            self._changed.notify_all()
        if is_cut:
            self._call_back(connection.peer)
        else:
            self._lose(connection.peer, how)

    def _call_back(self, peer: int) -> None:
        """Finds out whether a peer lives after its connection broke. A dead peer's address refuses the connection."""
        if ":" in self._addresses.get(peer, ""):
            self._dial_back(peer, LIFE if peer < self.me else NOTHING, asks=peer)
        else:  # this process was never told the address
            self._lose(peer, "died")

    def _ask_for_proof(self) -> None:
        """Dials, once, each peer whose number came with a wrong proof, to find out whether the peer sent it."""
        for peer in self._refused.keys() & self._addresses.keys() - self._asked - self._names.keys():
            self._asked.add(peer)
            if ":" in self._addresses[peer]:
                self._dial_back(peer, PROOF)

    def _dial_back(self, peer: int, use: str, asks: int | None = None) -> None:
        host, _, port = self._addresses[peer].rpartition(":")
        host = host.strip("[]")
        dialled = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        dialled.setblocking(False)
        connection = Connection(dialled, True, use)
        connection.asks = asks
        self._selector.register(dialled, selectors.EVENT_WRITE, connection)
        if dialled.connect_ex((host, int(port))) not in {0, errno.EINPROGRESS}:
            self._hang_up(connection, "died")

    def _connected(self, connection: Connection) -> None:
        """Goes on after the other end has accepted the connection of `_dial_back`, or refused it."""
        if connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._hang_up(connection, "died")
            return
        self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
        if connection.use != NOTHING:
            self._begin(connection)
        else:
            connection.talk = _ignore()
            next(connection.talk)

    def _lose(self, peer: int, how: str, **goodbye: bool) -> None:
        """Notes that a peer is gone. The first reason stands."""
        if peer in self._lost:
            return
        loss = Loss(peer, self._names[peer], how, **goodbye)
        with self._changed:
            self._cut.pop(peer, None)
            self._lost[peer] = loss
            self._changed.notify_all()
        with contextlib.suppress(Exception):  # the thread must survive any error of `on_loss`
            self._on_loss(loss)


def _is_stranger(connection: Connection | None) -> bool:
    """Whether the other end dialled, and has not proven its identity yet."""
    return connection is not None and connection.peer is None and not connection.dialled


def _ignore() -> Generator[None, bytes, None]:
    """Handles a connection without messages."""
    while True:
        yield


_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _drop_in_child() -> None:
    for each in _watchdogs:
        each.drop()


os.register_at_fork(after_in_child=_drop_in_child)
