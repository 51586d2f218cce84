"""`fetch`: the numbers of arrays, in every process."""

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxpp import _compat
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
    """An array that this process only names, as `jaxpp.ray.RemoteArray`: `fetch` asks for its numbers.

    aval: its shape, dtype and weak type.
    """

    aval: Any

    @property
    @abstractmethod
    def sharding(self) -> Sharding:
        """How it is laid out, over devices that stand for those that hold it."""

    @abstractmethod
    def copy_to_host_async(self) -> None:
        """Ask for the numbers, without waiting for them."""

    @abstractmethod
    def fetch(self) -> Any:
        """The array in this process: in numpy, or a `jax.Array` if it is one of random keys."""


def fetched(tree: Any) -> Any:
    """`tree` with the numbers of its handles instead of them, all asked for at once."""
    leaves, structure = jax.tree.flatten(tree)
    for leaf in leaves:
        if isinstance(leaf, Handle):
            leaf.copy_to_host_async()
    return jax.tree.unflatten(structure, [each.fetch() if isinstance(each, Handle) else each for each in leaves])


def fetch(tree: Any) -> Any:
    """A pytree of arrays as numpy arrays, with the same numbers in every process.

    A result of a step lives on the devices of its stage. In several processes only those that hold such a device can
    read it: `float(loss)` fails in the others, `float(jaxpp.fetch(loss))` works in all. All of them call it, with the
    same tree. In one process it is `jax.device_get`, also of what a cluster's actors hold. Random keys stay
    `jax.Array`s, of this process.

    Raises TransferError when a process that holds a part of an array is gone, or does something else meanwhile.
    """
    if jax.process_count() == 1:
        return jax.device_get(fetched(tree))
    leaves, structure = jax.tree.flatten(tree)
    keys = {number: leaf.dtype for number, leaf in enumerate(leaves) if _is_key(leaf)}
    leaves = [jax.random.key_data(leaf) if number in keys else leaf for number, leaf in enumerate(leaves)]
    arrays = {number: _Fetched(leaf, number) for number, leaf in enumerate(leaves) if _is_global(leaf)}
    if arrays:
        _exchange(structure, arrays)
    with _compat.OwnTransfers():
        leaves = [arrays[number].read() if number in arrays else np.asarray(leaf) for number, leaf in enumerate(leaves)]
    for number, dtype in keys.items():
        leaves[number] = jax.random.wrap_key_data(jnp.asarray(leaves[number]), impl=_compat.key_implementation(dtype))
    return jax.tree.unflatten(structure, leaves)


def _exchange(structure: Any, arrays: Mapping[int, "_Fetched"]) -> None:
    """Begin to send what others lack of these arrays, and to receive what this process lacks."""
    types = ((number, jax.typeof(leaf.array), leaf.array.sharding) for number, leaf in arrays.items())
    call = next(_calls)
    job.begin(dataclasses.replace(_meeting(structure, tuple(types)), count=call))
    for array in arrays.values():
        array.send(call)
    # Each process counts its calls: where one has failed, the others may have made more.
    senders = sorted({sender for array in arrays.values() for *_, sender in array.lacks()})
    calls = {sender: endpoint().meetings.check(sender) for sender in senders}
    for array in arrays.values():
        array.ask(calls)


@_compat.device_cache
def _meeting(structure: Any, arrays: Sequence[tuple[int, Any, Sharding]]) -> Meeting:
    """What a process tells the others when it fetches these arrays of all processes, leaves of such a tree."""
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
    """`jax.device_put` for shardings over several processes, which all call it. Raises as `fetch` does."""
    is_elsewhere = jax.process_count() > 1 and _is_global(array) and not are_parts_here(array, sharding)
    return put(fetch(array) if is_elsewhere else array, sharding)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and _compat.is_key_type(leaf.dtype)


def _is_global(leaf: Any) -> bool:
    """Whether it is one array of all processes. On a device without a mesh each process has one of its own."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf.sharding, SingleDeviceSharding)


class _Fetched:
    """One array while it goes from the processes that hold a part of it to all others.

    number: that of the array among those of a call, the same in all of them.
    """

    def __init__(self, array: jax.Array, number: int) -> None:
        self.array, self.number = in_default_layout(array), number
        self.transport = endpoint()
        self.here = {shard.device: shard.data for shard in self.array.addressable_shards}
        self.coming: list[tuple[tuple[slice, ...], int, Any]] = []
        """(where, the process that sends it, the part)"""

    def send(self, call: int) -> None:
        """Offer the parts that others lack, in this process's call of this number."""
        me = self.transport.me
        for part, (_, device, holders) in enumerate(self.parts()):
            if device in self.here:
                # A copy: the array may be donated to the next step while it is still on offer.
                copied = batch_copy([SingleDeviceSharding(device)], always=True)([self.here[device]])
                for peer in set(range(jax.process_count())) - holders:
                    self.transport.offer(self._transfer(call, part, me, peer), 0, copied)

    def ask(self, calls: Mapping[int, int]) -> None:
        """Ask for the parts that this process lacks, in the calls of those that send them."""
        for part, index, sender in self.lacks():
            asked = self._transfer(calls[sender], part, sender, self.transport.me)
            self.coming.append((index, sender, self.transport.pull(asked, 0)[0]))

    def lacks(self) -> Iterator[tuple[int, tuple[slice, ...], int]]:
        """(number, where, the process that sends it) of each part that this process lacks."""
        for part, (index, device, holders) in enumerate(self.parts()):
            if self.transport.me not in holders:
                yield part, index, device.process_index

    def _transfer(self, call: int, part: int, sender: int, receiver: int) -> ProcessTransfer:
        """A part on its way; `call` is the number of the sender's call."""
        shape, here = self.array.sharding.shard_shape(self.array.shape), SingleDeviceSharding(self.transport.device)
        types = [jax.ShapeDtypeStruct(shape, self.array.dtype, sharding=here)]
        number = key("fetch", sender, call, self.number, part, receiver)
        sources, targets = (types, ()) if sender == self.transport.me else ((), types)
        return ProcessTransfer(number, sender, receiver, sources, targets)

    def read(self) -> np.ndarray[Any, Any]:
        """The whole array, when all parts have arrived."""
        found = np.empty(self.array.shape, self.array.dtype)
        for shard in self.array.addressable_shards:
            found[shard.index] = np.asarray(shard.data)  # numpy takes no scalar of bfloat16 from another library
        for index, sender, part in self.coming:
            found[index] = np.asarray(self.transport.wait(part, Waiting(sender)))
        return found

    def parts(self) -> Iterator[tuple[tuple[slice, ...], Any, set[int]]]:
        """(where, the first device that holds it, the processes that do) of each distinct part."""
        places: dict[str, tuple[tuple[slice, ...], list[Any]]] = {}
        for device, index in self.array.sharding.devices_indices_map(self.array.shape).items():
            places.setdefault(str(index), (index or (), []))[1].append(device)
        for index, devices in places.values():
            yield index, devices[0], {device.process_index for device in devices}
