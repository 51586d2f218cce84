"""The functions of NCCL and of CUDA's driver that the transport `nccl` calls, by ctypes.

`jax[cuda12]` and `jax[cuda13]` bring NCCL. Communicators do not block (NCCL 2.14 or newer), so the calling thread can
always be ended.
"""

import contextlib
import ctypes
import importlib.util
import threading
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_int, c_size_t, c_ubyte, c_uint, c_void_p
from pathlib import Path
from typing import Any

OK, IN_PROGRESS, NOT_READY = 0, 7, 600
"""ncclSuccess and CUDA_SUCCESS, ncclInProgress, CUDA_ERROR_NOT_READY."""

_UINT8 = 1
"""ncclUint8: all values are sent as bytes."""

_NON_BLOCKING, _NO_TIMING = 1, 2
"""CU_STREAM_NON_BLOCKING: not ordered with the default stream; CU_EVENT_DISABLE_TIMING."""


class UniqueId(ctypes.Structure):
    """The type ncclUniqueId: an identity that the two ends of a communicator share."""

    _fields_ = (("internal", c_ubyte * 128),)


class Config(ctypes.Structure):
    """The type ncclConfig_t of NCCL 2.14. Later versions accept it, and use defaults for their newer fields."""

    _fields_ = (("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int))


NCCL: Mapping[str, tuple[Any, ...]] = {
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRankConfig": (POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclCommAbort": (c_void_p,),
    "ncclSend": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclRecv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
}
CUDA: Mapping[str, tuple[Any, ...]] = {
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventDestroy_v2": (c_void_p,),
}
"""The types of the arguments of each function. Each returns a code."""


class NcclError(RuntimeError):
    """A call of one of the two libraries failed, or a library is missing."""


class Communicator:
    """One direction between two devices: a communicator, and a separate stream at this end.

    rank: 0 at the sending end, 1 at the receiving end. Its calls raise NcclError. Any thread may call `abort`.
    """

    def __init__(self, library: "Library", device: int, identity: bytes, rank: int) -> None:
        self._library, self._peer = library, 1 - rank
        self._lock = threading.Lock()
        self._context = library.context(device)
        library.call("cuCtxSetCurrent", self._context)
        self.stream = library.made("cuStreamCreate", _NON_BLOCKING)
        self._communicator: c_void_p | None = c_void_p()
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 0)
        arguments = byref(self._communicator), 2, UniqueId.from_buffer_copy(identity), rank, byref(config)
        library.call("ncclCommInitRankConfig", *arguments)

    def is_idle(self) -> bool:
        """Whether the last call has done its part: made the communicator, or put a transfer on the stream."""
        with self._lock:
            state = c_int()
            self._library.call("ncclCommGetAsyncError", self._living(), byref(state))
            return self._library.checked("ncclCommGetAsyncError", state.value) == OK

    def send(self, address: int, size: int) -> None:
        """Sends `size` bytes of device memory."""
        self._move("ncclSend", address, size)

    def receive(self, address: int, size: int) -> None:
        """Receives `size` bytes into device memory."""
        self._move("ncclRecv", address, size)

    def _move(self, name: str, address: int, size: int) -> None:
        with self._lock:
            self._library.call(name, address, size, _UINT8, self._peer, self._living(), self.stream)

    def mark(self) -> "Mark":
        """Returns a mark after all transfers so far, for `has_passed`."""
        self._library.call("cuCtxSetCurrent", self._context)  # an event must be of the stream's device
        return Mark(self._library, self.stream)

    def has_passed(self, mark: "Mark") -> bool:
        """Whether all transfers before a mark are done. Raises NcclError if they never will be."""
        is_passed = mark.is_passed()
        if not is_passed or self._communicator is None:  # an aborted transfer also passes its mark
            self.is_idle()
        return is_passed

    def abort(self) -> None:
        """Ends all transfers that still wait for the other end."""
        with self._lock:
            communicator, self._communicator = self._communicator, None
            if communicator is not None:
                with contextlib.suppress(NcclError):  # the caller of `abort` already has an error
                    self._library.call("ncclCommAbort", communicator)

    def _living(self) -> c_void_p:
        if self._communicator is None:
            raise NcclError("the communicator was aborted")
        return self._communicator


class Mark:
    """A CUDA event after all current work of a stream."""

    def __init__(self, library: "Library", stream: c_void_p) -> None:
        self._library = library
        self._event: c_void_p | None = library.made("cuEventCreate", _NO_TIMING)
        library.call("cuEventRecord", self._event, stream)

    def is_passed(self) -> bool:
        """Whether the stream has reached the event."""
        if self._event is not None and self._library.call("cuEventQuery", self._event) == OK:
            self._library.call("cuEventDestroy_v2", self._event)
            self._event = None
        return self._event is None


class Library:
    """The libraries NCCL and CUDA's driver.

    nccl, cuda: the libraries, with the functions in NCCL and CUDA as attributes.
    """

    def __init__(self, nccl: Any, cuda: Any) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        for library, types in ((nccl, NCCL), (cuda, CUDA)):
            for name, arguments in types.items():
                try:
                    function = getattr(library, name)
                except AttributeError:
                    raise NcclError(f"there is no {name} in {library._name}, which is too old") from None
                function.argtypes, function.restype = arguments, c_int
                self._functions[name] = function

    def call(self, name: str, *arguments: Any) -> int:
        """Calls a function; returns its code. Raises NcclError if that is an error."""
        return self.checked(name, self._functions[name](*arguments))

    def checked(self, name: str, code: int) -> int:
        """Returns `code`, the result of function `name`. Raises NcclError if it is an error."""
        if code not in {OK, IN_PROGRESS if name.startswith("nccl") else NOT_READY}:
            raise NcclError(f"{name}: error {code}{_MEANINGS.get(code, '') if name.startswith('nccl') else ''}")
        return code

    def made(self, name: str, argument: int) -> c_void_p:
        """Calls a function of CUDA that makes an object; returns the object."""
        found = c_void_p()
        self.call(name, byref(found), argument)
        return found

    def context(self, device: int) -> c_void_p:
        """Returns the primary context of a device of this process, by its index. JAX uses the same context."""
        found = c_int()
        self.call("cuDeviceGet", byref(found), device)
        return self.made("cuDevicePrimaryCtxRetain", found.value)

    def export(self, array: Any, stream: c_void_p) -> Any:
        """Makes a stream wait until an array is computed; returns an object that keeps the array's memory."""
        return array.__dlpack__(stream=stream.value)

    def unique_id(self) -> bytes:
        """Returns an identity for a new communicator, for both its ends."""
        found = UniqueId()
        self.call("ncclGetUniqueId", byref(found))
        return bytes(found.internal)


_MEANINGS = {
    1: ", of CUDA",
    2: ", of the system",
    3: ", inside of NCCL",
    4: ", an invalid argument",
    5: ", an invalid use",
    6: ", of the network or the other end",
}
"""The meanings of the codes of ncclResult_t."""


def find(platform: str) -> Library:
    """Returns the libraries of this machine. Raises NcclError if a library is missing or the platform is not GPUs."""
    if platform != "gpu":
        raise NcclError(f"it is for GPUs, not for {platform}")
    return Library(_open("libnccl.so.2", "nvidia.nccl"), _open("libcuda.so.1"))


def _open(name: str, package: str = "") -> Any:
    """Returns the library of that name, from the system's search path or from the `lib` folder of a Python package."""
    places = [name]
    try:
        spec = importlib.util.find_spec(package) if package else None
    except ModuleNotFoundError:
        spec = None
    places += [str(Path(folder) / "lib" / name) for folder in (spec and spec.submodule_search_locations) or ()]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise NcclError(f"there is no {name}" + (", which comes with jax[cuda13]" if package else ""))
