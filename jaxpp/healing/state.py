"""Splits a state into the blocks that each process holds, and joins the blocks on other devices."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from jaxpp._keys import bits_of, keys_of
from jaxpp.healing.store import Shard
from jaxpp.lowering import MpmdSharding
from jaxpp.runtime.processes.arrays import Bounds, bounds_of, overlap

HeldShard = tuple[Shard, Callable[[], Any]]
"""A shard, and a function that returns its bytes."""


def described(state: Any) -> Any:
    """Returns the state with shapes and dtypes instead of arrays, dtypes as JAX canonicalizes them. Numbers stay."""

    def describe(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | np.generic):
            return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(describe, state)


def taken(state: Any, is_first: bool) -> list[tuple[Shard, memoryview]]:
    """Returns copies of the blocks of which this process has the first copy. Waits until they are computed.

    A leaf that is not a `jax.Array` is the same in all processes. Only the first process (`is_first`) returns it.
    """
    leaves = list(map(bits_of, jax.tree.leaves(state)))
    shards = [
        (number, bounds_of(shard.index, leaf.shape), shard.data)
        for number, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array)
        for shard in leaf.addressable_shards
        if shard.replica_id == 0
    ]
    for _, _, data in shards:
        data.copy_to_host_async()
    found = [_shard(number, [low for low, _ in bounds], np.asarray(data)) for number, bounds, data in shards]
    if is_first:
        found += [
            _shard(number, [0] * np.ndim(leaf), np.asarray(leaf))
            for number, leaf in enumerate(leaves)
            if not isinstance(leaf, jax.Array)
        ]
    return found


def _shard(leaf: int, start: Sequence[int], array: np.ndarray[Any, Any]) -> tuple[Shard, memoryview]:
    copied: Any = np.array(array, order="C")  # the array may be donated to the next step
    shard = Shard(leaf, array.dtype.name, array.dtype.itemsize, start, array.shape)
    return shard, memoryview(copied.reshape(-1).view(np.uint8))


def placed(like: Any, places: Any, held: Sequence[HeldShard]) -> Any:
    """Returns a state made of shards.

    like: the result of `described`.
    places: the sharding of each leaf, as in `in_shardings` of a compiled step.
    Raises LookupError if a part of a block is missing.
    """
    leaves, structure = jax.tree.flatten(like)
    wanted = structure.flatten_up_to(places)
    by_leaf: dict[int, list[HeldShard]] = {}
    for each in held:
        by_leaf.setdefault(each[0].leaf, []).append(each)
    return jax.tree.unflatten(
        structure,
        [_leaf(leaf, place, by_leaf.get(k, [])) for k, (leaf, place) in enumerate(zip(leaves, wanted, strict=True))],
    )


def _leaf(leaf: Any, place: Any, held: Sequence[HeldShard]) -> Any:
    bits = bits_of(leaf)
    shape, dtype = np.shape(bits), jnp.dtype(bits.dtype) if hasattr(bits, "dtype") else None

    @lru_cache(maxsize=1)  # of stacked layers, consecutive blocks often come from the same shard
    def read(number: int) -> np.ndarray[Any, Any]:
        shard, get = held[number]
        return np.frombuffer(get(), np.uint8).view(jnp.dtype(shard.dtype)).reshape(shard.shape)

    def block(bounds: Bounds) -> np.ndarray[Any, Any]:
        made = np.empty([high - low for low, high in bounds], dtype or jnp.dtype(held[0][0].dtype))
        count = 0
        for number, (shard, _) in enumerate(held):
            there = [(low, low + size) for low, size in zip(shard.start, shard.shape, strict=True)]
            common = overlap(bounds, tuple(there))
            if all(low < high for low, high in common):
                source = tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(common, there, strict=True))
                target = tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(common, bounds, strict=True))
                made[target] = read(number)[source]
                count += made[target].size
        if count < made.size:
            raise LookupError(f"{count} of {made.size} elements of a block of {made.dtype.name}{list(shape)} are held")
        return made

    whole = tuple((0, size) for size in shape)
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return type(leaf)(block(whole).item())  # a number
    sharding: Sharding = place.sharding if isinstance(place, MpmdSharding) else place
    parts = [
        jax.device_put(block(bounds_of(index or (), shape)), device)
        for device, index in sharding.addressable_devices_indices_map(shape).items()
    ]
    return keys_of(jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=bits.dtype), leaf)
