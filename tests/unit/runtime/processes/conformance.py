"""What every transport has to do, in two processes: they run these jobs by the transport of JAXPP_TRANSPORT."""

import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from unit.runtime.processes import jobs
from unit.runtime.processes.fault_jobs import raised, tell
from unit.runtime.processes.random_programs import RandomProgram
from unit.runtime.programs import parse

from jaxpp import _compat, distributed, runtime
from jaxpp.runtime.processes import choice, job, membership
from jaxpp.runtime.processes.transfer import key
from jaxpp.runtime.processes.transport import ProcessTransfer, Transport
from jaxpp.runtime.processes.waiting import Waiting

DTYPES = (
    *("bool", "int4", "uint4", "int8", "uint16", "int64", "float16", "bfloat16", "float32", "float64", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "int2", "uint2"),
)
SHAPES = ((), (0,), (3, 0), (1,), (7, 5))
MEGABYTES = int(os.environ.get("MEGABYTES", "4"))

Sent = tuple[int, list[np.ndarray[Any, Any]]]
"""(sender, arrays)"""


def transfers(sent: Sequence[Sent], name: str) -> list[ProcessTransfer]:
    """The transfers of these arrays between the two processes."""
    found: list[ProcessTransfer] = []
    for number, (sender, arrays) in enumerate(sent):
        ends = [
            [jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=SingleDeviceSharding(device)) for array in arrays]
            for device in (jax.local_devices(process_index=process)[0] for process in (sender, 1 - sender))
        ]
        found.append(ProcessTransfer(key(name, number), sender, 1 - sender, *ends))
    return found


def placed(array: np.ndarray[Any, Any]) -> jax.Array:
    return _compat.to_device(array, SingleDeviceSharding(jax.local_devices()[0]))


def waiting() -> Waiting:
    me = jax.process_index()
    return Waiting(1 - me, me, "receive on channel 7 from", [[0], [1]])


def exchange(transport: Transport, sent: Sequence[Sent], name: str, step: int = 0) -> list[list[Any]]:
    """Send all of these, each process in an order of its own; what this process received, by transfer."""
    planned, me = transfers(sent, name), jax.process_index()
    transport.begin(planned, step)
    mine = random.Random(me).sample(range(len(sent)), len(sent))
    pulled: dict[int, list[Any]] = {}
    for number in mine:
        if planned[number].sender == me:
            transport.offer(planned[number], step, [placed(each) for each in sent[number][1]])
        else:
            pulled[number] = transport.pull(planned[number], step)
    arrived = {each: [transport.wait(array, waiting()) for array in pulled[each]] for each in mine if each in pulled}
    return [arrived.get(number, []) for number in range(len(sent))]


def check(transport: Transport, sent: Sequence[Sent], name: str, step: int = 0) -> None:
    """`exchange`; and what arrived is bit for bit what was sent."""
    for (_, expected), found in zip(sent, exchange(transport, sent, name, step), strict=True):
        for one, other in zip(found, expected, strict=bool(found)):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert np.asarray(one).tobytes() == other.tobytes()


