"""What the processes of test_faults.py run, to be killed, stopped and interrupted: not all of them come back."""

import json
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from unit.runtime.processes import jobs

from jaxpp import _jobs, checkpoint, distributed
from jaxpp.runtime.processes import faults, job, membership, watchdog

STAGES_OF_TWO = [0, 2, 1, 3]
"""The devices of two processes so that each of two stages has one of both."""


def tell(**found: Any) -> None:
    """Tell the test something, as a line of JSON."""
    # In one write, also where Python does not buffer: the watchdog's thread may print at the same time.
    print(f"\n{json.dumps(found)}\n", end="", flush=True)


def raised(function: Callable[[], Any]) -> None:
    """Tell what the call raises, and when."""
    try:
        function()
    except Exception as error:
        tell(type=type(error).__name__, message=str(error), at=time.time())


def act_in_mid_step(step: Any, task: str, act: Callable[[], Any]) -> None:
    """Do something when the step comes to a task, and tell when that was."""
    steps = step.executable._steps
    position = next(i for i, each in enumerate(steps) if each[-1] and task in str(each[-1][0][1]))

    def hit(*_: Any) -> Any:
        tell(hit=time.time())
        return act()

    steps[position] = (hit, *steps[position][1:])


def hit_in_mid_step(step: Any, blow: int, task: str) -> None:
    """Send this process a signal when the step comes to a task."""

    def hit() -> None:
        os.kill(os.getpid(), blow)
        time.sleep(3600)

    act_in_mid_step(step, task, hit)


def lose(victim: int, blow: int) -> None:
    """Three stages in three processes; one of them is hit in the second step."""
    weights, batch = jobs.arguments(3)
    step = jobs.compiled(3).compile(weights, batch)
    weights, loss = step(weights, batch)
    if jax.process_index() == victim:
        hit_in_mid_step(step, blow, f"stage {victim}, microbatch 2")
    raised(lambda: step(weights, batch))
    tell(losses=[float(np.asarray(shard.data)) for shard in loss.addressable_shards])


def one_is_killed() -> None:
    lose(1, signal.SIGKILL)


def one_is_killed_in_a_transfer() -> None:
    jobs.nothing_is_small()
    lose(1, signal.SIGKILL)


def the_first_is_killed() -> None:
    lose(0, signal.SIGKILL)


def one_is_stopped() -> None:
    lose(2, signal.SIGSTOP)


def one_is_stopped_in_a_transfer() -> None:
    jobs.nothing_is_small()
    lose(2, signal.SIGSTOP)


def shared_step() -> tuple[Any, Any, Any]:
    """Two stages on both processes: the step, the weights after a first step, and the batch."""
    weights, batch = jobs.arguments(2)
    step = jobs.compiled(2, [jax.devices()[i] for i in STAGES_OF_TWO]).compile(weights, batch)
    return step, step(weights, batch)[0], batch


def stop_the_first() -> None:
    """JAX's store is in process 0: whoever asks it something would wait, until JAX aborts it."""
    if jax.process_index() == 0:
        tell(hit=time.time())
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1.0)


def the_first_is_stopped_while_others_trace() -> None:
    def train_step(weights: Any, batch: Any) -> Any:
        stop_the_first()
        return jobs.train_step(weights, batch)

    jobs.compiled(3).compile(*jobs.arguments(3))  # by then each has JAX's devices: a wait for these ends the process
    raised(lambda: jobs.compiled(3, function=train_step).compile(*jobs.arguments(3)))


def the_first_is_stopped_while_others_save() -> None:
    jobs.compiled(3).compile(*jobs.arguments(3))
    with tempfile.TemporaryDirectory() as folder, checkpoint.Saver(folder) as saver:
        stop_the_first()
        raised(lambda: saver.save(1, {"step": np.int32(1)}))


def one_of_a_mesh_is_stopped() -> None:
    """The second process is stopped, and the first is in a collective with it."""
    step, weights, batch = shared_step()
    if jax.process_index() == 1:
        hit_in_mid_step(step, signal.SIGSTOP, "stage 1, microbatch 2")
    raised(lambda: step(weights, batch))


def one_of_a_mesh_is_killed() -> None:
    """The collectives of the first process end then: it may go on in another job."""
    step, weights, batch = shared_step()
    if jax.process_index() == 1:
        hit_in_mid_step(step, signal.SIGKILL, "stage 1, microbatch 2")
    raised(lambda: step(weights, batch))
    tell(stuck=membership.is_stuck())


def nap() -> None:
    time.sleep(3600)


def one_sleeps() -> None:
    """Three stages in three processes; the last one does something else before its second step."""
    weights, batch = jobs.arguments(3)
    step = jobs.compiled(3).compile(weights, batch)
    weights, _ = step(weights, batch)
    faults.LAST = 1.0
    if jax.process_index() == 2:
        nap()
    raised(lambda: step(weights, batch))


def one_of_a_mesh_sleeps() -> None:
    """The second process does something else in a step, and the first is in a collective with it."""
    step, weights, batch = shared_step()
    if jax.process_index() == 1:
        act_in_mid_step(step, "stage 1, microbatch 2", nap)
    faults.LAST = 1.0
    raised(lambda: step(weights, batch))


def one_does_not_compile() -> None:
    faults.LAST = 1.0
    if jax.process_index() == 1:
        nap()
    raised(lambda: jobs.compiled(2).compile(*jobs.arguments(2)))


def fail() -> None:
    raise ValueError("no such expert")


