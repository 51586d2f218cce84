"""Jobs that hang, each with what the autopsy must say of it: `main` is what their processes run.

Run as a script, with the names of some of them or none, this module hangs them one after the other, and prints a table.
"""

import ctypes
import fcntl
import os
import queue
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from unit.runtime.processes import fault_jobs, jobs, together

import jaxpp.api as jaxpp
from jaxpp import _compat, _jobs, checkpoint, distributed
from jaxpp.runtime.processes import membership
from jaxpp.runtime.processes.reporting import autopsies
from jaxpp.runtime.processes.transfer import PullTransport, key
from jaxpp.runtime.processes.transport import ProcessTransfer
from jaxpp.runtime.processes.waiting import Waiting
from jaxpp.tuning.tuner import Tuner

FOREVER = 3600.0
FOLDER = "FOLDER_OF_A_HANG"
"""The variable that names a folder for the files of a job."""


def forever(*_: Any, **__: Any) -> Any:
    time.sleep(FOREVER)


def step_of(stages: int, function: Any = jobs.train_step) -> tuple[Any, Any, Any]:
    """A step after its first call, its weights and its batch."""
    weights, batch = jobs.arguments(stages)
    step = jobs.compiled(stages, function=function).compile(weights, batch)
    return step, step(weights, batch)[0], batch


def data_loader() -> None:
    step, weights, batch = step_of(2)
    if jax.process_index() == 1:
        queue.Queue[int]().get()
    step(weights, batch)


def collective() -> None:
    """A partner in a collective of a stage does not come."""
    step, weights, batch = fault_jobs.shared_step()
    if jax.process_index() == 1:
        fault_jobs.act_in_mid_step(step, "stage 1, microbatch 2", forever)
    step(weights, batch)


def no_compile() -> None:
    if jax.process_index() == 1:
        forever()
    step_of(2)


def slow_compile() -> None:
    if jax.process_index() == 1:
        _compat.compile_program = forever
    step_of(2)


def stopped() -> None:
    step, weights, batch = step_of(3)
    if jax.process_index() == 2:
        fault_jobs.hit_in_mid_step(step, signal.SIGSTOP, "stage 2, microbatch 2")
    step(weights, batch)


def python_lock() -> None:
    """A function in C keeps Python's lock."""
    step, weights, batch = step_of(2)
    if jax.process_index() == 1:
        ctypes.PyDLL(None).sleep(int(FOREVER))
    step(weights, batch)


def with_callback(call: Callable[[Any], Any]) -> Callable[..., Any]:
    def loss(weights: Any, microbatch: Any) -> Any:
        x, y = microbatch
        for number, w in enumerate(weights):
            x = jnp.tanh(x @ w)
            x = jaxpp.mark_stage_end(call(x) if number == 1 else x)
        return jnp.mean((x - y) ** 2)

    def train_step(weights: Any, batch: Any) -> Any:
        gradient = partial(jax.value_and_grad(loss), weights)
        losses, gradients = jaxpp.treduce(
            gradient, batch, schedule=jaxpp.Std1F1B(2), operation=(jaxpp.Concat(), jaxpp.Add)
        )
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], losses.mean()

    return train_step


def tokenize(_: Any) -> Any:
    threading.Event().wait(FOREVER)
    return np.float32(0)


def scaled(x: Any) -> Any:
    return x + jax.pure_callback(tokenize, jax.ShapeDtypeStruct((), np.float32), jax.lax.stop_gradient(x[0, 0]))


def logged(x: Any) -> Any:
    jax.debug.callback(tokenize, x[0, 0])
    return x


def callback() -> None:
    step_of(2, with_callback(scaled))


def debug_callback() -> None:
    step_of(2, with_callback(logged))


def two_threads() -> None:
    """A thread waits for the lock of a step, whose holder waits for a process that does something else."""
    step, weights, batch = step_of(2)
    if jax.process_index() == 1:
        forever()
    threading.Thread(target=step, args=(weights, batch), daemon=True).start()
    time.sleep(0.5)
    step(weights, batch)


def slow_disk() -> None:
    """The disk of process 0 takes for ever, and all wait for the save."""
    step, weights, batch = step_of(2)
    with checkpoint.Saver(os.environ[FOLDER]) as saver:
        saver._end = forever
        saver._checkpointer._post_finalization_callback = forever
        saver.save(1, weights)
        saver.wait_until_finished()
        step(weights, batch)


