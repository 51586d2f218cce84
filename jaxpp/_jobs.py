"""Every private name of `jax.distributed` that jaxpp uses: the part of `_compat.py` for jobs of several processes."""

import atexit
import contextlib
import gc
import inspect
import sys
from typing import Any

from jaxpp._compat import jaxlib_extension
from jaxpp._versions import explained


def key_value_store() -> Any:
    """Returns the client of the store that the processes of `jax.distributed` share; None outside of a job."""
    from jax._src import distributed

    return distributed.global_state.client


def skip_farewell() -> None:
    """Lets the interpreter end as if there were no `jax.distributed`, and no backend to clear.

    JAX's own shutdown waits for all processes, and aborts this process if one of them is dead. A destroyed backend
    waits for its programs, and these wait for the dead process.
    """
    import ctypes

    from jax._src import distributed, xla_bridge

    state = distributed.global_state
    # Not `backends()`, which would start those that have not started.
    for kept in (state.client, state.service, state.preemption_sync_manager, *xla_bridge._backends.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    state.client = state.service = state.preemption_sync_manager = None


class _PreemptionOnDemand:
    """JAX's preemption service, started by the first question to it. Once it runs, SIGTERM ends no process."""

    def start(self) -> Any:
        from jax._src import distributed

        state = distributed.global_state
        state.preemption_sync_manager = None
        state.initialize_preemption_sync_manager()
        return state.preemption_sync_manager

    def reached_sync_point(self, step: int) -> bool:
        return self.start().reached_sync_point(step)

    def shutdown(self) -> None:
        pass


def initialize_distributed(*arguments: Any, **options: Any) -> None:
    """Calls `jax.distributed.initialize`; the preemption service, if it is on, starts on demand."""
    import jax
    from jax._src import distributed

    is_wanted: bool = distributed._ENABLE_PREEMPTION_SERVICE.value
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(*arguments, **options)
    finally:
        jax.config.update("jax_enable_preemption_service", is_wanted)
    if is_wanted:
        distributed.global_state.preemption_sync_manager = _PreemptionOnDemand()


def surroundings(
    address: str | None, count: int | None, number: int | None, method: str | None, seconds: int
) -> tuple[str | None, int | None, int | None]:
    """Returns the coordinator's address, the number of processes and the index of this one.

    JAX finds the missing ones, unless `method` is "deactivate".
    """
    if method == "deactivate" or None not in (address, count, number):
        return address, count, number
    from jax._src.clusters import ClusterEnv

    return ClusterEnv.auto_detect_unset_distributed_params(address, count, number, None, method, seconds)[:3]


def start_coordination(address: str, count: int) -> Any:
    """Starts a service of `jax.distributed` for `count` processes, which may die; its `shutdown()` ends it."""
    return jaxlib_extension().get_distributed_runtime_service(address, count, shutdown_timeout=1, recoverable=True)


def connected_client(address: str, number: int, seconds: int) -> Any:
    """Returns a client of the service of `start_coordination`, as soon as all processes of the job have one.

    Only the timeout ends its wait. Without a callback jaxlib would then abort the process. It fails to call this one,
    which raises instead.

    Raises:
        ConnectionError: not all processes came within `seconds`.
    """
    client = jaxlib_extension().get_distributed_runtime_client(
        address,
        number,
        init_timeout=seconds,
        missed_heartbeat_callback=_ignore,
        shutdown_on_destruction=False,
    )
    try:
        client.connect()
    except Exception:  # std::bad_cast
        raise ConnectionError(f"not all processes of the job came to {address} within {seconds} s") from None
    return client


def _ignore(*_: object) -> None: ...


def join_coordination(client: Any, address: str, number: int, count: int) -> None:
    """Makes `client` the client of `jax.distributed`, for a job whose service runs in none of the processes."""
    import jax
    from jax._src import distributed

    state = distributed.global_state
    state.process_id, state.num_processes, state.coordinator_address = number, count, address
    state.client = client
    state.preemption_sync_manager = _PreemptionOnDemand()
    atexit.unregister(jax.distributed.shutdown)
    atexit.register(jax.distributed.shutdown)


def leave_coordination() -> None:
    """Leaves the job, and forgets all devices, so that JAX can start again as if for the first time."""
    import jax
    from jax._src import distributed
    from jax.extend.backend import clear_backends

    with contextlib.suppress(Exception):  # the service may be gone
        jax.distributed.shutdown()
    distributed.global_state.client = None
    clear_backends()
    gc.collect()


def started_platforms() -> set[str]:
    """Returns the platforms of the backends that have started."""
    from jax._src import xla_bridge

    return {each.platform for each in xla_bridge._backends.values()}


def wanted_platforms() -> list[str]:
    """Returns the platforms that JAX was told to start with, the default one first; only "" if JAX chooses."""
    import jax

    platforms: str | None = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]  # an option
    return (platforms or "").split(",")


def start_preemption_service() -> None:
    """Starts the preemption service that `initialize_distributed` put off."""
    from jax._src import distributed

    manager = distributed.global_state.preemption_sync_manager
    if isinstance(manager, _PreemptionOnDemand):
        manager.start()


def is_backend_starting() -> bool:
    """Whether a thread of this process is starting JAX's backends.

    In a job that thread holds the lock, and waits until all processes have announced their devices.
    """
    from jax._src import xla_bridge

    return xla_bridge._backend_lock.locked() and not xla_bridge._backends


def process_numbers() -> tuple[int, int]:
    """Returns the index of this process and the number of processes of `jax.distributed`, before a backend starts."""
    from jax._src import distributed

    return distributed.global_state.process_id, distributed.global_state.num_processes


def coordinator_address() -> str:
    """Returns host:port of process 0 of `jax.distributed`."""
    from jax._src import distributed

    return str(distributed.global_state.coordinator_address)


def files_of_barriers() -> set[str]:
    """Returns the files of the functions by which JAX and Orbax wait for all processes, for a look at stacks."""
    names = "jax._src.distributed", "jax.experimental.multihost_utils", "orbax.checkpoint._src.multihost.multihost"
    return {str(sys.modules[name].__file__) for name in names if name in sys.modules}


for _name, _function in list(globals().items()):
    if inspect.isfunction(_function) and _function.__module__ == __name__:
        globals()[_name] = explained(_function)
