"""What the processes of test_processes.py run: each function is called in all of them at the same time."""

import atexit
import base64
import gc
import io
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from unit.end_to_end import decoder, test_explicit_tasks, test_vocabulary, transformer, tuning

import jaxpp.api as jaxpp
from jaxpp import _jobs, debug, load, loading, partition, schedules
from jaxpp.ir.program import Receive
from jaxpp.runtime.processes import job, membership, payload
from jaxpp.runtime.processes.arrays import put
from jaxpp.runtime.processes.transfer import PullTransport, key
from jaxpp.runtime.processes.transport import ProcessTransfer
from jaxpp.runtime.processes.waiting import Waiting
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import insert

WIDTH = 32


def nothing_is_small() -> None:
    """Everything but messages goes by `jax.experimental.transfer` from now on."""
    payload.SMALL = -1


def loss(weights: Any, microbatch: Any) -> Any:
    x, y = microbatch
    for w in weights:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ w))
    return jnp.mean((x - y) ** 2)


def train_step(weights: Any, batch: Any, schedule: Any = None) -> Any:
    gradient = partial(jax.value_and_grad(loss), weights)
    operation = (jaxpp.Concat(), jaxpp.Add)
    schedule = schedule or jaxpp.Std1F1B(len(weights))
    losses, gradients = jaxpp.treduce(gradient, batch, schedule=schedule, operation=operation)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], losses.mean()


def arguments(stages: int, microbatches: int = 4) -> Any:
    random = np.random.default_rng(0)
    weights = [(random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype("f4") for _ in range(stages)]
    return weights, tuple(random.normal(size=(microbatches, 8, WIDTH)).astype("f4") for _ in range(2))


def compiled(
    stages: int, devices: Any = None, function: Callable[..., Any] = train_step, operations: Any = None
) -> Any:
    """The step over all devices, or these: those of one stage side by side, or in a list of their own."""
    each = devices or np.split(np.array(jax.devices()), stages)
    each = each if isinstance(each[0], (list, np.ndarray)) else np.split(np.array(each), stages)
    mesh = jaxpp.MpmdMesh.of([Mesh(np.array(row), ("data",)) for row in each])
    shardings = (PartitionSpec(), PartitionSpec(None, "data"))
    options = jaxpp.StepOptions(operations=operations)
    return jaxpp.mpmd_jit_with_loop(function, mpmd_mesh=mesh, options=options, in_shardings=shardings, donate_argnums=0)


def shards_of(array: Any) -> list[Any]:
    return [np.asarray(shard.data) for shard in array.addressable_shards]


def tied_step(weights: Any, batch: Any) -> Any:
    """As `train_step`, with one weight in all stages, and a momentum of its own."""
    tied, momentum = weights
    gradients, value = train_step([tied, tied], batch)
    momentum = 0.5 * momentum + (gradients[0] + gradients[1] - 2 * tied)
    return [tied + momentum, momentum], value


def check(
    stages: int,
    devices: Any = None,
    steps: int = 3,
    function: Callable[..., Any] = train_step,
    operations: Any = None,
    microbatches: int = 4,
) -> list[int]:
    """Train, and compare what this process holds with plain jax.jit; how many shards of each result that is."""
    weights, batch = arguments(stages, microbatches)
    step, plain = compiled(stages, devices, function, operations), jax.jit(function)
    found: tuple[Any, Any] = weights, None
    expected = found
    for _ in range(steps):
        found, expected = step(found[0], batch), plain(expected[0], batch)
    for array, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert array.shape == right.shape
        assert array.dtype == right.dtype
        for shard in shards_of(array):
            np.testing.assert_allclose(shard, right, rtol=1e-5, atol=1e-6)
    return [len(array.addressable_shards) for array in jax.tree.leaves(found)]


def several_meshes_each() -> list[int]:
    """Four stages on two processes of two devices: half of the hops stay inside a process."""
    return check(4)


def one_mesh_each() -> list[int]:
    """Two stages of two devices each."""
    return check(2)


def turned(array: Any) -> Any:
    """The array with the first dimension of each shard lying together."""
    layout = Layout(tuple(reversed(range(array.ndim))))
    made = [jax.device_put(each.data, Format(layout, each.data.sharding)) for each in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, made, dtype=array.dtype)


def in_columns() -> list[bool]:
    """Arrays that lie column by column: on their meshes, on a device of each process, fetched; and saved steps."""
    weights, batch = arguments(2)
    step = compiled(2).compile(weights, batch)
    with tempfile.TemporaryDirectory() as folder:
        step.save(folder)
        saved = jaxpp.load(folder)
    expected = jax.jit(train_step)(jax.jit(train_step)(weights, batch)[0], batch)[0]
    found = list[bool]()
    for each in (step, saved):
        state = each([turned(jax.device_put(weight, jax.local_devices()[0])) for weight in weights], batch)[0]
        state = each([turned(weight) for weight in state], batch)[0]
        fetched = jaxpp.fetch([turned(weight) for weight in state])
        found += [np.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(fetched, expected, strict=True)]
    return found


def narrow_arrays_fetched() -> list[str]:
    """Scalars and rows of narrow types that process 0 has alone: the types of which the numbers are another's."""
    here = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec())
    found: list[str] = []
    for name in ("bfloat16", "float16", "float8_e4m3fn", "int4", "uint8", "bool", "complex64"):
        given = [np.asarray(jnp.asarray(each, name)) for each in (1, [1, 0, 3])]
        arrays = jaxpp.fetch([put(each, here) for each in given])
        for one, other in zip(arrays, given, strict=True):
            found += [name] * (one.dtype != other.dtype or not np.array_equal(one, other))
    return found


