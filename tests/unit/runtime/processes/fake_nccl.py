"""NCCL and CUDA's driver on CPUs: the functions that jaxpp calls, as C calls them, over sockets and threads.

What it has of the real ones: a call only puts something on a stream, and a stream does one thing after the other. A
send ends when its receive takes it, whatever the two mean; where there is none, the stream stands still until the
communicator is aborted, also where the process at the other end is gone. A communicator is made when both ends have
come, and takes no call before it is idle. What takes other sizes than are sent is an error of the communicator.
"""

import contextlib
import ctypes
import itertools
import queue
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, c_int, c_size_t, c_uint, c_uint8, c_uint32, c_void_p
from typing import Any

from jaxpp.runtime.processes import nccl_library

UINT8 = 1
OK, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS, INVALID_HANDLE, NOT_READY = 0, 4, 5, 6, 7, 400, 600

Id = c_uint8 * 128


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", Id),)


class Config(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("magic", c_uint32), ("version", c_uint32), ("blocking", ctypes.c_int32))


class Communicator:
    """state: a ncclResult_t; launching: whether the last call is still under way."""

    def __init__(self, identity: bytes, rank: int) -> None:
        self.rank, self.state, self.launching = rank, IN_PROGRESS, False
        self.aborted = threading.Event()
        self.socket: socket.socket | None = None
        threading.Thread(target=self.connect, args=[identity], daemon=True).start()

    def connect(self, identity: bytes) -> None:
        port, token = struct.unpack(">H", identity[:2])[0], identity[2:]
        try:
            if identity in listeners:
                with listeners.pop(identity) as listener:
                    made, _ = listener.accept()
                assert made.recv(len(token), socket.MSG_WAITALL) == token
            else:
                made = socket.create_connection(("127.0.0.1", port))
                made.sendall(token)
        except OSError:
            self.state = REMOTE_ERROR
            return
        self.socket, self.state = made, OK

    def stand_still(self) -> None:
        self.aborted.wait()

    def send(self, address: int, size: int) -> None:
        assert self.socket is not None
        try:
            self.socket.sendall(struct.pack(">Q", size) + ctypes.string_at(address, size))
            if self.socket.recv(1) == b"!":
                return
        except OSError:
            pass
        self.stand_still()

    def receive(self, address: int, size: int) -> None:
        assert self.socket is not None
        try:
            head = self.socket.recv(8, socket.MSG_WAITALL)
            if head and head != struct.pack(">Q", size):
                self.state = REMOTE_ERROR
            elif head and self.fill((c_uint8 * size).from_address(address)):
                self.socket.sendall(b"!")
                return
        except OSError:
            pass
        self.stand_still()

    def fill(self, buffer: Any) -> bool:
        view = memoryview(buffer).cast("B")
        while view and (count := self.socket.recv_into(view)):  # pyright: ignore[reportOptionalMemberAccess]
            view = view[count:]
        return not view

    def abort(self) -> None:
        self.aborted.set()
        if self.socket is not None:
            with contextlib.suppress(OSError):  # the other end may have hung up
                self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()


class Stream:
    def __init__(self) -> None:
        self.context = current.context
        self.work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            self.work.get()()


class Event(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.context = current.context


listeners: dict[bytes, socket.socket] = {}
objects: dict[int, Any] = {}
"""What handles stand for."""

current = threading.local()
"""The CUDA context of a thread."""

_handles = itertools.count(1)


def made(thing: Any) -> int:
    objects[handle := next(_handles)] = thing
    return handle


def c(*types: Any) -> Callable[[Callable[..., int]], Any]:
    """A function as C calls it."""
    return ctypes.CFUNCTYPE(c_int, *types)


@c(POINTER(UniqueId))
def ncclGetUniqueId(found: Any) -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    identity = struct.pack(">H", listener.getsockname()[1]) + secrets.token_bytes(126)
    listeners[identity] = listener
    found[0].bytes = Id(*identity)
    return OK


@c(POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config))
def ncclCommInitRankConfig(found: Any, count: int, identity: UniqueId, rank: int, config: Any) -> int:
    given = config[0]
    if (count, given.size, given.magic, given.blocking) != (2, ctypes.sizeof(Config), 0xCAFEBEEF, 0):
        return INVALID_ARGUMENT
    if not hasattr(current, "context"):
        return INVALID_USAGE
    found[0] = made(Communicator(bytes(identity.bytes), rank))
    return IN_PROGRESS


@c(c_void_p, POINTER(c_int))
def ncclCommGetAsyncError(communicator: int, state: Any) -> int:
    if communicator not in objects:
        return INVALID_ARGUMENT
    found = objects[communicator]
    state[0] = IN_PROGRESS if found.launching else found.state
    found.launching = False
    return OK


@c(c_void_p)
def ncclCommAbort(communicator: int) -> int:
    if communicator not in objects:
        return INVALID_ARGUMENT
    objects.pop(communicator).abort()
    return OK


@c(c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
def ncclSend(address: int, count: int, type_: int, peer: int, communicator: int, stream: int) -> int:
    return move(Communicator.send, address, count, type_, peer, communicator, stream)


@c(c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
def ncclRecv(address: int, count: int, type_: int, peer: int, communicator: int, stream: int) -> int:
    return move(Communicator.receive, address, count, type_, peer, communicator, stream)


def move(how: Any, address: int, count: int, type_: int, peer: int, communicator: int, stream: int) -> int:
    found = objects.get(communicator)
    if found is None or not address or type_ != UINT8 or peer != 1 - found.rank:
        return INVALID_ARGUMENT
    if found.state == IN_PROGRESS or found.launching:
        return INVALID_USAGE
    found.launching = True
    objects[stream].work.put(lambda: how(found, address, count))
    return IN_PROGRESS


@c(POINTER(c_int), c_int)
def cuDeviceGet(found: Any, ordinal: int) -> int:
    found[0] = ordinal
    return OK


@c(POINTER(c_void_p), c_int)
def cuDevicePrimaryCtxRetain(found: Any, device: int) -> int:
    found[0] = 1000 + device
    return OK


@c(c_void_p)
def cuCtxSetCurrent(context: int) -> int:
    current.context = context
    return OK


@c(POINTER(c_void_p), c_uint)
def cuStreamCreate(found: Any, flags: int) -> int:
    found[0] = made(Stream())
    return OK


@c(POINTER(c_void_p), c_uint)
def cuEventCreate(found: Any, flags: int) -> int:
    found[0] = made(Event())
    return OK


@c(c_void_p, c_void_p)
def cuEventRecord(event: int, stream: int) -> int:
    if objects[event].context != objects[stream].context:
        return INVALID_HANDLE
    objects[stream].work.put(objects[event].set)
    return OK


@c(c_void_p)
def cuEventQuery(event: int) -> int:
    return OK if objects[event].is_set() else NOT_READY


@c(c_void_p)
def cuEventDestroy_v2(event: int) -> int:
    del objects[event]
    return OK


class Library(nccl_library.Library):
    """Arrays of CPUs know no streams: the host waits instead."""

    def export(self, array: Any, stream: c_void_p) -> Any:
        return array.block_until_ready().__dlpack__()


def find(platform: str) -> Library:
    """What `nccl_library.find` finds in tests."""
    this = sys.modules[__name__]
    return Library(this, this)
