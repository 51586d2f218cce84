"""Transfers arrays from process to process, by `jax.experimental.transfer` or over a wire, with waits that end.

A transfer is a pull: the sender offers arrays under a number, and the receiver asks for that number, in either order.
Both calls return at once, and the arrays may not be computed yet. The sender's server keeps offered arrays until they
are pulled, even if Python drops them. If they are donated or deleted before, the receiver gets an error.

The same holds for small arrays on CPUs, but they go over a `Wire`, if there is one. A wire takes a third of the
processor time.
"""

import collections
import contextlib
import dataclasses
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxpp import _compat
from jaxpp.runtime.processes.meetings import MESSAGE, Meetings
from jaxpp.runtime.processes.payload import Payload
from jaxpp.runtime.processes.transport import NUMBERS, ProcessTransfer, Transport
from jaxpp.runtime.processes.waiting import TransferError, WaitFor, Waiting, aside, failure
from jaxpp.runtime.processes.wire import SMALL, TICK, Wire, WireError


@dataclasses.dataclass(slots=True)
class _WireTransfer:
    """A transfer that this process receives over a wire.

    payload: the types of the arrays; None for a message.
    arrays: the received arrays, once they are here.
    """

    wire: Wire
    number: int
    payload: Payload | None
    arrays: list[Any] | None = None


@dataclasses.dataclass(slots=True)
class _WireArray:
    """The array at `index` of a transfer over a wire."""

    transfer: _WireTransfer
    index: int


WatchCallback = Callable[[Waiting, float], None]
"""Called as (wait, seconds so far) every tenth of a second of a wait. It raises to end the wait."""