def compared() -> list[str]:
    """A step beside plain `jax.jit`, in float32 and bfloat16: the results of a step before, laid out in columns."""
    found: list[str] = []
    first, second, third, fourth = jax.devices()
    for devices, dtype in ((None, "float32"), ([first, third, second, fourth], "bfloat16")):
        step = compiled(2, devices)
        weights, batch = jax.tree.map(partial(np.asarray, dtype=jnp.dtype(dtype)), arguments(2))
        weights = [turned(each) for each in step(weights, batch)[0]]
        found.append(str(jaxpp.compare(step, weights, [turned(jnp.asarray(each)) for each in batch])))
    return found


def meshes_across_processes() -> list[list[int]]:
    """Two stages, each with one device of both processes: the hops stay inside, the gradients' sums don't.

    Also where a result, which is the caller's to donate, is sent on.
    """
    first, second, third, fourth = jax.devices()
    return [check(2, [first, third, second, fourth], function=function) for function in (train_step, tied_step)]


def saved_and_loaded() -> list[list[bool]]:
    """Steps of one mesh in each process, and of meshes over both, come from what these have saved; equal bit by bit."""
    folder = job.gather(tempfile.mkdtemp())[0]
    weights, batch = arguments(2)
    found: list[list[bool]] = []
    first, second, third, fourth = jax.devices()
    for devices in (None, [first, third, second, fourth]):
        step = compiled(2, devices).compile(weights, batch)
        step.save(folder)
        loaded = load(folder)
        results = [jax.tree.leaves(each(weights, batch)) for each in (step, loaded)]
        found.append([np.array_equal(shards_of(a), shards_of(b)) for a, b in zip(*results, strict=True)])
    job.gather("")
    shutil.rmtree(folder, ignore_errors=True)
    return found


def a_saved_step_that_one_cannot_load() -> list[Any]:
    """The file of process 1 is damaged: both are told, and can compile. Then one loads, and the other one compiles."""
    folder = job.gather(tempfile.mkdtemp())[0]
    step = compiled(2)
    step.compile(*arguments(2)).save(folder)
    file, me = Path(folder) / f"process_{jax.process_index()}", jax.process_index()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) - 1000 * me])
    kind, message, _ = raised(lambda: load(folder))
    weights, loss = step(*arguments(2))
    file.write_bytes(whole)
    step.clear_cache()  # or it would have what it compiled for these
    mixed = raised(lambda: step.compile(*arguments(2)) if me else load(folder))[:2]
    job.gather("")
    shutil.rmtree(folder, ignore_errors=True)
    return [kind, message.replace(folder, "FOLDER"), bool(loss.shape), len(weights), *mixed]


def residuals_on_the_host() -> list[list[int]]:
    """Two stages whose residuals go to the host and back: in one process each, and over both processes."""
    first, second, third, fourth = jax.devices()
    function = partial(train_step, schedule=schedules.offload(jaxpp.Std1F1B(2).build(4)))
    return [check(2, devices, function=function) for devices in (None, [first, third, second, fourth])]


