"""The transport `nccl`: direct calls of NCCL, on separate streams."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpp import _compat
from jaxpp.runtime.processes.faults import PeerError
from jaxpp.runtime.processes.membership import forgotten, publish, published
from jaxpp.runtime.processes.nccl_library import Communicator, Library, Mark, NcclError
from jaxpp.runtime.processes.ordered import OrderedTransport
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.transport import ProcessTransfer, device_of
from jaxpp.runtime.processes.waiting import TransferError, Waiting

_CARRIERS = {**dict.fromkeys(("int2", "uint2", "int4", "uint4"), "int8"), "float4_e2m1fn": "float16"}
"""The dtypes that stand for dtypes which DLPack lacks, or whose memory layout DLPack does not specify."""


@dataclasses.dataclass(slots=True)
class _Arriving:
    """An array that is being received. JAX takes it for computed, so nobody may use the array before `is_ready`.

    memory: keeps the memory that is being written, even if the array is deleted.
    """

    array: Any
    dtype: Any
    memory: Any
    communicator: Communicator
    mark: Mark
    has_arrived: bool = False
    error: NcclError | None = None

    def is_ready(self) -> bool:
        """Whether the array has arrived, or never will; then `block_until_ready` raises the error."""
        if not self.has_arrived and self.error is None:
            try:
                self.has_arrived = self.communicator.has_passed(self.mark)
            except NcclError as error:
                self.error = error
        return self.has_arrived or self.error is not None

    def block_until_ready(self) -> None:
        """Raises the error if the array will not arrive."""
        if self.error is not None:
            raise self.error


class NcclTransport(OrderedTransport):
    """The transport by `ncclSend` and `ncclRecv`. Each direction between two devices has a communicator and a stream.

    Directions and pairs of devices do not wait for one another. Neither do a device's programs wait for its transfers.
    The stream, not the host, waits for the program that makes a sent array. A sent array can't be donated before it is
    sent: JAX then copies it.

    The array to receive into is allocated among the programs of its device. So each direction keeps a spare array of
    each type, which it makes when it takes the former spare. These arrays need memory beyond `peak_bytes`: one for each
    type that a direction ever receives.
    """

    name = "nccl"

    def __init__(self, messages: PullTransport, library: Library) -> None:
        super().__init__(messages)
        self._library = library
        self._communicators: dict[tuple[int, int], Communicator] = {}
        """The communicator of each direction, by the sending and the receiving device."""
        self._spare: dict[Any, Any] = {}
        """By (communicator, function that makes an array of a type): the array for the next receive."""
        self._sent: list[tuple[Mark, Any]] = []
        """The memory of each array that is being sent, and the mark after the send."""
        self._place = f"jaxpp/nccl/{len(_transports)}"
        _transports.append(self)

    def move(
        self, transfer: ProcessTransfer, arrays: Sequence[Any], sources: Sequence[Any], targets: Sequence[Any]
    ) -> Any:
        self._sent = [each for each in self._sent if not each[0].is_passed()]
        if transfer.sender == self.me:
            for array, target in zip(arrays, targets, strict=True):
                self._send(transfer, array, target)
            return []
        return [self._receive(transfer, *ends) for ends in zip(sources, targets, strict=True)]

    def _send(self, transfer: ProcessTransfer, array: Any, target: Any) -> None:
        communicator = self._communicator(transfer, array, target)
        carrier = _cast(array, _CARRIERS.get(array.dtype.name, array.dtype))
        memory = self._library.export(carrier, communicator.stream)
        communicator.send(carrier.unsafe_buffer_pointer(), carrier.nbytes)
        self._finish(communicator)
        self._sent.append((communicator.mark(), memory))

    def _receive(self, transfer: ProcessTransfer, source: Any, target: Any) -> _Arriving:
        communicator = self._communicator(transfer, source, target)
        make = _maker(target.shape, _CARRIERS.get(target.dtype.name, target.dtype), target.sharding)
        array = self._spare.pop((communicator, make), None)
        if array is None:
            array = make()
        self._spare[communicator, make] = make()
        memory = self._library.export(array, communicator.stream)
        communicator.receive(array.unsafe_buffer_pointer(), array.nbytes)
        self._finish(communicator)
        return _Arriving(array, target.dtype, memory, communicator, communicator.mark())

    def _communicator(self, transfer: ProcessTransfer, source: Any, target: Any) -> Communicator:
        """Returns the communicator of this direction. Both ends make it at their first transfer there."""
        ends = device_of(source), device_of(target)
        if ends not in self._communicators:
            key = f"{self._place}/{ends[0].id}-{ends[1].id}"
            is_sender = transfer.sender == self.me
            if is_sender:
                publish(key, identity := self._library.unique_id())
            else:
                identity = published(key, transfer.sender, look=self._look)
            communicator = Communicator(
                self._library, ends[not is_sender].local_hardware_id, identity, int(not is_sender)
            )
            self._communicators[ends] = communicator
            self._finish(communicator)
        return self._communicators[ends]

    def _finish(self, communicator: Communicator) -> None:
        """Waits until the last NCCL call has done its part. Only the first transfer waits for the other end."""
        while not communicator.is_idle():
            self._look()
            time.sleep(1e-4)

    def _look(self) -> None:
        if self._broken:
            raise TransferError(self._broken)

    def arrived(self, made: Any) -> Any:
        if not isinstance(made, _Arriving):
            return made
        made.memory = None  # otherwise the array could not be donated
        return _cast(made.array, made.dtype)

    def wait(self, array: Any, waiting: Waiting) -> Any:
        with self._aborting():
            return super().wait(array, waiting)

    def settle(self, waiting: Waiting) -> None:
        with self._aborting():
            super().settle(waiting)

    @contextlib.contextmanager
    def _aborting(self) -> Generator[None]:
        """Aborts all transfers if a process is gone. Otherwise they would wait on the device forever."""
        try:
            yield
        except PeerError as error:
            self.abort(str(error))
            raise

    def abort(self, reason: str) -> None:
        """Makes no more transfers, and ends those that wait for their other end."""
        self._break(reason)
        for communicator in list(self._communicators.values()):
            communicator.abort()

    def finish(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        super().finish(seconds)
        while time.monotonic() < end and not all(mark.is_passed() for mark, _ in self._sent):
            time.sleep(0.01)
        self.abort(f"process {self.me} has ended")


_transports: list[NcclTransport] = []
"""The transports of this job. All processes make equally many, and each transport has separate communicators."""


def _forget() -> None:
    for each in _transports:
        each.abort(f"process {each.me} has left the job")
    _transports.clear()


forgotten(_forget)


@_compat.device_cache
def _maker(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Callable[[], Any]:
    """Returns a function that makes an array to receive into, each time in new memory."""
    return jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=sharding)


def _cast(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else _convert(array, dtype)


_convert = jax.jit(lax.convert_element_type, static_argnums=1)