def no_save() -> None:
    _, weights, _ = step_of(2)
    with checkpoint.Saver(os.environ[FOLDER]) as saver:
        if jax.process_index() == 1:
            forever()
        saver.save(1, weights)


def no_fetch() -> None:
    step, weights, batch = step_of(2)
    loss = step(weights, batch)[1]
    if jax.process_index() == 1:
        forever()
    jaxpp.fetch(loss)


def two_orders() -> None:
    """Each waits for a value of the other before it sends its own."""
    me = jax.process_index()
    membership.published(f"test/{1 - me}", 1 - me)
    membership.publish(f"test/{me}", b"a value")


def cycle_of_three() -> None:
    """Each asks for a value of the next process, which asks somebody else first."""
    membership.watch_all(60)
    me, own = jax.process_index(), membership.endpoint()
    sender = (me + 1) % 3
    types = [jax.ShapeDtypeStruct((4,), np.float32, sharding=jax.sharding.SingleDeviceSharding(own.device))]
    array = own.pull(ProcessTransfer(key("test", sender), sender, me, (), types), 0)[0]
    own.wait(array, Waiting(sender, 0, "receive on channel 7 (forward of stage 0) from"))


def lost_message() -> None:
    """A value that process 0 sends gets lost."""
    step, weights, batch = step_of(2)
    if jax.process_index() == 0:
        lost = PullTransport.offer

        offered: list[int] = []

        def offer(self: PullTransport, transfer: ProcessTransfer, step: int, arrays: list[Any]) -> None:
            offered.append(transfer.number)
            if len(offered) != 2:
                lost(self, transfer, step, arrays)

        PullTransport.offer = offer
    step(weights, batch)


def autotuner() -> None:
    """The tuner of process 0 waits for the times that process 1 measured."""
    if jax.process_index() == 1:
        Tuner._gathered = forever
    weights, batch = jobs.arguments(2)
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")
    train_step = partial(jobs.train_step, schedule="auto")
    step = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=mesh)
    for _ in range(50):
        weights, _ = step(weights, batch)


def file_lock() -> None:
    """Process 0 holds a lock of a file, and waits for process 1, which waits for the lock."""
    step, weights, batch = step_of(2)
    with Path(os.environ[FOLDER], "lock").open("w") as file:
        if jax.process_index() == 1:
            time.sleep(0.5)
        fcntl.flock(file, fcntl.LOCK_EX)
        step(weights, batch)


def slow_copy() -> None:
    """Orbax does not begin the save in process 1. Process 0 waits in it, at a barrier of its own."""
    _, weights, _ = step_of(2)
    with checkpoint.Saver(os.environ[FOLDER]) as saver:
        if jax.process_index() == 1:
            saver._checkpointer.save = forever
        saver.save(1, weights)


def barrier() -> None:
    """Process 1 doesn't come to a barrier in the code of the user."""
    step, weights, batch = step_of(2)
    step(weights, batch)
    if jax.process_index() == 1:
        forever()
    multihost_utils.sync_global_devices("evaluated")


def end() -> None:
    """Process 0 has ended, and waits for process 1."""
    step_of(2)
    if jax.process_index() == 1:
        forever()


def absent() -> None:
    """Process 1 never comes to the roll call."""


def jax_start() -> None:
    """JAX does not start in process 1."""


def firewall() -> None:
    """JAX in process 1 does not reach the coordinator."""


def start_elsewhere(_: str, *arguments: Any, initialize: Any = _jobs.initialize_distributed, **options: Any) -> None:
    """JAX's start, with an address at which nobody listens."""
    initialize("127.0.0.1:1", *arguments, **options)


@dataclass(frozen=True)
class Hang:
    """A job that hangs: how many processes and devices, and a regular expression of the report's first line."""

    job: Callable[[], None]
    reason: str
    processes: int = 2
    devices: int = 1


NAME = r"process {} \(\S+, pid \d+\) "
AT = r" \S*/{}\.py:\d+, in {}; process(es)? {} waits? for it; nothing has moved for \d+ s"


def is_at(process: int, function: str, waiters: str = "0", file: str = "hang_jobs") -> str:
    return NAME.format(process) + "is at" + AT.format(file, function, waiters)