def state_on_the_host() -> list[str | None]:
    """Weights and Adam's moments stay in the memory of the hosts, and every process fetches those of all."""
    (state, batch), expected = (transformer.state(2), transformer.batch(4)), transformer.state(2)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("mpmd", "data"))
    host = NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host")
    function = partial(transformer.train_step, schedule=schedules.offload(jaxpp.Std1F1B(2).build(4)))
    step = jaxpp.mpmd_jit_with_loop(
        function,
        mpmd_mesh=jaxpp.MpmdMesh(mesh, "mpmd"),
        in_shardings=(host, None),
        out_shardings=(host, None, None, None),
    )
    for _ in range(2):
        state, expected = step(state, batch)[0], transformer.PLAIN(expected, batch)[0]
    for array, right in zip(jax.tree.leaves(jaxpp.fetch(state)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(array, right, rtol=1e-5, atol=1e-6)
    return sorted({array.sharding.memory_kind for array in jax.tree.leaves(state)})


def residuals_on_a_peer() -> list[int]:
    """Four stages on two processes: those of the first stage wait on a mesh of the other process."""
    function = partial(train_step, schedule=schedules.make("bpipe", meshes=4, microbatches=6))
    return check(4, function=function, microbatches=6)


def a_vocabulary_over_processes() -> list[float]:
    """A graph of nine stages on four meshes: the relative difference of each result from plain `jax.jit`."""
    meshes, (params, batch) = 4, test_vocabulary.arguments(12, 4)
    loss = partial(test_vocabulary.sharded_loss, shards=meshes, embeds=False)
    step = partial(test_vocabulary.train_step, loss=loss)
    schedule = schedules.make("vocab-1f1b", meshes=meshes, microbatches=len(batch))
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")
    return differences(partial(step, schedule=schedule), (params, batch), mesh)


def slices_over_processes() -> list[float]:
    """Keys and values stay on the meshes of each process, activations of a slice cross; some wait on a peer."""
    schedule = evict(schedules.make("seq1f1b", meshes=4, microbatches=4, slices=2))
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")
    step = partial(decoder.train_step, schedule=schedule, slices=2)
    return differences(step, (decoder.parameters(4), decoder.batch(4)), mesh)


def differences(step: Callable[..., Any], arguments: Any, mesh: jaxpp.MpmdMesh) -> list[float]:
    """The relative difference of each result of a step from plain `jax.jit`."""
    found = jaxpp.mpmd_jit_with_loop(step, mesh)(*arguments)
    expected = jax.device_get(jax.jit(partial(step, schedule="gpipe"))(*arguments))
    pairs = zip(jax.tree.leaves(jaxpp.fetch(found)), jax.tree.leaves(expected), strict=True)
    return [float(np.max(np.abs(one - other)) / np.max(np.abs(other))) for one, other in pairs]


def delayed_gradients() -> list[bool]:
    """Three optimizer steps in one program: whether state and losses are those of plain `jax.jit`."""

    def step(state: Any, batch: Any, older: Any) -> Any:
        weights, value = train_step(older, batch, "pipedream-2bw")
        changes = zip(state[0], weights, older, strict=True)
        return ([w + after - before for w, after, before in changes],), value

    loop = jaxpp.train_loop(step, 3, delay=1)
    weights, batch = arguments(4)
    batches = tuple(np.stack([leaf, leaf[::-1], -leaf]) for leaf in batch)
    carry = jax.device_get(loop.start((weights,)))
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")
    found = jaxpp.fetch(jaxpp.mpmd_jit_with_loop(loop, mesh)(carry, batches))
    expected = jax.device_get(jax.jit(loop)(carry, batches))
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return [np.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in pairs]


def explicit_tasks() -> list[bool]:
    """A step of explicit tasks, with a stage in each process: whether its results are those of plain `jax.jit`."""
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()).reshape(2, 2), ("pp", "data")), "pp")
    given = test_explicit_tasks.arguments()
    found = jaxpp.fetch(test_explicit_tasks.step_of(mesh)(*given))
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(test_explicit_tasks.plain_step)(*given)), strict=True)
    return [np.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in pairs]


def steps_rolled_back() -> list[Any]:
    """Three steps that clip by the norm of all gradients, the second one of which has to: how many were rolled back.

    And whether state and losses are those of plain `jax.jit`.
    """

    def step(weights: Any, batch: Any) -> Any:
        scale, *batch = batch
        after, value = train_step(weights, batch, "zb-h2")
        changes = [(new - old) * scale for new, old in zip(after, weights, strict=True)]
        norm = jnp.sqrt(sum(jnp.vdot(change, change) for change in changes))
        changes = jaxpp.expect(norm < 1, changes, lambda: [change / norm for change in changes])
        return [w + change for w, change in zip(weights, changes, strict=True)], (value, norm)

    weights, batch = arguments(4)
    batches = np.array([1, 1000, 1], "f4"), *(np.stack([leaf, leaf[::-1], -leaf]) for leaf in batch)
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")
    loop = jaxpp.train_loop(step, 3)
    hopeful = jaxpp.optimistic(loop, mesh)
    found = jaxpp.fetch(hopeful(weights, batches))
    expected = jax.device_get(jax.jit(loop)(weights, batches))
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return [hopeful.rollbacks, *(np.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in pairs)]


def operations_as_tasks() -> list[Any]:
    """Two stages that call a function of the user's: in one process each, over both, and where one of them fails."""
    first, second, third, fourth = jax.devices()
    schedule = insert(jaxpp.Std1F1B(2).build(4), schedules.Operation.parse("log: forward"), after="forward")
    function = partial(train_step, schedule=schedule)
    found: list[Any] = []
    for devices in (None, [first, third, second, fourth]):
        seen: list[Any] = []

        def log(task: Any, residuals: Any, seen: list[Any] = seen) -> None:
            assert residuals
            seen.append(task.stage)

        found.append(check(2, devices, function=function, operations={"log": log}) and sorted(Counter(seen).items()))
    full = [True]

    def save(task: Any) -> None:
        if full and str(task) == "0log2":
            raise OSError("the disk is full")

    step = compiled(2, function=function, operations={"log": save})
    found.append(raised(lambda: step(*arguments(2)))[:2])
    full.clear()
    losses = step(*arguments(2))[1]
    expected = jax.jit(function)(*arguments(2))[1]
    for shard in shards_of(losses):
        np.testing.assert_allclose(shard, expected, rtol=1e-5)
    return found


