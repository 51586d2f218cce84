"""States that are taken apart, kept in a Store, and put together on other devices."""

import socket
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxpp.healing.messages import dial
from jaxpp.healing.state import described, placed, taken
from jaxpp.healing.store import StatePart, Store, get, put, shards_of


def sharded(shards: int, *axes: str | None) -> NamedSharding:
    return NamedSharding(jax.make_mesh((shards,), ("x",), devices=jax.devices()[:shards]), PartitionSpec(*axes))


def test_a_state_on_other_devices() -> None:
    rows = np.arange(96, dtype=np.float32).reshape(12, 8)
    state: dict[str, Any] = {
        "rows": jax.device_put(rows, sharded(4, "x")),
        "columns": jax.device_put(rows.astype(jnp.bfloat16), sharded(4, None, "x")),
        "everywhere": jax.device_put(rows, sharded(4)),
        "key": jax.device_put(jax.random.key(5), sharded(4)),
        "empty": jax.device_put(rows[:0], sharded(4)),
        "numpy": rows[0],
        "scalar": np.float32(2.5),
        "number": 3,
    }
    store = Store("127.0.0.1", b"secret")
    connection = dial(store.address, b"secret")
    part = StatePart(1, 7, 0, 1)
    put(connection, part, taken(state, True))
    kept = shards_of(connection, part)
    assert sum(shard.leaf == 2 for shard in kept) == 1  # dictionaries are sorted: `everywhere`, held once
    held = [(shard, lambda k=k, shard=shard: get(connection, part, k, shard)) for k, shard in enumerate(kept)]
    places = {name: sharded(3) for name in state} | {"rows": sharded(3, "x"), "columns": sharded(2, None, "x")}
    found = placed(described(state), places, held)
    for name in ("rows", "columns", "everywhere", "empty"):
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(state[name]))
        assert (found[name].sharding, found[name].dtype) == (places[name], state[name].dtype)
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(state["key"]).tolist()
    assert found["numpy"].tolist() == rows[0].tolist()
    assert (found["scalar"], found["scalar"].dtype, found["number"]) == (2.5, np.float32, 3)
    assert found["numpy"].sharding == found["scalar"].sharding == sharded(3)

    half = [(shard, get) for shard, get in held if shard.leaf != 6 or shard.start == [0, 0]]
    with pytest.raises(LookupError, match=r"^24 of 32 elements of a block of float32\[12, 8\] are held$"):
        placed(described(state), places, half)

    store.drop_before(1, 8)
    assert shards_of(connection, part) == []


def test_a_stranger_is_refused() -> None:
    store = Store("127.0.0.1", b"secret")
    with pytest.raises(ConnectionError, match=r"has another job secret \(JAXPP_JOB_SECRET\), or what listens there"):
        dial(store.address, b"another")
    host, port = store.address.split(":")
    with socket.create_connection((host, int(port))) as silent:  # holds up nobody
        assert shards_of(dial(store.address, b"secret"), StatePart(1, 1, 0, 1)) == []
        assert silent.recv(4)
