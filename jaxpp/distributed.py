"""Starts a job of several processes, and names the errors that end its steps (docs/jobs.md)."""

import os
import time
from collections.abc import Callable
from typing import Any

from jaxpp import _jobs
from jaxpp.runtime.processes import choice, membership
from jaxpp.runtime.processes.faults import PeerError
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.reporting import reporter
from jaxpp.runtime.processes.roll_call import roll_call
from jaxpp.runtime.processes.waiting import TransferError

LONG = 100_000
"""The seconds after which JAX itself aborts a process that waits for the start; jaxpp gives up long before."""

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
    """Calls `jax.distributed.initialize`, and raises within seconds where JAX waits for minutes and then aborts.

    After that the processes watch each other. A process reports at once when a peer dies or fails. SIGTERM ends a
    process until it first asks JAX's preemption service, as `jaxpp.checkpoint.Preemption` does: that catches the
    signal.

    All processes of the job call this function before they use JAX. JAX finds the first three arguments, if they are
    missing, in the variables of SLURM and of other cluster managers.

    Args:
        coordinator_address: host:port where process 0 listens. Process 0 listens at no other address: unlike with JAX,
            other hosts can't reach a port of 127.0.0.1. `coordinator_bind_address` sets another one.
        num_processes: the number of processes.
        process_id: the index of this process, from 0.
        initialization_timeout: the seconds within which all processes must start.
        transport: the transport of values between processes: `pull`, `device_put` or `pair` (docs/jobs.md),
            the same in all processes. None: the value of JAXPP_TRANSPORT. If that is not set, the transport that suits
            the devices.
        options: other arguments of `jax.distributed.initialize`.

    Raises:
        ProcessError: the processes don't form a job. One is missing, is there twice, or has another number of
            processes, another version of JAX or another secret. Or one died, failed or froze before JAX had started on
            all. Or nobody listens at the coordinator's address, it is not an address of process 0, or its port is in
            use. Or no transport has this name. Or this process is in a job already.
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
    own = reporter(coordinator, process)

    def start(seconds: float, look: Callable[[], None]) -> None:
        end = time.monotonic() + seconds
        options["initialization_timeout"] = LONG
        _jobs.initialize_distributed(coordinator, processes, process, **options)
        # `watch_all` names a process that it can't reach one second before the whole start times out.
        membership.watch_all(2 * seconds, look, round(max(end - time.monotonic() - 1.0, 1.0), 1))

    try:
        joint = roll_call(coordinator, processes, process, initialization_timeout, bind)
        if joint.bind_address:
            options["coordinator_bind_address"] = joint.bind_address
        joint.run(start)
    except BaseException:  # nothing can interrupt JAX's start
        membership.leave_job()
        own.job = ""  # the next call may name another one
        _jobs.skip_farewell()
        raise