def weight_gradients_left_out() -> tuple[str, str, float]:
    """Those of the first stage, in one process each and over both; then the processes don't agree."""
    first, second, third, fourth = jax.devices()
    function = partial(train_step, schedule=schedules.make("zb-h1", meshes=2, microbatches=4))
    weights, batch = arguments(2)
    expected = jax.jit(function)(weights, batch)[0]
    for devices in (None, [first, third, second, fourth]):
        step = compiled(2, devices, function)
        with jaxpp.frozen({0: 1.0}):
            found = step(weights, batch)[0]
        for array, right in zip(found, (weights[0], expected[1]), strict=True):
            for shard in shards_of(array):
                np.testing.assert_allclose(shard, right, rtol=1e-5, atol=1e-6)
    with jaxpp.frozen({jax.process_index(): 1.0}):
        return raised(lambda: step(weights, batch))


def some_shards_cross() -> list[int]:
    """Two stages: the first on three processes' devices in one order, the second in another."""
    first, second, third, fourth = jax.devices()
    return check(2, [first, third, fourth, second])


def meshes_of_different_sizes() -> tuple[list[list[int]], int]:
    """Shards are cut where they are, and put together where they are wanted, also when some parts stay here.

    Also how many bytes the last of these programs sends: the sum of the tied weight's gradients is replicated.
    """
    first, second, third, fourth = jax.devices()
    found = [
        check(2, [[first], [third, fourth]]),
        check(2, [[first, second], [third]]),
        check(2, [[second], [first, third]]),
        check(2, [[first, third], [fourth]]),
        check(3, [[first], [second, third], [fourth]]),
    ]
    with mock.patch.object(PullTransport, "offer", autospec=True, side_effect=PullTransport.offer) as offer:
        found.append(check(2, [[first], [third, fourth]], function=tied_step))
    return found, sum(call.args[1].offered.size for call in offer.call_args_list)


def traced_steps() -> list[dict[str, int]]:
    """How many events of each mesh and kind a step has, for several ways to lay two stages on the devices."""
    first, second, third, fourth = jax.devices()
    layouts: list[Any] = [
        [first, second, third, fourth],
        [first, third, second, fourth],
        [first, third, fourth, second],
        [[first, third], [fourth]],
    ]
    found: list[dict[str, int]] = []
    for devices in layouts:
        weights, batch = arguments(2)
        (gradients, _), events = compiled(2, devices).lower(weights, batch).compile().trace(weights, batch)
        expected = jax.jit(train_step)(weights, batch)[0]
        for array, right in zip(gradients, expected, strict=True):
            for shard in shards_of(array):
                np.testing.assert_allclose(shard, right, rtol=1e-5, atol=1e-6)
        assert all(each.seconds >= 0 and each.end - each.start == pytest.approx(each.seconds) for each in events)
        found.append(Counter(f"{each.kind} on mesh {each.mesh}" for each in events))
    return found


def recorded() -> list[str]:
    """The record of a step of two processes, as text from the first one; what bisect finds; and a mesh over both."""
    weights, batch = arguments(2)
    with tempfile.TemporaryDirectory() as folder:
        debug.record(compiled(2), f"{folder}/step.npz", weights, batch)
        written = [base64.b64encode(path.read_bytes()).decode() for path in Path(folder).iterdir()]
    first, second, third, fourth = jax.devices()
    with pytest.raises(ValueError, match=r"^record: mesh 0 has devices of several processes, expected one: "):
        debug.record(compiled(2, [first, third, second, fourth]), "never.npz", weights, batch)
    with redirect_stdout(io.StringIO()):  # a line of the report begins as the result of a job does
        wrong = debug.bisect(compiled(2), _other_step, weights, batch)
    return [str(wrong), *written]


def _other_step(weights: Any, batch: Any) -> Any:
    (first, second), loss = jax.jit(train_step)(weights, batch)
    return [first, 1.01 * second], loss


def partitioned() -> tuple[list[int], str]:
    """The cuts of four layers on two meshes, by what all processes measure, and the schedule."""
    weights, batch = arguments(4)
    found = partition(compiled(2), weights, batch, seconds=0.01)
    mesh = jaxpp.MpmdMesh.of([Mesh(row, ("data",)) for row in np.split(np.array(jax.devices()), 2)])
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, cuts=found)
    expected = jax.jit(train_step)(weights, batch)[0]
    for array, right in zip(step(weights, batch)[0], expected, strict=True):
        for shard in shards_of(array):
            np.testing.assert_allclose(shard, right, rtol=1e-5, atol=1e-6)
    return list(found.cuts), str(found.schedule)


