"""What the two processes of test_processes.py run, with two devices each; DIRECTORY is where they save."""

import itertools
import os
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from unit.checkpoint.training import STEPS, batch, pipeline

import jaxpp
from jaxpp import checkpoint
from jaxpp.checkpoint import handler
from jaxpp.runtime.processes.waiting import TransferError

NUMBERS = np.arange(24, dtype=np.float32).reshape(4, 6)


def state(swapped: bool = False) -> dict[str, Any]:
    """Arrays of one process, of the other, of both; `swapped`: each elsewhere."""
    devices = np.array(jax.devices()).reshape(2, 2)
    both, first, second = (Mesh(each, ("mpmd", "data")) for each in (devices, devices[:1], devices[1:]))
    if swapped:
        first, second = second, first
    return {
        "first": place(NUMBERS, NamedSharding(first, P("data"))),
        "second": place(NUMBERS + 1, NamedSharding(second, P(None, "data"))),
        "on both": place(NUMBERS + 2, NamedSharding(both, P("data") if swapped else P())),
        "stacked": place(NUMBERS + 3, NamedSharding(both, P("data", "mpmd") if swapped else P("mpmd"))),
        "bfloat16": place(NUMBERS.astype(jnp.bfloat16), NamedSharding(second, P())),
        "keys": jax.random.wrap_key_data(place(np.arange(8, dtype=np.uint32).reshape(4, 2), NamedSharding(first, P()))),
        "empty": place(NUMBERS[:0], NamedSharding(second, P())),
        "numpy": NUMBERS[0],
        "number": 3,
    }


def place(array: np.ndarray[Any, Any], sharding: NamedSharding) -> jax.Array:
    """The array, of which this process makes its part."""
    indices = sharding.addressable_devices_indices_map(array.shape)
    parts = [jax.device_put(array[index], device) for device, index in indices.items()]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, parts, dtype=array.dtype)


def assert_same(found: Any, expected: Any) -> None:
    """The same parts on the devices of this process."""
    assert type(found) is type(expected)
    if not isinstance(expected, jax.Array):
        np.testing.assert_array_equal(found, expected, strict=True)
        return
    assert (found.shape, found.dtype, found.sharding) == (expected.shape, expected.dtype, expected.sharding)
    if jnp.issubdtype(expected.dtype, jax.dtypes.prng_key):
        found, expected = jax.random.key_data(found), jax.random.key_data(expected)
    for one, other in zip(found.addressable_shards, expected.addressable_shards, strict=True):
        assert one.index == other.index
        np.testing.assert_array_equal(one.data, other.data)


def exchange() -> list[int]:
    """Save arrays of one process or both, restore each elsewhere; how many parts of each are here at first."""
    directory = os.environ["DIRECTORY"] + "/exchanged"
    checkpoint.save(directory, 1, state())
    jax.tree.map(assert_same, checkpoint.restore(directory, state(swapped=True)), state(swapped=True))
    return [len(value.addressable_shards) for value in state().values() if isinstance(value, jax.Array)]


def go_on() -> list[float]:
    """Go on with a training that one process has begun, saving as it goes; the losses that this process holds."""
    directory = os.environ["DIRECTORY"] + "/training"
    step = pipeline(jaxpp.schedules.Std1F1B(2), 2, slice(4), 2)
    first = checkpoint.latest_step(directory)
    assert first is not None
    current, losses = checkpoint.restore(directory, step.in_shardings[0][0]), []
    with checkpoint.Saver(directory) as saver:
        for number in range(first, STEPS):
            current, loss = step(current, batch(number))
            losses += [float(shard.data) for shard in loss.addressable_shards[:1]]
            saver.save(number + 1, current)  # written while the next step runs in the memory of this state
    return losses


def until_told() -> list[int]:
    """Run until one of the processes is told to end; the steps that are saved then."""
    directory = os.environ["DIRECTORY"] + "/preempted"
    with checkpoint.Saver(directory, keep=1) as saver, checkpoint.Preemption() as preemption:
        for step in itertools.count():
            time.sleep(0.01)
            if step == 3 and jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if preemption.reached(step):
                saver.save(step, state())
                break
    return checkpoint.all_steps(directory)


def killed() -> None:
    """Save a step; in the middle of the next the second process dies."""
    with checkpoint.Saver(os.environ["DIRECTORY"]) as saver:
        saver.save(1, state())
        saver.wait_until_finished()
        if jax.process_index() == 1:
            handler.ShardsHandler.serialize = die  # pyright: ignore[reportAttributeAccessIssue]  # it takes anything
        saver.save(2, state())


def killed_as_it_begins() -> None:
    """Save a step; the second process dies where orbax lets all begin the next one together, in the main thread."""
    saver = checkpoint.Saver(os.environ["DIRECTORY"])
    saver.save(1, state())
    saver.wait_until_finished()
    if jax.process_index() == 1:

        def dies(*_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        saver._checkpointer.save = dies
    try:
        saver.save(2, state())
    except TransferError as error:
        print(f"told: {error}", flush=True)
        try:
            saver.close()
        except OSError as problem:
            print(f"closed: {problem}", flush=True)
        os._exit(3)  # JAX ends a process whose job has lost one, and not by a code of ours


async def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
