"""`fetch`: returns the numbers of arrays in every process."""

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxpp import _compat
from jaxpp._keys import bits_of, keys_of
from jaxpp.runtime.processes import job
from jaxpp.runtime.processes.arrays import are_parts_here, batch_copy, in_default_layout, put
from jaxpp.runtime.processes.meetings import Meeting, MeetingKind, identity_of
from jaxpp.runtime.processes.membership import endpoint, forgotten
from jaxpp.runtime.processes.transfer import key
from jaxpp.runtime.processes.transport import ProcessTransfer
from jaxpp.runtime.processes.waiting import Waiting

_calls = itertools.count()


def _forget() -> None:
    global _calls
    _calls = itertools.count()


forgotten(_forget)


class Handle(ABC):
    """A handle of an array in other processes, such as `jaxpp.ray.RemoteArray`. `fetch` asks for its numbers.

    aval: its shape, dtype and weak type.
    """

    aval: Any

    @property
    @abstractmethod
    def sharding(self) -> Sharding:
        """The array's sharding, over devices that stand for those that hold the array."""

    @abstractmethod
    def copy_to_host_async(self) -> None:
        """Asks for the numbers, without waiting for them."""

    @abstractmethod
    def fetch(self) -> Any:
        """Returns the array in this process: a numpy array, or a `jax.Array` of random keys."""


def fetched(tree: Any) -> Any:
    """Returns `tree` with numbers instead of handles. All handles are asked before the first wait."""
    leaves, structure = jax.tree.flatten(tree)
    for leaf in leaves:
        if isinstance(leaf, Handle):
            leaf.copy_to_host_async()
    return jax.tree.unflatten(structure, [each.fetch() if isinstance(each, Handle) else each for each in leaves])


def fetch(tree: Any) -> Any:
    """Returns a pytree of arrays as numpy arrays, with the same numbers in every process.

    A result of a step is on the devices of its stage. Only processes that hold such a device can read it:
    `float(loss)` fails in the others, and `float(jaxpp.fetch(loss))` works in all. All processes must call `fetch` with
    the same tree. In one process it is `jax.device_get`, which also works for the handles of a cluster's arrays. Random
    keys stay `jax.Array`s of this process.

    Raises TransferError if a process that holds a part of an array is gone, or makes a different call meanwhile.
    """
    if jax.process_count() == 1:
        return jax.device_get(fetched(tree))
    leaves, structure = jax.tree.flatten(tree)
    given = list(map(bits_of, leaves))
    arrays = {number: _Fetched(leaf, number) for number, leaf in enumerate(given) if _is_global(leaf)}
    if arrays:
        _exchange(structure, arrays)
    with _compat.OwnTransfers():
        found = [arrays[number].read() if number in arrays else np.asarray(leaf) for number, leaf in enumerate(given)]
    return jax.tree.unflatten(structure, map(keys_of, found, leaves))


def _exchange(structure: Any, arrays: Mapping[int, "_Fetched"]) -> None:
    """Begins to send the parts that others lack, and to receive the parts that this process lacks."""
    types = ((number, jax.typeof(leaf.array), leaf.array.sharding) for number, leaf in arrays.items())
    call = next(_calls)
    job.begin(dataclasses.replace(_meeting(structure, tuple(types)), count=call))
    for array in arrays.values():
        array.send(call)
    # Each process counts its own calls. If a call has failed here, the others may have counted more.
    senders = sorted({sender for array in arrays.values() for *_, sender in array.lacks()})
    calls = {sender: endpoint().meetings.check(sender) for sender in senders}
    for array in arrays.values():
        array.ask(calls)


@_compat.device_cache
def _meeting(structure: Any, arrays: Sequence[tuple[int, Any, Sharding]]) -> Meeting:
    """Returns the message with which a process begins to fetch these arrays, leaves of a tree with this structure."""
    numbers = jax.tree.unflatten(structure, range(structure.num_leaves))
    names = [jax.tree_util.keystr(path) or "the array" for path, _ in jax.tree_util.tree_leaves_with_path(numbers)]
    lines = [
        f"{names[number]}: {aval.str_short()} on processes "
        f"{', '.join(map(str, sorted({device.process_index for device in sharding.device_set})))}"
        for number, aval, sharding in arrays
    ]
    layouts = [str(sharding.devices_indices_map(aval.shape)) for _, aval, sharding in arrays]
    count = f"{len(lines)} array{'s' if len(lines) > 1 else ''}"
    return Meeting(MeetingKind.FETCH, identity_of(*lines, *layouts), text="\n".join([count, *lines]))