def tuned() -> list[Any]:
    """A step tunes itself, first for the better, then for the worse; an evaluation follows it, in turns with it."""

    def evaluate(weights: Any, batch: Any) -> Any:
        return jaxpp.treduce(partial(loss, weights), batch)

    found: list[Any] = []
    function = partial(train_step, schedule="auto")
    weights, batch = arguments(4)
    plain, measure = jax.jit(function), jax.jit(evaluate)
    for faster in (8.0, 12.0):
        times: dict[tuple[int, ...], float] = {(2, 2): 10.0, (3, 1): faster}
        step = compiled(2, function=function)
        mesh = jaxpp.MpmdMesh.of([Mesh(row, ("data",)) for row in np.split(np.array(jax.devices()), 2)])
        test = jaxpp.mpmd_jit_with_loop(evaluate, mesh, schedule=step)
        ours = theirs = weights
        places: list[list[int]] = []
        with tuning.given([1, 1, 1, 3], lambda each, times=times: times[each.choice.cuts]):
            while step.tuned is None:
                ours, theirs = step(ours, batch)[0], plain(theirs, batch)[0]
                for array, right in zip(ours, theirs, strict=True):
                    for shard in shards_of(array):
                        np.testing.assert_allclose(shard, right, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(jaxpp.fetch(test(ours, batch)), measure(theirs, batch), rtol=1e-5)
                where = [min(d.process_index for d in array.sharding.device_set) for array in ours]
                places += [where] if where not in places[-1:] else []
        assert all(isinstance(each, np.ndarray) for each in weights)
        found.append([step.tuned.cuts, step.tuned.speedup, places])
    return found


def stacks_keys_and_whole_meshes() -> list[int]:
    """Layers in a scan: their weights are one stack, with a block on each mesh. Dropout. A batch on all devices."""

    def loss(weights: Any, key: Any, microbatch: Any) -> Any:
        x, y = microbatch

        def layer(x: Any, each: Any) -> Any:
            w, k = each
            x = jnp.where(jax.random.bernoulli(k, 0.9, x.shape), jnp.tanh(x @ w), 0.0)
            return jaxpp.mark_stage_end(x), None

        x, _ = jax.lax.scan(layer, x, (weights, jax.random.split(key, len(weights))))
        return jnp.mean((x - y) ** 2)

    def step(state: Any, batch: Any) -> Any:
        weights, key = state
        key, here = jax.random.split(key)
        gradient = partial(jax.value_and_grad(loss), weights, here)
        operation = (jaxpp.Concat(), jaxpp.Add)
        losses, gradients = jaxpp.treduce(gradient, batch, schedule=jaxpp.Std1F1B(2), operation=operation)
        return (weights - 0.1 * gradients, key), losses.mean()

    devices = np.array(jax.devices()).reshape(2, 2)
    mesh = Mesh(devices, ("mpmd", "data"))
    weights, batch = arguments(2)
    state, other = [(np.stack(weights), jax.random.key(0)) for _ in range(2)]
    everywhere = NamedSharding(mesh, PartitionSpec(None, "data"))
    given = tuple(jax.make_array_from_callback(each.shape, everywhere, each.__getitem__) for each in batch)
    pipelined = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=jaxpp.MpmdMesh(mesh, "mpmd"), donate_argnums=0)
    plain = jax.jit(step)
    found: Any = (state, None)
    expected: Any = (other, None)
    for _ in range(3):
        found, expected = pipelined(found[0], given), plain(expected[0], batch)
    ((weights, key), value), ((right, right_key), right_value) = found, expected
    np.testing.assert_allclose(jaxpp.fetch(weights), right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jaxpp.fetch(value), right_value, rtol=1e-5)
    np.testing.assert_array_equal(jax.random.key_data(jaxpp.fetch(key)), jax.random.key_data(right_key))
    return [len(weights.addressable_shards), *weights.addressable_shards[0].data.shape]


def stacks_of_some_meshes() -> list[int]:
    """Two scans: the layers of the first are on the meshes of one process, those of the second on the other's."""

    def layer(x: Any, w: Any) -> Any:
        return jaxpp.mark_stage_end(jnp.tanh(x @ w)), None

    def loss(stacks: Any, microbatch: Any) -> Any:
        x, y = microbatch
        for stack in stacks:
            x, _ = jax.lax.scan(layer, x, stack)
        return jnp.mean((x - y) ** 2)

    def step(stacks: Any, batch: Any) -> Any:
        gradient = partial(jax.value_and_grad(loss), stacks)
        operation = (jaxpp.Concat(), jaxpp.Add)
        losses, gradients = jaxpp.treduce(gradient, batch, schedule=jaxpp.Std1F1B(4), operation=operation)
        return [w - 0.1 * g for w, g in zip(stacks, gradients, strict=True)], losses.mean()

    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")
    weights, batch = arguments(4)
    stacks = [np.stack(weights[:2]), np.stack(weights[2:])]
    pipelined = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh, donate_argnums=0)
    found: Any = (stacks, None)
    expected: Any = (stacks, None)
    for _ in range(3):
        found, expected = pipelined(found[0], batch), jax.jit(step)(expected[0], batch)
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(jaxpp.fetch(one), other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jaxpp.fetch(found[1]), expected[1], rtol=1e-5)
    return [len(stack.addressable_shards) for stack in found[0]]


