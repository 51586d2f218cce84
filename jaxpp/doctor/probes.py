"""The probes that run in child processes: `python -m jaxpp.doctor.probes NAME ARGUMENT... SECONDS`.

Each probe prints JSON objects, one a line: its present activity, its results, and its problem if there is one.
"""

import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from jaxpp.doctor.finding import in_one_line

SIZE = 1 << 18
"""The number of floats that a transport is tried with, 1 MB: jaxpp sends small values in another way."""


def _say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def _resolve(host: str, port: str, _: float) -> None:
    """Tells an address of a host."""
    _say(doing=f"it resolves {host}")
    _say(address=socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][4][0])


def _devices(_: float) -> None:
    """Tells which settings are wrong, which devices each platform has, and the names of the transports."""
    _say(doing="it imports JAX")
    import jax

    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(in_one_line(record.getMessage()))
    logging.getLogger("jax").addHandler(handler)
    from jaxpp import _jobs
    from jaxpp.runtime.processes import choice, membership, ordered

    wrong: list[str] = []
    for check in (membership.watchdog_seconds, membership.progress_seconds, choice.wanted, ordered.tags_are_wanted):
        wrong += _complaint(check)
    if given := os.environ.get("JAXPP_TRANSFER_ADDRESS"):
        wrong += _complaint(lambda: membership.keep_own_port(given).close())
    _say(wrong=wrong, transports=choice.names(), doing="JAX starts its devices")
    default = jax.devices()[0].platform
    kinds = {each: jax.devices(each) for each in sorted(_jobs.started_platforms())}
    platforms = {name: [len(found), str(found[0].device_kind)] for name, found in kinds.items()}
    _say(default=default, platforms=platforms, warnings=logged)


def _complaint(check: Callable[[], object]) -> list[str]:
    """Returns the text of the ProcessError that a check raises, if it does."""
    from jaxpp.distributed import ProcessError

    try:
        check()
    except ProcessError as error:
        return [str(error)]
    return []


def _transport(name: str, platform: str, port: str, process: str, seconds: float) -> None:
    """Sends 1 MB to the other one of two processes, and takes as much from it. Tells how long that took."""
    _say(doing="it imports JAX")
    import jax
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    from jaxpp import distributed
    from jaxpp.runtime.processes import choice
    from jaxpp.runtime.processes.transfer import key
    from jaxpp.runtime.processes.transport import ProcessTransfer
    from jaxpp.runtime.processes.waiting import Waiting

    me = int(process)
    _say(doing="it waits for the other process")
    # Nothing of the surroundings counts, such as the variables of a SLURM job.
    address = f"127.0.0.1:{port}"
    options: dict[str, Any] = {"cluster_detection_method": "deactivate", "coordinator_bind_address": address}
    if platform != "cpu":
        options["local_device_ids"] = [me]
    distributed.initialize(address, 2, me, initialization_timeout=seconds, transport=name, **options)
    _say(doing="JAX starts its devices")
    shardings = [SingleDeviceSharding(jax.local_devices(process_index=each)[0]) for each in range(2)]
    carrier = choice.transport()
    types = [jax.ShapeDtypeStruct((SIZE,), np.float32, sharding=sharding) for sharding in shardings]
    transfers = [ProcessTransfer(key("doctor", k), k, 1 - k, [types[k]], [types[1 - k]]) for k in range(2)]
    values = [np.random.default_rng(k).standard_normal(SIZE, np.float32) for k in range(2)]
    array = jax.device_put(values[me], shardings[me])
    _say(doing="it sends and receives 1 MB")
    begun = time.monotonic()
    carrier.begin(transfers, 0)
    if me == 0:
        carrier.offer(transfers[0], 0, [array])
    (pulled,) = carrier.pull(transfers[1 - me], 0)
    if me == 1:
        carrier.offer(transfers[1], 0, [array])
    came = np.asarray(carrier.wait(pulled, Waiting(1 - me, me, "1 MB from")))
    if not np.array_equal(came, values[1 - me]):
        raise ValueError("other values came than were sent")
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    _say(seconds=time.monotonic() - begun, descriptors=len(os.listdir(folder)), doing="it leaves the other process")


PROBES: dict[str, Callable[..., None]] = {"resolve": _resolve, "devices": _devices, "transport": _transport}


def main() -> None:
    """Runs the probe that the arguments name. Whatever happens to its parent, it ends after its seconds."""
    name, *arguments, seconds = sys.argv[1:]
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, float(seconds) + 5)
    try:
        PROBES[name](*arguments, float(seconds))
    except BaseException as error:  # of any kind: the parent shows it
        _say(problem=f"{type(error).__name__}: {in_one_line(error)}")
        os._exit(1)  # at once: JAX would wait for the other process


if __name__ == "__main__":
    main()