def move(array: Any, sharding: Sharding) -> jax.Array:
    """Does `jax.device_put` for shardings over several processes, which all call it. Raises as `fetch`."""
    is_elsewhere = jax.process_count() > 1 and _is_global(array) and not are_parts_here(array, sharding)
    return put(fetch(array) if is_elsewhere else array, sharding)


def _is_global(leaf: Any) -> bool:
    """Whether the leaf is one array of all processes. An array on a single device belongs to one process."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf.sharding, SingleDeviceSharding)


class _Fetched:
    """One array during a `fetch`: the processes that hold a part of it send the part to all others.

    number: the index of the array among the leaves of the call, the same in all processes.
    """

    def __init__(self, array: jax.Array, number: int) -> None:
        self.array, self.number = in_default_layout(array), number
        self.transport = endpoint()
        self.here = {shard.device: shard.data for shard in self.array.addressable_shards}
        self.coming: list[tuple[tuple[slice, ...], int, Any]] = []
        """(index of the part, process that sends it, pulled array) for each part on its way."""

    def send(self, call: int) -> None:
        """Offers the parts that others lack. `call` is the number of this process's call."""
        me = self.transport.me
        for part, (_, device, holders) in enumerate(self.parts()):
            if device in self.here:
                # A copy: the array may be donated to the next step while it is still on offer.
                copied = batch_copy([SingleDeviceSharding(device)], always=True)([self.here[device]])
                for peer in set(range(jax.process_count())) - holders:
                    self.transport.offer(self._transfer(call, part, me, peer), 0, copied)

    def ask(self, calls: Mapping[int, int]) -> None:
        """Asks for the parts that this process lacks. `calls` has the number of each sender's call."""
        for part, index, sender in self.lacks():
            asked = self._transfer(calls[sender], part, sender, self.transport.me)
            self.coming.append((index, sender, self.transport.pull(asked, 0)[0]))

    def lacks(self) -> Iterator[tuple[int, tuple[slice, ...], int]]:
        """Yields (part number, index of the part, process that sends it) for each part that this process lacks."""
        for part, (index, device, holders) in enumerate(self.parts()):
            if self.transport.me not in holders:
                yield part, index, device.process_index

    def _transfer(self, call: int, part: int, sender: int, receiver: int) -> ProcessTransfer:
        """Returns the transfer of a part. `call` is the number of the sender's call."""
        shape, here = self.array.sharding.shard_shape(self.array.shape), SingleDeviceSharding(self.transport.device)
        types = [jax.ShapeDtypeStruct(shape, self.array.dtype, sharding=here)]
        number = key("fetch", sender, call, self.number, part, receiver)
        sources, targets = (types, ()) if sender == self.transport.me else ((), types)
        return ProcessTransfer(number, sender, receiver, sources, targets)

    def read(self) -> np.ndarray[Any, Any]:
        """Waits for all parts, and returns the whole array."""
        found = np.empty(self.array.shape, self.array.dtype)
        for shard in self.array.addressable_shards:
            found[shard.index] = np.asarray(shard.data)  # numpy can't assign a bfloat16 scalar of another library
        for index, sender, part in self.coming:
            found[index] = np.asarray(self.transport.wait(part, Waiting(sender, call="fetches an array")))
        return found

    def parts(self) -> Iterator[tuple[tuple[slice, ...], Any, set[int]]]:
        """Yields (index, first device that holds it, processes that hold it) for each distinct part."""
        places: dict[str, tuple[tuple[slice, ...], list[Any]]] = {}
        for device, index in self.array.sharding.devices_indices_map(self.array.shape).items():
            places.setdefault(str(index), (index or (), []))[1].append(device)
        for index, devices in places.values():
            yield index, devices[0], {device.process_index for device in devices}