def key(*parts: object) -> int:
    """Returns the first of the NUMBERS numbers of `parts`: a hash of 40 bits, followed by 24 bits for counting."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=5).digest(), "big") * NUMBERS


class PullTransport(Transport):
    """This process's end of all its transfers: a server, and a connection to each peer. The transport `pull`.

    It also carries the messages between processes, whatever transport carries the values. It does not depend on
    `jax.distributed`: processes are numbers on which all of them agree.

    me: the number of this process.
    device: a device of this process, of the client that runs the programs.
    find: returns the address of the transport of a process; called whenever a connection to the process is made.
    host: the address of this machine to which the peers connect.

    A `Guard`, which knows of dead peers, sets three functions. `watch` is called during every wait, and `failed` after
    a failed wait; they raise if the peer is dead. `on_break` is called with an error after which collectives no longer
    match. `running` has for each running step the processes that share a mesh with this one.
    """

    name = "pull"

    def __init__(self, me: int, device: Any, find: Callable[[int], str], host: str = "127.0.0.1") -> None:
        self.me, self.device, self.host, self._find = me, device, host, find
        self.watch: WatchCallback = lambda waiting, seconds: None
        self.failed: Callable[[Waiting], None] = lambda waiting: None
        self.on_break: Callable[[str], None] = lambda error: None
        self.running: dict[object, Sequence[int]] = {}
        self._broken = ""
        """The error of a step after which other processes may wait in collectives; empty if there was none."""
        self.others: list[Transport] = []
        """The transports that carry values instead of this one."""
        self._server = _compat.start_transfer_server(device, host)
        self._connections: dict[int, Any] = {}
        self._wires: dict[int, Wire] = {}
        self._threads: set[threading.Thread] = set()
        """The threads that wait in JAX for arrays that this process pulls."""
        self._message = Payload([jax.ShapeDtypeStruct((MESSAGE,), np.uint32, sharding=SingleDeviceSharding(device))])
        self._posted: collections.Counter[int] = collections.Counter()
        self._fetched: collections.Counter[int] = collections.Counter()
        self.meetings = Meetings(me, self.post, self.fetch, self.wait)

    @property
    def address(self) -> str:
        """The address to which the peers connect."""
        return str(self._server.address())

    def connection(self, peer: int) -> Any:
        """Returns the connection to a peer, made at the first call."""
        if peer not in self._connections:
            self._connections[peer] = self._server.connect(self._find(peer))
        return self._connections[peer]

    def connect_wire(self, peer: int, connected: socket.socket, beginning: bytes) -> None:
        """Uses this connection for small values to and from the peer from now on; see `Wire`."""
        self._wires[peer] = Wire(connected, beginning)

    def disconnect(self, peer: int) -> None:
        """Makes all pending pulls from the peer fail. The next pull connects anew."""
        if peer in self._connections:
            _compat.poison(self._connections.pop(peer))

    def offer(self, transfer: ProcessTransfer, step: int, arrays: list[Any]) -> None:
        """Keeps the arrays of a transfer until the receiver pulls them."""
        peer, number = transfer.receiver, transfer.number_at(step)
        if transfer.offered.is_small and peer in self._wires:
            self._wires[peer].send(number, arrays)
        else:
            _compat.offer(self._server, number, arrays)

    def pull(self, transfer: ProcessTransfer, step: int) -> list[Any]:
        """Asks for the arrays that the sender offers; returns for each a handle for `wait`.

        Only bytes are sent, not types. So a number must never be used for arrays of different types.
        """
        peer, number, payload = transfer.sender, transfer.number_at(step), transfer.pulled
        if payload.is_small and peer in self._wires:
            coming = _WireTransfer(self._wires[peer], number, payload)
            return [_WireArray(coming, index) for index in range(len(payload.types))]
        return _compat.pull(self.connection(peer), number, self.device, payload.types)

    def fail(self, transfer: ProcessTransfer, step: int, reason: str) -> None:
        """Offers an error instead of the arrays of a transfer."""
        self.offer(transfer, step, [_compat.error_array(each, reason) for each in transfer.sources])

    def refuse(self, peer: int, number: int, reason: str) -> None:
        """Sends an error to a peer that waits for the transfer of this number on another transport."""
        if peer in self._wires:
            self._wires[peer].send_bytes(number, reason.encode()[: SMALL // 16], is_error=True)

    def post(self, peers: Sequence[int], message: Sequence[int]) -> None:
        """Sends the next message to each of `peers`. A peer without a wire gets only the first MESSAGE numbers."""
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
        """Asks for the peer's next message; returns a handle for `wait`, which returns the message as an array."""
        self._fetched[peer] += 1
        number = _message_number(peer, self.me, self._fetched[peer])
        if peer in self._wires:
            return _WireArray(_WireTransfer(self._wires[peer], number, None), 0)
        return _compat.pull(self.connection(peer), number, self.device, self._message.types)[0]

    def wait(self, array: Any, waiting: Waiting) -> Any:
        """Waits until an array that was pulled has arrived, and returns the array.

        Ctrl-C and the errors of `watch` end the wait, and close the connection to the peer, which also ends the wait in
        JAX. Raises TransferError, which names the wait, if the array will not come.
        """
        if isinstance(array, _WireArray):
            return self._receive(array, waiting)
        if not array.is_ready():
            try:
                with WaitFor(waiting):
                    aside(partial(self._await, array), partial(self.look, waiting))
            except BaseException:  # also Ctrl-C: if the array arrived later, it could be taken for a different array
                self.disconnect(waiting.peer)
                raise
        self._check(array, waiting)
        return array

    def _await(self, array: Any) -> None:
        """Waits for an array in a thread of its own."""
        thread = threading.current_thread()
        self._threads.add(thread)
        failure(array)
        self._threads.discard(thread)

    def look(self, waiting: Waiting, seconds: float, number: int | None = None) -> None:
        """Checks a wait, every TICK, with the seconds so far. Raises the error that ends the wait, as `wait`."""
        self.watch(waiting, seconds)
        if number is not None and waiting.peer in self._wires:
            with contextlib.suppress(WireError):  # the watchdog reports a lost peer
                if reason := self._wires[waiting.peer].error(number):
                    self.give_up(TransferError(reason), waiting)

    def _receive(self, array: _WireArray, waiting: Waiting) -> Any:
        """Waits for an array of a transfer over a wire."""
        transfer, peer = array.transfer, waiting.peer
        if transfer.arrays is None:
            end = _message_number(peer, self.me, self._posted[peer] + 1)
            try:
                look, is_first = partial(self.look, waiting), transfer.payload is None
                with WaitFor(waiting):
                    data = transfer.wire.receive(transfer.number, look, end, first=is_first)
                transfer.arrays = (
                    transfer.payload.unpack(data) if transfer.payload else [np.frombuffer(data, np.uint32)]
                )
            except WireError as error:
                self.give_up(error, waiting)
            except BaseException:  # also Ctrl-C, as above
                self.disconnect(peer)
                raise
        return transfer.arrays[array.index]

    def wait_computed(self, array: Any, waiting: Waiting, number: int | None = None) -> None:
        """Waits as `wait` for a computed array. It polls, as nothing could end a thread that waits for a collective.

        number: the number of a transfer that the peer may `refuse`.
        """
        if not array.is_ready():
            start = looked = time.monotonic()
            with WaitFor(waiting):
                while not array.is_ready():
                    now = time.monotonic()
                    if now - looked > TICK:
                        self.look(waiting, now - start, number)
                        looked = now
                    time.sleep(min((now - start) / 16, 1e-3))
        self._check(array, waiting)

    def _check(self, array: Any, waiting: Waiting) -> None:
        """Raises the error of an array that is ready, as `give_up`."""
        if error := failure(array):
            self.give_up(error, waiting)

    def give_up(self, error: Exception, waiting: Waiting) -> NoReturn:
        """Raises TransferError for a failed wait, or PeerError if a dead process is the cause."""
        self.failed(waiting)
        text = str(error).removeprefix("INTERNAL: ").removeprefix("Error while transferring: ")
        raise TransferError(f"{waiting}: {text}") from None

    def close(self, error: str = "") -> None:
        """Sends an error as the next message to all connected peers. Offered arrays stay available.

        error: the error that ended this process; empty if there was none.
        """
        text = f"process {self.me} failed: {error}" if error else f"process {self.me} has ended"
        self.post_error([*self._connections.keys() | self._wires.keys()], text)

    def post_error(self, peers: Sequence[int], text: str) -> None:
        """Sends an error instead of the next message."""
        for peer in peers:
            self._posted[peer] += 1
            number = _message_number(self.me, peer, self._posted[peer])
            if peer in self._wires:
                self._wires[peer].send_bytes(number, text.encode(), is_error=True)
            else:
                _compat.offer(self._server, number, [_compat.error_array(self._message.types[0], text)])

    def break_collectives(self, error: str) -> None:
        """Forbids further steps on meshes that other processes share. A step failed there, and they may wait in XLA."""
        self._broken = self._broken or error
        self.on_break(error)

    def check_collectives(self) -> None:
        """Raises TransferError if steps on meshes of several processes are no longer possible."""
        if self._broken:
            raise TransferError(
                f"collectives are matched by their order, and some were not made ({self._broken}): "
                "start the job again from a checkpoint"
            )

    def finish(self, seconds: float) -> None:
        """Waits for pending sends before Python exits, at most so many seconds for each wire and transport.

        Waits of the user's other threads end: a thread that still waits in JAX while Python ends aborts the process.
        """
        if self._threads:
            for peer in [*self._connections]:
                self.disconnect(peer)
            for thread in [*self._threads]:
                thread.join(seconds)
        for wire in self._wires.values():
            wire.finish(seconds)
        for each in self.others:
            each.finish(seconds)

    def end(self) -> None:
        """Ends the threads, because this process leaves its job and may join another job."""
        for each in (*self._wires.values(), *self.others):
            each.end()

    @property
    def is_stuck(self) -> bool:
        """Whether a thread may wait in XLA until another process ends, in a transport or in a collective."""
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
    transport: the transport of the values.
    owners: for each mesh the process of each of its devices, in the order of `mesh.devices.flat`.
    program: at least 16 bytes that are the same in all of them, and different for each program, even for one that is
        loaded twice. They go into the numbers of its transfers.
    gather: exchanges a text with all processes of the job, and returns the texts by process; None if the caller merges
        the processes' traces.
    exchange: exchanges a text among the processes that run the program; None elsewhere.
    text: the description of the program, as in a Meeting.
    """

    messages: PullTransport
    transport: Transport
    owners: Sequence[Sequence[int]]
    program: bytes
    gather: Callable[[str], list[str]] | None = None
    exchange: Callable[[str], list[str]] | None = None
    text: str = ""

    def positions(self, mesh: int) -> list[int]:
        """Returns the positions of this process's devices in the mesh."""
        return [position for position, owner in enumerate(self.owners[mesh]) if owner == self.messages.me]
