"""Transfers arrays from process to process, by `jax.experimental.transfer` or over a wire, with waits that end.

A transfer is a pull: the sender offers arrays under a number, the receiver asks for that number, in either order. Both
calls return at once, and the arrays may not be computed yet. What is offered lives in the sender's server until it was
pulled, however soon Python forgets it; but if it is donated or deleted before, the receiver gets an error.

All of that holds for small arrays on CPUs too. Those go over a `Wire`, where there is one, which takes a third of the
processor's time.
"""

import collections
import contextlib
import dataclasses
import hashlib
import socket
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn, Protocol

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxpp import _compat
from jaxpp.runtime.processes.meetings import MESSAGE, Meetings
from jaxpp.runtime.processes.payload import Payload
from jaxpp.runtime.processes.transport import NUMBERS, ProcessTransfer, Transport
from jaxpp.runtime.processes.waiting import TransferError, Waiting, WaitingThread, failure
from jaxpp.runtime.processes.wire import SMALL, TICK, Wire, WireError


@dataclasses.dataclass(slots=True)
class _WireTransfer:
    """A transfer that comes over a wire.

    payload: None for a message.
    arrays: those of the payload, when they are here.
    """

    wire: Wire
    number: int
    payload: Payload | None
    arrays: list[Any] | None = None


@dataclasses.dataclass(slots=True)
class _WireArray:
    """The array `index` of a transfer that comes over a wire."""

    transfer: _WireTransfer
    index: int


class SideTransport(Protocol):
    """A transport, as the one that carries messages sees it when Python ends."""

    @property
    def is_stuck(self) -> bool:
        """Whether a thread of its may wait in XLA until the other process ends."""
        ...

    def finish(self, seconds: float) -> None:
        """Wait so many seconds for what is still to be sent."""
        ...

    def end(self) -> None:
        """End its threads: this process leaves its job."""
        ...


WatchCallback = Callable[[Waiting, float], None]
"""Called as (what is waited for, for how many seconds) every tenth of a second of a wait; raises to end it."""


