"""Arrays that are placed shard by shard."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpp.runtime.processes.arrays import put


@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec()])
def test_shards_change_places_on_the_same_devices(spec: PartitionSpec, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is compiled for it: XLA would print warnings that no user understands."""
    devices = np.array(jax.devices()[:4])
    value = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    before = jax.device_put(value, NamedSharding(Mesh(devices, ("x",)), spec))
    wanted = NamedSharding(Mesh(devices[[0, 3, 2, 1]], ("x",)), spec)
    with jax.log_compiles():
        moved = put(before, wanted)
    assert caplog.messages == []
    assert moved.sharding == wanted
    assert np.array_equal(moved, value)
    assert all(np.array_equal(shard.data, value[shard.index]) for shard in moved.addressable_shards)