def has_waited(process: int, what: str, waiters: str = "0") -> str:
    return NAME.format(process) + rf"has waited \d+ s for {what}, at" + AT.format("hang_jobs", r"\w+", waiters)


HANGS = [
    Hang(data_loader, is_at(1, "data_loader")),
    Hang(collective, is_at(1, "forever"), devices=2),
    Hang(no_compile, is_at(1, "forever")),
    Hang(slow_compile, has_waited(1, r"the compilation of @\w+ for mesh 1")),
    Hang(stopped, NAME.format(2) + "is stopped; processes 0, 1 wait for it; nothing has moved for .*", 3),
    Hang(python_lock, NAME.format(1) + r"has not answered for \d+ s; process 0 waits for it; .*"),
    Hang(callback, has_waited(1, "a host callback")),
    Hang(debug_callback, has_waited(1, "a host callback")),
    Hang(two_threads, is_at(1, "forever")),
    Hang(slow_disk, has_waited(0, r"the save of step 1 in \S*", "1")),
    Hang(no_save, is_at(1, "forever")),
    Hang(no_fetch, is_at(1, "forever")),
    Hang(two_orders, r"processes 0, 1 wait for each other; nothing has moved for \d+ s"),
    Hang(cycle_of_three, r"processes 0, 1, 2 wait for each other in this order; nothing has moved for \d+ s", 3),
    Hang(lost_message, r"processes 0, 1 wait for each other; nothing has moved for \d+ s"),
    Hang(autotuner, is_at(1, "forever")),
    Hang(file_lock, is_at(1, "file_lock")),
    Hang(slow_copy, has_waited(1, "the beginning of the save of step 1")),
    Hang(barrier, is_at(1, "forever")),
    Hang(end, is_at(1, "forever")),
    Hang(absent, "process 1 has not been heard of; process 0 waits for it; .*"),
    Hang(jax_start, has_waited(1, "JAX to start on all processes")),
    Hang(firewall, r"processes 0, 1 wait for each other; nothing has moved for \d+ s"),
]


def main(port: str, count: str, number: str, name: str) -> None:
    """One of the processes."""
    hang = next(each for each in HANGS if each.job.__name__ == name)
    if hang.job is absent and number == "1":
        return
    if hang.job is jax_start and number == "1":
        _jobs.initialize_distributed = forever
    if hang.job is firewall and number == "1":
        _jobs.initialize_distributed = start_elsewhere
    jax.config.update("jax_enable_preemption_service", False)
    distributed.initialize(f"127.0.0.1:{port}", int(count), int(number), initialization_timeout=100)
    hang.job()


@contextmanager
def hanging(hang: Hang) -> Generator[tuple[Sequence[Any], Sequence[str]]]:
    """A job that hangs, or is about to: its processes, and the files that hold what they print."""
    names, function = [[hang.job.__name__]] * hang.processes, f"{__name__}:{main.__name__}"
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {FOLDER: folder}),
        together.started(names, hang.devices, function) as found,
    ):
        yield found


def until(reason: str, report: Callable[[], str], seconds: float = 60) -> str:
    """The report, as soon as one has this first line, or the last one."""
    found, expected, finish = "", re.compile(rf"^(jaxpp: )?{reason}\n", re.MULTILINE), time.monotonic() + seconds
    while not expected.search(found) and time.monotonic() < finish:
        time.sleep(0.05)
        found = report()
    return found


def on_demand(child: Any) -> str:
    """The report for `jaxpp-run --autopsy` of a process."""
    try:
        return "\n".join(autopsies(child.pid))
    except LookupError as error:
        return str(error)


def printed(outputs: Sequence[str]) -> str:
    """The reports that processes have printed."""
    return "".join(Path(each).read_text(encoding="utf-8") for each in outputs)


if __name__ == "__main__":
    from unit.runtime.processes import hang_jobs

    for each in hang_jobs.HANGS:
        if each.job.__name__ in sys.argv[1:] or not sys.argv[1:]:
            began = time.monotonic()
            with hang_jobs.hanging(each) as (children, _):
                report = hang_jobs.until(each.reason, partial(hang_jobs.on_demand, children[0]))
            found = "named" if re.match(rf"{each.reason}\n", report) else "NOT NAMED"
            print(f"\n{each.job.__name__}: {found} after {time.monotonic() - began:.1f} s\n{report}", flush=True)