def arrays_of_jaxpp() -> list[bool]:
    """A script in the terms of NVIDIA's JaxPP: parameters on all devices go to their meshes, and come back."""
    import jaxpp.api as jaxpp

    whole = Mesh(np.array(jax.devices()).reshape(2, 2), ("mpmd", "data"))
    mesh = jaxpp.MpmdMesh(whole, "mpmd")
    weights, batch = arguments(2)
    everywhere = NamedSharding(whole, PartitionSpec("mpmd", "data"))
    spread = [jax.make_array_from_callback(w.shape, everywhere, w.__getitem__) for w in weights]
    homes = [jaxpp.MpmdSharding(mesh, frozenset({k}), PartitionSpec("data")) for k in range(2)]
    placed = jaxpp.spmd_to_mpmd_reshard(mesh, spread, homes)
    shardings = (PartitionSpec(), PartitionSpec(None, "data"))
    step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=mesh, in_shardings=shardings)
    new, value = step(placed, batch)
    right, right_value = jax.jit(train_step)(weights, batch)
    if value.is_partially_addressable:
        np.testing.assert_allclose(value.to_mpmd_local_array, right_value, rtol=1e-5)
    back = jaxpp.mpmd_to_spmd_reshard(mesh, new, NamedSharding(whole, PartitionSpec()))
    for found, expected in zip(back, right, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    first = jaxpp.MpmdArray([w for w in placed[:1] if w.addressable_shards], homes[0], (WIDTH, WIDTH), np.float32)
    return [value.is_partially_addressable, first.is_partially_addressable, first.array.is_fully_addressable]


def nothing_piles_up() -> list[list[int]]:
    """Many steps, on one device per stage and on two; the live arrays after some of them.

    Fewer on two: most of their time XLA sums gradients over these devices.
    """
    first, _, third, _ = jax.devices()
    found: list[list[int]] = []
    for devices, steps in ([first, third], 200), (None, 40):
        weights, batch = arguments(2, microbatches=2)
        step = compiled(2, devices)
        counts: list[int] = []
        for number in range(1, steps + 1):
            weights, value = step(weights, batch)
            if number % (steps // 4) == 0:
                jax.block_until_ready((weights, value))
                counts.append(live_arrays(most=min(counts, default=sys.maxsize)))
        found.append(counts)
    return found


def live_arrays(most: int) -> int:
    """How many arrays are live; what is still being sent may take seconds until no more than `most` are."""
    end = time.monotonic() + 20
    while True:
        gc.collect()
        count = len(jax.live_arrays())
        if count <= most or time.monotonic() > end:
            return count
        time.sleep(0.01)


def deleted_at_once() -> None:
    """What process 0 sends is also a result, which is deleted before process 1 can have it."""

    def function(x: Any, w: Any) -> Any:
        h = jaxpp.mark_stage_end(jnp.tanh(x @ w))
        return h, (h + x) @ w

    (w, _), (x, _) = arguments(2)
    step = forward_only(function)
    for _ in range(20):
        h, y = step(x, w)
        h.delete()
        for shard in shards_of(y):
            np.testing.assert_allclose(shard, (np.tanh(x @ w) + x) @ w, rtol=1e-4, atol=1e-5)


def forward_only(function: Callable[..., Any]) -> Any:
    """A function of two stages, one in each process."""
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()).reshape(2, 2), ("mpmd", "data")), "mpmd")
    return jaxpp.mpmd_jit_by_yield(function, mesh, target_num_stages=2)


def one_step_ahead() -> float:
    """Process 1 begins its second call half a second after that of process 0, which only sends, has returned.

    When it began, in process 1; in process 0 when its third call has returned.
    """
    (w, _), (x, _) = arguments(2)
    step = forward_only(lambda x, w: jaxpp.mark_stage_end(jnp.tanh(x @ w)) @ w)  # pyright: ignore[reportUnknownLambdaType]  # of arrays
    step(x, w)
    job.gather("")
    store, told, found = _jobs.key_value_store(), "its second call has returned", 0.0
    for number in range(4):
        if jax.process_index() == 1 and number == 1:
            store.blocking_key_value_get(told, 60_000)
            time.sleep(0.5)
            found = time.time()
        step(x, w)
        if jax.process_index() == 0 and number == 1:
            store.key_value_set(told, "")
        if jax.process_index() == 0 and number == 2:
            found = time.time()
    return found


def raised(function: Callable[[], Any]) -> tuple[str, str, float]:
    """The type and the message of what the call raises, and after how many seconds."""
    start = time.monotonic()
    try:
        function()
    except BaseException as error:
        return type(error).__name__, str(error), time.monotonic() - start
    raise AssertionError("nothing was raised")


def another_program() -> tuple[str, str, float]:
    """Process 1 has another learning rate."""

    def other_step(weights: Any, batch: Any) -> Any:
        new, value = train_step(weights, batch)
        rate = 0.5 + jax.process_index()
        return [w + rate * (n - w) for w, n in zip(weights, new, strict=True)], value

    return raised(lambda: compiled(2, function=other_step).compile(*arguments(2)))