def all_values() -> None:
    """All types and shapes, both ways; several arrays in one; large ones; the same transfers in several steps."""
    transport = choice.transport()
    rng = np.random.default_rng(0)

    def values(shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
        return np.asarray(rng.integers(0, 2, shape)).astype(getattr(ml_dtypes, dtype, dtype))

    sent = [(number % 2, [values((5,), dtype)]) for number, dtype in enumerate(DTYPES)]
    sent += [(number % 2, [values(shape, "float32")]) for number, shape in enumerate(SHAPES)]
    sent += [(0, [values((2,), "int32"), values((3,), "bool"), values((), "int32")])]
    with jax.enable_x64(True):
        check(transport, sent, "values")
        check(transport, sent, "values", 1)
    start = time.monotonic()
    check(transport, [(k, [np.full((MEGABYTES << 18,), k + 1, "f4")]) for k in range(2)], "large")
    tell(megabytes=MEGABYTES, seconds=time.monotonic() - start)


def late_values() -> None:
    """What is sent is not computed yet, and nobody keeps it. What was received can be donated."""
    transport, me = choice.transport(), jax.process_index()
    planned = transfers([(0, [np.zeros((256, 256), "f4")])] * 3, "late")
    transport.begin(planned, 0)

    @jax.jit
    def slow(x: jax.Array) -> jax.Array:
        for _ in range(20):
            x = x @ x / 256
        return x

    for number, transfer in enumerate(planned):
        if me == 0:
            transport.offer(transfer, 0, [slow(placed(np.full((256, 256), number, "f4")))])
        else:
            pulled = transport.pull(transfer, 0)[0]
            found = transport.wait(pulled, waiting())
            assert np.unique(found) == [0.0, 1.0, np.inf][number]
            jax.jit(jnp.negative, donate_argnums=0)(found)
            assert found.is_deleted()


def programs() -> None:
    """Random programs of four meshes, two in each process, bit for bit what numpy gives; two steps of each."""
    first = int(os.environ.get("FIRST_PROGRAM", "0"))
    meshes = [Mesh(np.array([[device]]), ("mpmd", "data")) for device in jax.devices()]
    for seed in range(first, first + int(os.environ.get("RANDOM_PROGRAMS", "2"))):
        program = RandomProgram(seed)
        peers = job.peers(meshes, lambda text=program.text: text)
        step = runtime.Executable(parse(program.text), meshes, peers=peers)
        for _ in range(2):
            for found, expected in zip(step(program.arguments), program.expected, strict=True):
                for shard in found.addressable_shards:
                    np.testing.assert_array_equal(shard.data, expected)


def donated_values() -> None:
    """Training steps whose weights are donated, and one sent before that: by stages of a process, and over both."""
    jobs.several_meshes_each()
    jobs.meshes_across_processes()


def programs_and_a_step() -> None:
    """`programs`; and a training step of a stage in each process, compared with plain jax.jit."""
    programs()
    jobs.check(jax.process_count(), steps=2)


def other_orders() -> None:
    """The two processes send in different orders: told where transfers have tags, or else right."""
    transport, me = choice.transport(), jax.process_index()
    os.environ["JAXPP_CHECK_TRANSFERS"] = str(me)
    if transport.is_ordered:
        raised(lambda: job.peers([Mesh(np.array([[device]]), ("mpmd", "data")) for device in jax.devices()], str))
    os.environ["JAXPP_CHECK_TRANSFERS"] = "1"
    choice.transport.cache_clear()
    sent: list[Sent] = [(0, [np.full(4, k, "i4")]) for k in range(2)]
    transport, planned, me = choice.transport(), transfers(sent, "order"), jax.process_index()
    transport.begin(planned[:: 1 - 2 * me], 0)
    for number in range(2):
        if me == 0:
            transport.offer(planned[number], 0, [placed(np.full(4, number, "i4"))])
    if me == 1:
        pulled = [transport.pull(each, 0)[0] for each in planned]
        raised(lambda: tell(found=[np.asarray(transport.wait(each, waiting())).tolist() for each in pulled]))
    job.gather("")
    choice.transport.cache_clear()
    tell(orders=True)


def another_size() -> None:
    """The sender has fewer numbers than the receiver asks for: an error where transfers have tags."""
    os.environ["JAXPP_CHECK_TRANSFERS"] = "1"
    transport, me = choice.transport(), jax.process_index()
    planned = transfers([(1, [np.zeros(4 if me == 1 else 8, "f4")])], "size")
    transport.begin(planned, 0)
    if me == 1:
        transport.offer(planned[0], 0, [placed(np.ones(4, "f4"))])
        transport.settle(waiting())
    else:
        raised(lambda: transport.wait(transport.pull(planned[0], 0)[0], waiting()))
    job.gather("")


def failing() -> None:
    """What is sent could not be computed."""
    transport, me = choice.transport(), jax.process_index()
    planned = transfers([(1, [np.zeros(4, "f4")])], "failing")
    transport.begin(planned, 0)
    if me == 1:
        transport.offer(planned[0], 0, [_compat.error_array(planned[0].sources[0], "the disk is full")])
        raised(lambda: transport.settle(waiting()))
    else:
        raised(lambda: transport.wait(transport.pull(planned[0], 0)[0], waiting()))
    if transport.is_ordered and me == 1:
        raised(lambda: transport.check([0]))
    elif transport.is_ordered:
        raised(lambda: membership.endpoint().wait(membership.endpoint().fetch(1), Waiting(1)))


def abandoned() -> None:
    """A step that fails when it has sent everything, but not asked for all."""
    planned = transfers([(1, [np.zeros(4, "f4")]), (0, [np.zeros(4, "f4")])], "abandoned")
    transport, messages = choice.transport(), membership.endpoint()
    transport.begin(planned, 0)
    if jax.process_index() == 1:
        transport.offer(planned[0], 0, [placed(np.zeros(4, "f4"))])
        transport.settle(waiting())
        transport.abandon("process 1 failed: OSError: the disk is full")
        if transport.is_ordered:
            raised(lambda: transport.check([0]))
    else:
        transport.wait(transport.pull(planned[0], 0)[0], waiting())
        if transport.is_ordered:
            raised(lambda: messages.wait(messages.fetch(1), Waiting(1)))
    choice.transport.cache_clear()


def one_is_killed() -> None:
    """After all that goes well."""
    for each in (all_values, late_values, programs, donated_values):
        each()
    lose(signal.SIGKILL)


def one_is_stopped() -> None:
    """After steps that failed, of which it has told."""
    abandoned()
    planned = transfers([(1, [np.zeros(4, "f4")])], "refused")
    transport = choice.transport()
    transport.begin(planned, 0)
    if jax.process_index() == 1:
        transport.fail(planned[0], 0, "process 1 failed: OSError: the disk is full")
    else:
        raised(lambda: transport.wait(transport.pull(planned[0], 0)[0], waiting()))
    choice.transport.cache_clear()
    lose(signal.SIGSTOP)


def lose(blow: int) -> None:
    transport, me = choice.transport(), jax.process_index()
    planned = transfers([(1, [np.zeros(1 << 20, "f4")])], "lost")
    membership.endpoint()
    job.gather("")
    if me == 1:
        tell(hit=time.time())
        os.kill(os.getpid(), blow)
        time.sleep(3600)
    transport.begin(planned, 0)
    raised(lambda: transport.wait(transport.pull(planned[0], 0)[0], waiting()))


def wrong_order_and_values() -> None:
    other_orders()
    failing()


def main(port: str, count: str, number: str, name: str) -> None:
    distributed.initialize(f"127.0.0.1:{port}", int(count), int(number))
    globals()[name]()
    tell(leaves=time.time())