def one_of_a_mesh_fails() -> None:
    """The second process fails in a step, and the first is in a collective with it; nobody catches the errors."""
    step, weights, batch = shared_step()
    if jax.process_index() == 1:
        act_in_mid_step(step, "stage 1, microbatch 2", fail)
    step(weights, batch)


def one_of_a_mesh_fails_and_goes_on() -> None:
    """As `one_of_a_mesh_fails`, but both catch the error, and call the step again."""
    step, weights, batch = shared_step()
    if jax.process_index() == 1:
        act_in_mid_step(step, "stage 1, microbatch 2", fail)
    raised(lambda: step(weights, batch))
    raised(lambda: step(*jobs.arguments(2)))


def one_of_a_mesh_fails_while_another_is_in_xla() -> None:
    """The first process is where no error can be raised: the second one lives on, and makes no other call."""
    faults.LAST = 1.0
    step, weights, batch = shared_step()
    if jax.process_index() == 1:
        act_in_mid_step(step, "stage 1, microbatch 2", fail)
        raised(lambda: step(weights, batch))
        time.sleep(3600)
    act_in_mid_step(step, "stage 1, microbatch 2", threading.Event().wait)
    step(weights, batch)


def shared_steps_without_end() -> None:
    """As `steps_without_end`, where both processes are in collectives with each other."""
    step, weights, batch = shared_step()
    repeat(step, weights, batch)


def one_fails_early() -> None:
    """Before it has listed its devices, for which the other one waits in C++."""
    if _jobs.process_numbers()[0] == 1:
        raise FileNotFoundError("no vocabulary\nat /data/vocab.json")
    jax.devices()


def one_is_told_to_end_early() -> None:
    """By SIGTERM, which nobody here asked JAX to catch."""
    if _jobs.process_numbers()[0] == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    jax.devices()


def one_fails_before_it_compiles() -> None:
    if jax.process_index() == 1:
        raise MemoryError
    raised(lambda: jobs.compiled(2).compile(*jobs.arguments(2)))


def steps_without_end() -> None:
    """Nothing here catches Ctrl-C."""
    weights, batch = jobs.arguments(2)
    repeat(jobs.compiled(2).compile(weights, batch), weights, batch)


def repeat(step: Any, weights: Any, batch: Any) -> None:
    for number in range(10**9):
        weights, _ = step(weights, batch)
        if number == 3:
            tell(steps=number)


def another_version(package: str) -> str:
    """What `importlib.metadata.version` would say with another JAX."""
    return "0.0.1" if package == "jax" else version(package)


def processes_that_disagree() -> None:
    """Another mesh, schedule, and version of JAX, and at last one step more than the other process does."""
    me = jax.process_index()
    if me == 1:
        raised(lambda: jobs.compiled(1, jax.devices()[:1]).compile(*jobs.arguments(1)))
    weights, batch = jobs.arguments(2)
    schedule = [jobs.jaxpp.GPipe, jobs.jaxpp.Std1F1B][me](2)

    def train_step(weights: Any, batch: Any) -> Any:
        return jobs.jaxpp.treduce(partial(jax.value_and_grad(jobs.loss), weights), batch, schedule=schedule)

    raised(lambda: jobs.compiled(2, function=train_step).compile(weights, batch))
    if me == 1:
        job.version = another_version
    raised(lambda: jobs.compiled(2).compile(weights, batch))
    job.version = version
    step = jobs.compiled(2).compile(weights, batch)
    weights, _ = step(weights, batch)
    if me == 1:
        raised(lambda: step(weights, batch))


def wrong_variables() -> None:
    """What the environment may say wrong: last a secret that is not the other process's."""

    def compiled() -> Any:
        return jobs.compiled(2).compile(*jobs.arguments(2))

    os.environ["JAXPP_WATCHDOG_SECONDS"] = "a minute"
    raised(compiled)
    os.environ["JAXPP_WATCHDOG_SECONDS"] = "60"
    os.environ["JAXPP_TRANSFER_ADDRESS"] = "192.0.2.1"
    raised(compiled)
    os.environ["JAXPP_TRANSFER_ADDRESS"] = "127.0.0.1"
    os.environ["JAXPP_JOB_SECRET"] = f"secret {jax.process_index()}"
    raised(compiled)
    tell(addresses=[membership.endpoint().address, membership.guard().watchdog.address])


def main(port: str, count: str, number: str, name: str) -> None:
    initialize = jax.distributed.initialize if name == "wrong_variables" else distributed.initialize
    initialize(f"127.0.0.1:{port}", int(count), int(number))
    globals()[name]()
    tell(leaves=time.time())


def last_resort(is_silent: str) -> None:
    """A process that loses a peer during a step, and hears nothing, as a collective of XLA."""
    if is_silent:
        sys.stderr.close()
    guard = faults.Guard(0, "127.0.0.1", b"secret", seconds=0.5)
    guard.attach(types.SimpleNamespace(running={"a step": ()}))  # pyright: ignore[reportArgumentType]  # only that is read
    peer = watchdog.Watchdog(1, b"secret")
    peer.connect({0: guard.watchdog.address})
    peer.close()
    threading.Event().wait()


def hit_before_jax_starts(port: str, count: str, number: str, blow: str) -> None:
    """Process 1 gets a signal between the roll call and JAX's own start, which waits for all in C++."""
    if number == "1":
        _jobs.initialize_distributed = lambda *_, **__: os.kill(os.getpid(), signal.Signals[blow])
    begun = time.time()
    address = f"127.0.0.1:{port}"
    raised(lambda: distributed.initialize(address, int(count), int(number), initialization_timeout=4))
    tell(took=time.time() - begun)