def other_settings() -> list[str]:
    """Process 1 has other options, settings of JAX, flags, and another saved step: what both are told."""
    me = jax.process_index()
    mesh = jaxpp.MpmdMesh(jax.make_mesh((2, 2), ("mpmd", "data"), devices=jax.devices()), "mpmd")
    fast = {"xla_cpu_enable_fast_math": True}
    given: list[dict[str, Any]] = [
        {"compiler_options": fast},
        {"compiler_options": {1: fast}},
        {"options": jaxpp.StepOptions(share_tasks="never")},
    ]

    def refused(**options: Any) -> str:
        own: dict[str, Any] = options if me else {}
        step = jaxpp.mpmd_jit_with_loop(train_step, mesh, **own)
        kind, message, _ = raised(lambda: step(*arguments(2)))
        return f"{kind}: {message}"

    found = [refused(**each) for each in given]
    for name, value in (("enable_x64", True), ("default_matmul_precision", "highest"), ("default_prng_impl", "rbg")):
        before = getattr(jax.config, f"jax_{name}")
        if me:
            jax.config.update(f"jax_{name}", value)
        found.append(refused())
        jax.config.update(f"jax_{name}", before)
    with mock.patch.dict(os.environ):
        if me:
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_allow_excess_precision=false"
            os.environ["XLA_FLAGS"] += " --xla_dump_to=/tmp/of-this-process"
        found.append(refused())
    folder = job.gather(tempfile.mkdtemp())[0]
    compiled(2).compile(*arguments(2)).save(folder)
    with mock.patch.object(loading, "from_json", return_value=fast if me else {}):
        kind, message, _ = raised(lambda: load(folder))
    return [*found, f"{kind}: {message}"]


def calls_left_out() -> list[Any]:
    """Process 1 fails before calls that process 0 makes. Once both are told, the next exchange of texts is right.

    Also how many texts of this process the coordinator holds in the end.
    """
    me, sharding = jax.process_index(), NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec("x"))
    array = put(np.arange(4, dtype="i4"), sharding)
    found: list[Any] = []
    for call in (lambda: job.gather(""), lambda: compiled(2).compile(*arguments(2))):
        found.append(raised(call if me == 0 else lambda: jaxpp.fetch(array))[1])
        found.append([job.gather(f"{number} of {me}") for number in range(3)])
        assert jaxpp.fetch(array).tolist() == [0, 1, 2, 3]
        compiled(2).compile(*arguments(2))
    held = _jobs.key_value_store().key_value_dir_get_bytes(f"jaxpp/exchange/{me}/")
    return [*found, len(held)]


def another_schedule() -> tuple[str, str, float]:
    """Process 1 has another schedule."""
    schedule = jaxpp.GPipe(2) if jax.process_index() else jaxpp.Std1F1B(2)
    return raised(lambda: compiled(2, function=partial(train_step, schedule=schedule)).compile(*arguments(2)))


def another_program_later() -> tuple[str, str, float]:
    """Both processes compile two steps, and call different ones."""
    steps = [compiled(2).compile(*arguments(2, microbatches)) for microbatches in (4, 6)]
    microbatches, step = list(zip((4, 6), steps, strict=True))[jax.process_index()]
    return raised(lambda: step(*arguments(2, microbatches)))


