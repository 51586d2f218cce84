"""What the processes of test_restarts.py run: job after job in the same processes, as in a training that heals."""

import gc
import threading
import time
import weakref
from functools import partial
from typing import Any

import jax
from unit.runtime.processes import jobs
from unit.runtime.processes.fault_jobs import tell

import jaxpp.api as jaxpp
from jaxpp import _jobs
from jaxpp.runtime.processes import choice, job, membership


def nothing(_: Any) -> None:
    pass


def loss(weights: Any, microbatch: Any) -> Any:
    jax.debug.callback(nothing, microbatch[0].sum())
    return jobs.loss(weights, microbatch)


def train_step(weights: Any, batch: Any) -> Any:
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), weights), batch, schedule=jaxpp.Std1F1B(2))
    return gradients, losses


def work() -> Any:
    """Run a step with callbacks, and one on meshes that both processes share. Returns the client of JAX."""
    for devices, function in ((None, train_step), (jax.devices()[::2] + jax.devices()[1::2], jobs.train_step)):
        step = jobs.compiled(2, devices, function).compile(*jobs.arguments(2))
        jaxpp.fetch(step(*jobs.arguments(2)))
        step.trace(*jobs.arguments(2))
    jax.effects_barrier()
    return weakref.ref(jax.local_devices()[0].client)


def main(_: str, count: str, number: str, *ports: str) -> None:
    """Take part in a job for each port: tell what was left of the backends, and of the threads, after each.

    The services run in the test, as they do in the head of a training that heals: a process that leaves first would
    otherwise take away what the other one still reads.
    """
    clients: list[Any] = []
    for port in ports:
        address = f"127.0.0.1:{port}"
        choice.choose(None)
        _jobs.join_coordination(_jobs.connected_client(address, int(number), 60), address, int(number), int(count))
        membership.watch_all(60)
        clients.append(work())
        job.gather("")
        membership.leave_job()
        _jobs.leave_coordination()
        end = time.monotonic() + 10  # a thread that has just ended may not have let go of its last frame yet
        gc.collect()
        while any(each() is not None for each in clients) and time.monotonic() < end:
            time.sleep(0.05)
            gc.collect()
        tell(left=sum(each() is not None for each in clients), threads=threading.active_count())
