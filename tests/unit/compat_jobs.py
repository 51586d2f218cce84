"""What one process of `jax.distributed` does with the private names around processes: see `unit.runtime.together`."""

import signal
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from jaxpp import _compat, _jobs


def before_a_backend_starts() -> list[Any]:
    """Whether the backends were starting, before and after; and the numbers of the processes."""
    before = _jobs.is_backend_starting()
    numbers = _jobs.process_numbers()
    jax.devices()
    return [before, _jobs.is_backend_starting(), *numbers]


def preemption_on_demand() -> list[bool]:
    """Whether SIGTERM ends this process as it does others, before and after JAX's preemption service is asked for."""
    with pytest.raises(RuntimeError, match=r"must be called before|only be called once"):  # as `together.run` did
        _jobs.initialize_distributed("127.0.0.1:1", 1, 0)
    signals = []
    for _ in range(2):
        with open("/proc/self/status", encoding="ascii") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
        signals.append(bool(caught >> signal.SIGTERM - 1 & 1))
        _jobs.start_preemption_service()
    return [*signals, multihost_utils.reached_preemption_sync_point(0)]


def through_the_store() -> str:
    assert _jobs.coordinator_address().startswith("127.0.0.1:")
    _jobs.key_value_store().key_value_set("here", "there")
    return str(_jobs.key_value_store().blocking_key_value_get("here", 1000))


def through_a_transfer() -> int:
    """The length of an array that this process offers and pulls; errors are pulled as well."""
    device = jax.devices()[0]
    server = _compat.start_transfer_server(device, "127.0.0.1")
    connection = server.connect(server.address())
    numbers = np.arange(4, dtype=np.int32)
    array = jax.device_put(numbers, device)
    type_ = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
    _compat.offer(server, 1, [array])
    (pulled,) = _compat.pull(connection, 1, device, [type_])
    np.testing.assert_array_equal(pulled, numbers)
    _compat.offer(server, 2, [_compat.error_array(type_, "as it should")])
    with pytest.raises(RuntimeError, match="as it should"):
        _compat.pull(connection, 2, device, [type_])[0].block_until_ready()
    waiting = _compat.pull(connection, 3, device, [type_])[0]
    _compat.poison(connection)
    with pytest.raises(RuntimeError):
        waiting.block_until_ready()
    return len(pulled)


def without_farewell() -> bool:
    _jobs.skip_farewell()
    return _jobs.key_value_store() is None
