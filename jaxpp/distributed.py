"""The start of a job of several processes, and the errors that end its steps (docs/multihost.md)."""

import os
import time
from collections.abc import Callable
from typing import Any

from jaxpp import _jobs
from jaxpp.runtime.processes import choice, membership
from jaxpp.runtime.processes.faults import PeerError
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.roll_call import roll_call
from jaxpp.runtime.processes.waiting import TransferError

LONG = 100_000
"""Seconds after which JAX aborts a process whose start waits: long after it was given up."""

__all__ = ["PeerError", "ProcessError", "TransferError", "initialize"]


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    initialization_timeout: float = 60,
    transport: str | None = None,
    **options: Any,
) -> None:
    """`jax.distributed.initialize`, with an error within seconds where JAX waits for minutes and then aborts.

    From then on the processes watch each other: each says at once when another one dies or fails. SIGTERM ends a
    process until it first asks JAX's preemption service, as `jaxpp.checkpoint.Preemption` does: that catches it.

    All processes of the job call it, before anything else of JAX. JAX finds those of the first three arguments that are
    not given in the variables of SLURM and others.

    Args:
        coordinator_address: host:port where process 0 listens, there and nowhere else: other than with JAX, a port of
            127.0.0.1 can't be reached from other hosts. `coordinator_bind_address` is for another choice.
        num_processes: how many processes there are.
        process_id: which of them this is, from 0.
        initialization_timeout: seconds within which all have to be started.
        transport: what carries values from process to process: `pull`, `device_put`, `pair` or `nccl`
            (docs/multihost.md), the same in all of them. By default what JAXPP_TRANSPORT says, or else
            what suits the devices.
        options: what else `jax.distributed.initialize` takes.

    Raises:
        ProcessError: a process is missing or there twice, was told another number of processes, has another version of
            JAX; one died, failed or froze before JAX had started on all; nobody listens at the coordinator's address,
            or it is not that of process 0; its port is in use; one has another secret; there is no such transport.
    """
    if _jobs.key_value_store() is not None:
        raise ProcessError("this process takes part in a job already: jaxpp.distributed.initialize is called once")
    membership.watchdog_seconds()
    choice.choose(transport)
    given = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"), num_processes, process_id
    method = options.get("cluster_detection_method")
    coordinator, processes, process = _jobs.surroundings(*given, method, round(initialization_timeout))
    if coordinator is None or processes is None or process is None:
        raise ProcessError(
            "nothing here says who takes part: give coordinator_address, num_processes and process_id, as SLURM and "
            "others do in their variables"
        )
    bind = options.get("coordinator_bind_address") or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", "")
    joint = roll_call(coordinator, processes, process, initialization_timeout, bind)
    if joint.bind_address:
        options["coordinator_bind_address"] = joint.bind_address

    def start(seconds: float, look: Callable[[], None]) -> None:
        end = time.monotonic() + seconds
        options["initialization_timeout"] = LONG
        _jobs.initialize_distributed(coordinator, processes, process, **options)
        # A process that is not reached is named a second before the start as a whole is given up.
        membership.watch_all(2 * seconds, look, round(max(end - time.monotonic() - 1.0, 1.0), 1))

    try:
        joint.run(start)
    except BaseException:  # nothing can end JAX's start
        membership.leave_job()
        _jobs.skip_farewell()
        raise
