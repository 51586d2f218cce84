"""Arrays over the devices of several processes: the part that each process holds, and copies to other devices."""

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxpp import _compat

Bounds = tuple[tuple[int, int], ...]
"""(start, end) of a part of an array, for each dimension."""


def put(value: Any, sharding: Sharding) -> jax.Array:
    """Places `value`, a numpy array or a `jax.Array`. Each process places the shards of its devices.

    `jax.device_put` is not used across processes, because it makes all processes compare their values, and keeps the
    memory layout of an array. Raises LookupError if a shard needs a part that only another process holds.
    """
    if isinstance(value, jax.Array):
        value = in_default_layout(value)
    is_here = not isinstance(value, jax.Array) or value.is_fully_addressable
    if is_here and sharding.is_fully_addressable:
        kind = sharding.memory_kind
        if isinstance(value, jax.Array) and kind is not None and value.sharding.memory_kind != kind:
            # If the sharding has fewer devices than the array, JAX ignores the change of memory kind (0.12).
            value = jax.device_put(value, value.sharding.with_memory_kind(kind))
        if not _is_reordered(value, sharding):
            return jax.device_put(value, sharding)
    whole = np.asarray(value) if is_here and not sharding.is_fully_addressable else None
    indices = sharding.addressable_devices_indices_map(value.shape)
    parts = [
        jax.device_put(
            _part(value, index) if whole is None else whole[index],
            SingleDeviceSharding(device, memory_kind=sharding.memory_kind),
        )
        for device, index in indices.items()
    ]
    return jax.make_array_from_single_device_arrays(value.shape, sharding, parts, dtype=value.dtype)


def in_default_layout(array: jax.Array) -> jax.Array:
    """Returns the array with its local shards in the memory layout that compiled programs and other processes expect.

    A shard with another layout is copied through the host. On CPUs a direct copy would be read wrongly: after a move to
    another device the buffer has the default layout, but the array still reports the former layout.
    """
    shards = [shard.data for shard in array.addressable_shards]
    if all(map(_compat.is_default_layout, shards)):
        return array
    laid = [jax.device_put(_compat.to_host(shard), shard.sharding) for shard in shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, laid, dtype=array.dtype)


def _is_reordered(value: Any, sharding: Sharding) -> bool:
    """Whether the shards only change places on the same devices. JAX compiles that, with warnings of XLA (0.12)."""
    if not isinstance(value, jax.Array) or value.sharding.device_set != sharding.device_set:
        return False
    before, after = (each.devices_indices_map(value.shape) for each in (value.sharding, sharding))
    return [*before] != [*after] and are_parts_here(value, sharding)


def _part(array: jax.Array, index: Any) -> jax.Array:
    """Returns the part of `array` at `index`, out of one of this process's shards. Raises LookupError otherwise."""
    wanted = bounds_of(index, array.shape)
    for shard in array.addressable_shards:
        held = bounds_of(shard.index, array.shape)
        if covers(held, wanted):
            cut = [slice(start - low, end - low) for (low, _), (start, end) in zip(held, wanted, strict=True)]
            return shard.data if held == wanted else shard.data[tuple(cut)]
    raise LookupError


def are_parts_here(array: jax.Array, sharding: Sharding) -> bool:
    """Whether every process can `put` the array in this sharding from its shards. All processes get the same answer."""
    held: dict[int, list[Bounds]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        held.setdefault(device.process_index, []).append(bounds_of(index, array.shape))
    return all(
        any(covers(bounds, bounds_of(index, array.shape)) for bounds in held.get(device.process_index, ()))
        for device, index in sharding.devices_indices_map(array.shape).items()
    )


def bounds_of(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    """Returns the bounds of the part at `index`, such as a shard's index, of an array of this shape."""
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


def overlap(one: Bounds, other: Bounds) -> Bounds:
    """Returns the common part of both. If there is none, an end is not greater than its start."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def covers(whole: Bounds, part: Bounds) -> bool:
    """Whether all of `part` is in `whole`."""
    return overlap(whole, part) == part


def batch_copy(shardings: Sequence[Any], always: bool = False) -> Callable[[Sequence[Any]], list[Any]]:
    """Returns a function that copies one array to each of `shardings`, in one asynchronous call.

    If the arrays are over the devices of several processes, each process copies its shards.
    """
    if not all(sharding.is_fully_addressable for sharding in shardings):
        return _copy_of_shards(shardings, always)
    copy = _compat.copy_function()
    devices, targets, semantics = _compat.copy_arguments(shardings, always)
    return lambda arrays: copy(arrays, devices, targets, semantics)


def _copy_of_shards(shardings: Sequence[Any], always: bool) -> Callable[[Sequence[Any]], list[Any]]:
    """Returns the function of `batch_copy` for shards that stay on their devices: a copy to other memory or buffers."""
    here = [
        [
            SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
            for device in sharding.mesh.devices.flat
            if device in sharding.addressable_devices
        ]
        for sharding in shardings
    ]
    copy = batch_copy(list(chain.from_iterable(here)), always)

    def run(arrays: Sequence[Any]) -> list[Any]:
        made = iter(copy(list(chain.from_iterable(map(_compat.shards, arrays)))))
        return [
            _compat.result_handler(_compat.abstract_value(array.shape, array.dtype, sharding), sharding)(
                list(islice(made, len(each)))
            )
            for array, sharding, each in zip(arrays, shardings, here, strict=True)
        ]

    return run