def key(*parts: object) -> int:
    """The first of NUMBERS numbers that belong to `parts`: 40 bits of a hash, then the 24 that count."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=5).digest(), "big") * NUMBERS


class PullTransport:
    """This process's end of all its transfers: a server, and a connection to each peer. The transport `pull`.

    Messages between processes go over it whatever carries the values.

    It knows nothing of `jax.distributed`: processes are numbers that all of them agree on.

    me: the number of this process.
    device: a device of this process, of the client that runs the programs.
    find: the address of the transport of a process; asked once, when it is first needed.
    host: the address of this machine that the peers connect to.

    `watch` is called during every wait, and `failed` when what was waited for has failed: a `Guard`, which knows of
    dead peers, puts functions there that raise. `on_break` is called with an error that has put collectives out of
    step. `running` has for each step that has begun, and not ended, the processes that share a mesh with this one.
    """

    name = "pull"
    is_ordered = False
    counts_all = False

    def __init__(self, me: int, device: Any, find: Callable[[int], str], host: str = "127.0.0.1") -> None:
        self.me, self.device, self.host, self._find = me, device, host, find
        self.watch: WatchCallback = lambda waiting, seconds: None
        self.failed: Callable[[Waiting], None] = lambda waiting: None
        self.on_break: Callable[[str], None] = lambda error: None
        self.running: dict[object, Sequence[int]] = {}
        self._broken = ""
        """The error of a step after which other processes may wait in collectives; empty where there was none."""
        self.others: list[SideTransport] = []
        """Those that carry values in place of this one."""
        self._server = _compat.start_transfer_server(device, host)
        self._connections: dict[int, Any] = {}
        self._wires: dict[int, Wire] = {}
        self._waiter = WaitingThread()
        self._message = Payload([jax.ShapeDtypeStruct((MESSAGE,), np.uint32, sharding=SingleDeviceSharding(device))])
        self._posted: collections.Counter[int] = collections.Counter()
        self._fetched: collections.Counter[int] = collections.Counter()
        self.meetings = Meetings(me, self.post, self.fetch, self.wait)

    @property
    def address(self) -> str:
        """Where the peers connect to."""
        return str(self._server.address())

    def connection(self, peer: int) -> Any:
        """The connection to a peer, made when it is first asked for."""
        if peer not in self._connections:
            self._connections[peer] = self._server.connect(self._find(peer))
        return self._connections[peer]

    def connect_wire(self, peer: int, connected: socket.socket, beginning: bytes) -> None:
        """Send small values to the peer over this connection, as it does from now on; see `Wire`."""
        self._wires[peer] = Wire(connected, beginning)

    def disconnect(self, peer: int) -> None:
        """Let everything fail that is still on its way from the peer. The next pull connects anew."""
        if peer in self._connections:
            _compat.poison(self._connections.pop(peer))

    def check(self, peers: Sequence[int]) -> None:
        pass

    def begin(self, transfers: Sequence[ProcessTransfer], step: int) -> None:
        pass

    def settle(self, waiting: Waiting) -> None:
        pass

    def offer(self, transfer: ProcessTransfer, step: int, arrays: list[Any]) -> None:
        """Hold the arrays of a transfer until the receiver pulls them."""
        peer, number = transfer.receiver, transfer.number_at(step)
        if transfer.offered.is_small and peer in self._wires:
            self._wires[peer].send(number, arrays)
        else:
            _compat.offer(self._server, number, arrays)

    def pull(self, transfer: ProcessTransfer, step: int) -> list[Any]:
        """Ask for the arrays that the sender offers; returns for each one something that `wait` takes.

        Bytes travel, not types: numbers must be such that nothing of another type is offered under them.
        """
        peer, number, payload = transfer.sender, transfer.number_at(step), transfer.pulled
        if payload.is_small and peer in self._wires:
            coming = _WireTransfer(self._wires[peer], number, payload)
            return [_WireArray(coming, index) for index in range(len(payload.types))]
        return _compat.pull(self.connection(peer), number, self.device, payload.types)

    def abandon(self, reason: str) -> None:
        """Do nothing: each step has numbers of its own."""

    def fail(self, transfer: ProcessTransfer, step: int, reason: str) -> None:
        """Offer an error in place of the arrays of a transfer."""
        self.offer(transfer, step, [_compat.error_array(each, reason) for each in transfer.sources])

    def refuse(self, peer: int, number: int, reason: str) -> None:
        """Send an error to a peer that waits for what some other transport brings under this number."""
        if peer in self._wires:
            self._wires[peer].send_bytes(number, reason.encode()[: SMALL // 16], is_error=True)

    def post(self, peers: Sequence[int], message: Sequence[int]) -> None:
        """Send the next message to each of `peers`: where no wire leads there, MESSAGE numbers of it at most."""
        padded = np.zeros(max(len(message), MESSAGE), np.uint32)
        padded[: len(message)] = message
        for peer in peers:
            self._posted[peer] += 1
            number = _message_number(self.me, peer, self._posted[peer])
            if peer in self._wires:
                self._wires[peer].send_bytes(number, padded.tobytes())
            else:
                array = _compat.to_device(padded[:MESSAGE], self._message.types[0].sharding)
                _compat.offer(self._server, number, [array])

    def fetch(self, peer: int) -> Any:
        """Ask for the peer's next message; returns something that `wait` takes, and returns as an array."""
        self._fetched[peer] += 1
        number = _message_number(peer, self.me, self._fetched[peer])
        if peer in self._wires:
            return _WireArray(_WireTransfer(self._wires[peer], number, None), 0)
        return _compat.pull(self.connection(peer), number, self.device, self._message.types)[0]

    def wait(self, array: Any, waiting: Waiting) -> Any:
        """Wait until an array that was pulled has arrived, and return it. All waits for other processes end here.

        Ctrl-C ends it, and what `watch` raises; the connection to the peer is then given up. Raises TransferError, with
        what was waited for, if it will not come.
        """
        if isinstance(array, _WireArray):
            return self._receive(array, waiting)
        if array.is_ready():
            error = failure(array)
        else:
            try:
                error = self._waiter.wait(array, lambda seconds: self.look(waiting, seconds))
            except BaseException:  # of Ctrl-C too: an array that arrives later could be taken for another one
                self.disconnect(waiting.peer)
                self._waiter.abandon()
                raise
        if error is not None:
            self.give_up(error, waiting)
        return array

    def look(self, waiting: Waiting, seconds: float, number: int | None = None) -> None:
        """Called every TICK of a wait, with the seconds so far: raises what ends it, as `wait`."""
        self.watch(waiting, seconds)
        if number is not None and waiting.peer in self._wires:
            with contextlib.suppress(WireError):  # the watchdog will tell what has become of the peer
                if reason := self._wires[waiting.peer].error(number):
                    self.give_up(TransferError(reason), waiting)

    def _receive(self, array: _WireArray, waiting: Waiting) -> Any:
        """Wait for an array that comes over a wire."""
        transfer, peer = array.transfer, waiting.peer
        if transfer.arrays is None:
            end = _message_number(peer, self.me, self._posted[peer] + 1)
            try:
                data = transfer.wire.receive(
                    transfer.number, lambda seconds: self.look(waiting, seconds), end, first=transfer.payload is None
                )
                transfer.arrays = (
                    transfer.payload.unpack(data) if transfer.payload else [np.frombuffer(data, np.uint32)]
                )
            except WireError as error:
                self.give_up(error, waiting)
            except BaseException:  # likewise
                self.disconnect(peer)
                raise
        return transfer.arrays[array.index]

    def wait_computed(self, array: Any, waiting: Waiting, number: int | None = None) -> None:
        """As `wait`, for an array that a collective computes: a thread inside of a collective can't be interrupted.

        number: that of a transfer which the peer may `refuse`.
        """
        start = looked = time.monotonic()
        while not array.is_ready():
            now = time.monotonic()
            if now - looked > TICK:
                self.look(waiting, now - start, number)
                looked = now
            time.sleep(min((now - start) / 16, 1e-3))
        if error := failure(array):
            self.give_up(error, waiting)

    def give_up(self, error: Exception, waiting: Waiting) -> NoReturn:
        """Raise TransferError for what was waited for and failed, or PeerError where a dead process is the cause."""
        self.failed(waiting)
        text = str(error).removeprefix("INTERNAL: ").removeprefix("Error while transferring: ")
        raise TransferError(f"{waiting}: {text}") from None

    def close(self, error: str = "") -> None:
        """Answer with an error whoever still begins a step with this process. What is offered stays.

        error: what ended this process; empty where nothing did.
        """
        text = f"process {self.me} failed: {error}" if error else f"process {self.me} has ended"
        self.post_error([*self._connections.keys() | self._wires.keys()], text)

    def post_error(self, peers: Sequence[int], text: str) -> None:
        """Send an error in place of the next message."""
        for peer in peers:
            self._posted[peer] += 1
            number = _message_number(self.me, peer, self._posted[peer])
            if peer in self._wires:
                self._wires[peer].send_bytes(number, text.encode(), is_error=True)
            else:
                _compat.offer(self._server, number, [_compat.error_array(self._message.types[0], text)])

    def break_collectives(self, error: str) -> None:
        """Make no more steps on meshes that other processes share: this one failed in one, and they may wait in XLA."""
        self._broken = self._broken or error
        self.on_break(error)

    def check_collectives(self) -> None:
        """Raise TransferError where no step on a mesh of several processes can be made any more."""
        if self._broken:
            raise TransferError(
                f"collectives are matched by their order, and some were not made ({self._broken}): "
                "start the job again from a checkpoint"
            )

    def finish(self, seconds: float) -> None:
        """Wait so many seconds for each wire to send what it still has, before Python ends."""
        for wire in self._wires.values():
            wire.finish(seconds)
        for each in self.others:
            each.finish(seconds)

    def end(self) -> None:
        """End the threads: this process leaves its job, and may join another one."""
        self._waiter.end()
        for each in (*self._wires.values(), *self.others):
            each.end()

    @property
    def is_stuck(self) -> bool:
        """Whether a thread may wait in XLA until another process ends: of a transport, or in a collective."""
        return bool(self._broken) or any(each.is_stuck for each in self.others)


def _message_number(sender: int, receiver: int, count: int) -> int:
    return _message_key(sender, receiver) + count % NUMBERS


@cache
def _message_key(sender: int, receiver: int) -> int:
    return key("message", sender, receiver)


@dataclasses.dataclass(frozen=True)
class Peers:
    """The processes that run one program.

    messages: this process's end of the messages between them.
    transport: what carries values.
    owners: for each mesh the process of each of its devices, in the order of `mesh.devices.flat`.
    program: at least 16 bytes that are the same in all of them, and different for each program, also for one that is
        loaded twice: they go into the numbers of its transfers.
    gather: what each process gives, in all of them, by process; None where traces are put together by somebody else.
    exchange: likewise among the processes that run the program; None in any other.
    text: what the program is, as of a Meeting.
    """

    messages: PullTransport
    transport: Transport
    owners: Sequence[Sequence[int]]
    program: bytes
    gather: Callable[[str], list[str]] | None = None
    exchange: Callable[[str], list[str]] | None = None
    text: str = ""

    def positions(self, mesh: int) -> list[int]:
        """The positions of this process's devices in the mesh."""
        return [position for position, owner in enumerate(self.owners[mesh]) if owner == self.messages.me]
