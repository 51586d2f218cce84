"""Who has come: the processes of a job meet at the address of their coordinator before JAX does.

JAX's own start waits for minutes, hears no Ctrl-C, and aborts the process when somebody is missing. Here each process
says its number, of how many, and its version of JAX; process 0 tells all of them what is wrong, if anything is.
"""

import contextlib
import errno
import json
import socket
import time
from collections.abc import Mapping
from importlib.metadata import version

from jaxpp.runtime.processes import ProcessError

LONGEST = 4096
"""Bytes of a message at most."""

POLITE = 2.0
"""Seconds that who has dialled may take to say something."""


def roll_call(coordinator: str, processes: int, process: int, seconds: float) -> bool:
    """Wait until all processes have come. Returns whether process 0 could listen at the coordinator's own address.

    coordinator: host:port, where process 0 listens.
    Raises ProcessError, in all processes that have come, when one is missing after `seconds`, or they don't fit.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ProcessError(f"the coordinator's address is {coordinator!r}; give host:port of process 0")
    if not 0 <= process < processes:
        raise ProcessError(f"process {process} of {processes}: the numbers go from 0 to {processes - 1}")
    host = host.strip("[]")
    own = {"process": process, "processes": processes, "jax": version("jax"), "jaxlib": version("jaxlib")}
    if process > 0:
        _answer(host, int(port), own, seconds)
        return True
    try:
        address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[4][:2], family=address[0])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ProcessError(f"port {port} is in use on this host; choose another one for the coordinator") from None
        return False  # an address that only the others see, as behind a load balancer: JAX listens on all
    with listener:
        _Call(listener, own).hold(seconds, coordinator)
    return True


class _Call:
    """Process 0's side."""

    def __init__(self, listener: socket.socket, own: Mapping[str, object]) -> None:
        self.listener, self.own = listener, own
        self.present = {0}
        self.dialled: list[socket.socket] = []

    def hold(self, seconds: float, coordinator: str) -> None:
        """Gather the processes, and tell all of them the outcome."""
        count = int(str(self.own["processes"]))
        end = time.monotonic() + seconds
        problem = ""
        while not problem and (missing := sorted(set(range(count)) - self.present)):
            if time.monotonic() > end:
                names = f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
                problem = f"{names} of {count} did not come to {coordinator} within {seconds:g} s; start all of them"
            else:
                problem = self._admit()
        for each in self.dialled:
            with each, contextlib.suppress(OSError):  # gone again, which JAX will notice
                each.sendall(json.dumps({"problem": problem}).encode() + b"\n")
        if problem:
            raise ProcessError(problem)

    def _admit(self) -> str:
        """Hear one process, if one comes soon; what is wrong with it."""
        self.listener.settimeout(0.2)
        try:
            dialled, _ = self.listener.accept()
        except TimeoutError:
            return ""
        found = _read(dialled, POLITE)
        number = found.get("process")
        if not isinstance(number, int):
            dialled.close()  # a stranger
            return ""
        self.dialled.append(dialled)
        if number in self.present:
            return f"two processes are process {number}; give each its own number"
        self.present.add(number)
        theirs, ours = found.get("processes"), self.own["processes"]
        if theirs != ours:
            return f"process {number} was told that there are {theirs} processes, process 0 that there are {ours}"
        for package in ("jax", "jaxlib"):
            if found.get(package) != self.own[package]:
                return f"process {number} has {package} {found.get(package)}, process 0 has {self.own[package]}"
        return ""


def _answer(host: str, port: int, own: Mapping[str, object], seconds: float) -> None:
    """The side of the others: say who this is, hear the outcome."""
    end = time.monotonic() + seconds
    while True:
        try:
            dialled = socket.create_connection((host, port), max(end - time.monotonic(), 0.1))
            break
        except OSError as error:
            if time.monotonic() > end:
                raise ProcessError(
                    f"no coordinator at {host}:{port} within {seconds:g} s ({error}); "
                    "is process 0 started, and is that its address?"
                ) from None
            time.sleep(0.1)
    with dialled:
        dialled.sendall(json.dumps(own).encode() + b"\n")
        # Process 0 waits as long for the others, and began at another time.
        found = _read(dialled, 2 * seconds + POLITE)
    problem = found.get("problem")
    if problem is None:
        raise ProcessError(
            f"what listens at {host}:{port} is no coordinator; "
            "all processes have to call jaxpp.distributed.initialize, with one address"
        )
    if problem:
        raise ProcessError(str(problem))


def _read(dialled: socket.socket, seconds: float) -> dict[str, object]:
    """A line of JSON; empty when none comes."""
    dialled.settimeout(seconds)
    try:
        with dialled.makefile("rb") as lines:
            found = json.loads(lines.readline(LONGEST))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
