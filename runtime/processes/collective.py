"""The transports `device_put` and `pair`, made of JAX's own copies from a device to one of another process."""

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
    """The transport by `jax.device_put` to a device of another process: NCCL on GPUs, ICI on TPUs.

    On CPUs JAX uses sockets, and matches transfers by a count over the whole job. So all processes of the job then
    count all transfers.
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
        # Each array needs a separate call: the order of arrays within one call may differ between processes.
        return [jax.device_put(array, target.sharding) for array, target in zip(arrays, targets, strict=True)]


class PairTransport(OrderedTransport):
    """The transport by a jitted `ppermute` over the sending and the receiving device: gloo on CPUs, NCCL, ICI.

    On accelerators the transfer takes its turn among the programs of both devices. The receiver passes an array of the
    same type as input, which is kept for all transfers of that type.
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
    """Returns an array of another process, without data here."""
    return jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=dtype)


@_compat.device_cache
def _kept(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """Returns the array that a receiver passes as input."""
    return zeros(jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))


@_compat.device_cache
def _permute(source: Any, target: Any) -> tuple[Any, NamedSharding]:
    """Returns a function that copies from one device to the other, and the sharding of its argument.

    Each process passes its own array as if the argument were replicated. Both directions use the same mesh, so that a
    pair of devices has one communicator.
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