def memory_limits() -> list[Any]:
    """Limits that the temporaries of mesh 0 exceed: less is kept, then nothing helps, then they differ."""

    def limited(limit: Any, recompute: Any = None) -> Any:
        schedule = schedules.make("gpipe", meshes=2, microbatches=4)
        mesh = jaxpp.MpmdMesh(jax.make_mesh((2, 2), ("mpmd", "data"), devices=jax.devices()), "mpmd")
        function = partial(train_step, schedule=schedules.Schedule.of("mine", schedule.placement, schedule.cells))
        return jaxpp.mpmd_jit_with_loop(function, mesh, memory_limit=limit, recompute=recompute).lower(*arguments(2))

    free = limited(None)
    plain = free.compile()
    own = next(each for each in plain.memory_analysis() if each is not None)
    most = int(job.gather(str(own.peak_memory_in_bytes))[0]) - 1
    step = limited([most, 10**9])
    before = step.program().kept_less["recompute"]
    compiled = step.compile()
    for found, expected in zip(*(jax.tree.leaves(each(*arguments(2))) for each in (compiled, plain)), strict=True):
        for one, other in zip(shards_of(found), shards_of(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)  # XLA fuses what is computed again
    tight = limited([limited(None, "inputs").program().peak_bytes[0], 10**9], "inputs")
    differ = [limited(limits[jax.process_index()]) for limits in ((10**9, None), (1000, 10**9))]
    return [before, step.program().kept_less["recompute"], *(raised(each.compile)[1] for each in (tight, *differ))]


def steps_in_turns() -> list[tuple[str, str, float]]:
    """A step and one that only goes forward, in turns; then calls that differ: what they raise."""

    def evaluate(weights: Any, batch: Any) -> Any:
        value = partial(loss, weights)
        return jaxpp.treduce(value, batch, schedule=jaxpp.GPipe(2), operation=jaxpp.Concat()).mean()

    weights, (x, y) = arguments(2)
    step, forward = compiled(2), compiled(2, function=evaluate)
    found = expected = weights
    for _ in range(3):
        found, expected = step(found, (x, y))[0], jax.jit(train_step)(expected, (x, y))[0]
        value = jaxpp.fetch(forward(jaxpp.fetch(found), (x, y)))
        np.testing.assert_allclose(value, jax.jit(evaluate)(expected, (x, y)), rtol=1e-5)
    me = jax.process_index()
    return [
        raised(lambda: step(weights, (x, y + me))),
        raised(lambda: jaxpp.fetch([{"a": found[1 - me], "b": 1}, [found[1 - me]]][me])),
        raised(lambda: step(weights, (x[:, :4], y[:, :4]) if me else (x, y))),
        raised(lambda: step(weights, (x, y)) if me else jaxpp.fetch({"a": found[1]})),
    ]


def another_number_of_steps() -> tuple[str, str, float]:
    """Process 1 believes that it has done a step more."""
    step = compiled(2).compile(*arguments(2))
    step(*arguments(2))
    step.executable._links._step += jax.process_index()
    return raised(lambda: step(*arguments(2)))


def a_failing_task() -> tuple[str, str, float]:
    """Process 0 runs out of memory in a step; the next step works."""
    step = compiled(2).compile(*arguments(2))
    before = jax.device_get(shards_of(step(*arguments(2))[0][jax.process_index()]))
    steps = step.executable._steps

    def fail(_: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    position = next(i for i, each in enumerate(steps) if "backward" in str(each[-1]) or "forward" in str(each[-1]))
    kept = steps[position]
    if jax.process_index() == 0:
        steps[position] = (fail, *kept[1:])
    found = raised(lambda: step(*arguments(2)))
    steps[position] = kept
    after = shards_of(step(*arguments(2))[0][jax.process_index()])
    np.testing.assert_array_equal(before, after)
    return found


def patience(waiting: Waiting, seconds: float) -> None:
    if seconds > 0.5:
        raise TimeoutError(f"{waiting}: nothing came for half a second")


def transfer_of(number: int, dtype: Any, size: int, is_sent: bool = False) -> ProcessTransfer:
    """One array from the other process to this one's first device, or back."""
    sharding = SingleDeviceSharding(jax.local_devices()[0])
    types, me = [jax.ShapeDtypeStruct((size,), dtype, sharding=sharding)], jax.process_index()
    return ProcessTransfer(number, me, 1 - me, types, ()) if is_sent else ProcessTransfer(number, 1 - me, me, (), types)


def waited(array: Any, watch: Any) -> tuple[str, str, float]:
    """What a wait for something from the other process raises."""
    transport, me = membership.endpoint(), jax.process_index()
    transport.watch, kept = watch, transport.watch
    try:
        return raised(lambda: transport.wait(array, Waiting(1 - me, 1 - me, f"{Receive(7, 0, me)} from")))
    finally:
        transport.watch = kept


def one_that_does_not_send() -> tuple[str, str, float] | None:
    """Process 0 begins a step, of which its message tells, without having sent what process 1 waits for."""
    transport, me = membership.endpoint(), jax.process_index()
    asked = transport.pull(transfer_of(key("test", 11), np.float32, 8), 0)[0]
    if me == 0:
        transport.post([1], [1])
    found = waited(asked, patience) if me else None
    if me:
        transport.post([0], [1])
    transport.wait(transport.fetch(1 - me), Waiting(1 - me))
    return found


def transfers_that_differ() -> list[tuple[str, str, float]]:
    """What is offered is not what is asked for: another type, number, or size under one number; and Ctrl-C."""
    transport = membership.endpoint()
    device = jax.local_devices()[0]

    def interrupt(waiting: Waiting, seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def asked(number: int, dtype: Any, size: int) -> Any:
        return transport.pull(transfer_of(number, dtype, size), 0)[0]

    offered = jax.device_put(np.arange(8, dtype="f4"), device)
    transport.offer(transfer_of(key("test", 7, "float32[8]"), np.float32, 8, is_sent=True), 0, [offered])
    transport.offer(transfer_of(key("another test", 7), np.float32, 8, is_sent=True), 0, [offered])
    found = [
        waited(asked(key("test", 7, "int32[8]"), np.int32, 8), patience),
        waited(asked(key("test", 9, "float32[8]"), np.float32, 8), patience),
        waited(asked(key("another test", 7), np.float32, 4), patience),
        waited(asked(key("test", 10), np.float32, 8), interrupt),
    ]
    time.sleep(2)  # the other process may be later, and the next message ends its waits
    job.gather("")
    return found


def a_forked_child() -> int:
    """What a child returns that ends as Python ends; -1 where it doesn't."""
    warnings.simplefilter("ignore", RuntimeWarning)  # JAX's, about threads
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(7)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG) == (child, 7 << 8):
            return 7
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    return -1


def one_process_ends() -> tuple[str, str, float] | None:
    """Process 0 is done; process 1 begins one more step."""
    step = compiled(2).compile(*arguments(2))
    step(*arguments(2))
    if jax.process_index() == 0:
        membership.endpoint().close()
        return None
    return raised(lambda: step(*arguments(2)))
