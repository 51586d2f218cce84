"""The transports `device_put` and `pair`: what JAX itself offers to copy from a device to one of another process."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpp import _compat
from jaxpp.runtime.processes.ordered import OrderedTransport, zeros
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.transport import ProcessTransfer, device_of


class DevicePutTransport(OrderedTransport):
    """`jax.device_put` to a device of another process: NCCL on GPUs, ICI on TPUs.

    On CPUs it goes over sockets, and transfers are matched by how many the whole process has begun: all processes of
    the job then count all transfers.
    """

    name = "device_put"

    def __init__(self, messages: PullTransport, counts_all: bool) -> None:
        super().__init__(messages)
        self.counts_all = counts_all

    def move(
        self, transfer: ProcessTransfer, arrays: Sequence[Any], sources: Sequence[Any], targets: Sequence[Any]
    ) -> Any:
        if transfer.sender != self.me:
            arrays = [_elsewhere(each.shape, each.dtype, each.sharding) for each in sources]
        # One call each: the order of several in one call is JAX's, and may differ between processes.
        return [jax.device_put(array, target.sharding) for array, target in zip(arrays, targets, strict=True)]


class PairTransport(OrderedTransport):
    """A jitted `ppermute` over the device that sends and the one that receives: gloo on CPUs, NCCL, ICI.

    On accelerators it takes its turn among the programs of both devices. The receiver gives an array of its own for
    the one that it gets, and keeps it for the next transfer of that type.
    """

    name = "pair"
    waits_in_xla = True

    def move(
        self, transfer: ProcessTransfer, arrays: Sequence[Any], sources: Sequence[Any], targets: Sequence[Any]
    ) -> Any:
        is_sender = transfer.sender == self.me
        given = arrays if is_sender else [_kept(each.shape, each.dtype, each.sharding) for each in targets]
        made: list[Any] = []
        for array, source, target in zip(given, sources, targets, strict=True):
            permute, sharding = _permute(device_of(source), device_of(target))
            aval = _compat.abstract_value(source.shape, source.dtype, sharding)
            made.append(_compat.shards(permute(_compat.result_handler(aval, sharding)(_compat.shards(array))))[0])
        return made


@_compat.device_cache
def _elsewhere(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """The array of another process, of which nothing is here."""
    return jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=dtype)


@_compat.device_cache
def _kept(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """The array that a receiver gives."""
    return zeros(jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))


@_compat.device_cache
def _permute(source: Any, target: Any) -> tuple[Any, NamedSharding]:
    """Return what copies from one device to the other, and the sharding of the array that it takes.

    Each process gives its own array as if it were replicated. Both directions are on one mesh, so that a pair of
    devices has one communicator.
    """
    pair = sorted([source, target], key=lambda device: device.id)
    mesh = Mesh(np.array(pair), ("pair",))
    hop = [(pair.index(source), pair.index(target))]

    def permute(array: jax.Array) -> jax.Array:
        if array.dtype.name not in ("int2", "uint2"):
            return lax.ppermute(array, "pair", hop)
        return lax.ppermute(array.astype("int8"), "pair", hop).astype(array.dtype)  # jaxlib aborts for these

    anywhere = PartitionSpec()
    function = jax.shard_map(permute, mesh=mesh, in_specs=anywhere, out_specs=anywhere, check_vma=False)
    return jax.jit(function), NamedSharding(mesh, anywhere)
