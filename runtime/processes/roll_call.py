"""The roll call: the processes of a job meet at the address of their coordinator, before JAX connects them.

JAX's own start waits for minutes, hears no Ctrl-C, and aborts the process when somebody is missing. Here each process
says its number, how many processes there are, and its version of JAX; process 0 tells all of them what is wrong, if
anything is. Before that each proves that it knows JAXPP_JOB_SECRET, as watchdogs do (`handshake`). Where that variable
is not set, every process can.
"""

import contextlib
import errno
import json
import re
import selectors
import socket
import time
from collections.abc import Generator, Mapping
from importlib.metadata import version

from jaxpp.runtime.processes.handshake import STRANGERS, Connection, RefusedError, WrongSecretError, converse, introduce
from jaxpp.runtime.processes.membership import ProcessError, job_secret, named

USE = "roll call"
"""What the connections are for."""

POLITE = 5.0
"""Seconds that a process may take, after it has dialled, to say which one it is."""


def roll_call(coordinator: str, processes: int, process: int, seconds: float) -> bool:
    """Wait until all processes have come. Returns whether process 0 could listen at the coordinator's own address.

    coordinator: host:port, where process 0 listens.
    Raises ProcessError, in all processes that have come, when one is missing after `seconds`, or they don't fit.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]+", port):
        raise ProcessError(f"the coordinator's address is {coordinator!r}; give host:port of process 0")
    if not 1 <= int(port) <= 65535:  # else it would be taken modulo 65536
        raise ProcessError(f"the coordinator's address is {coordinator!r}; ports go from 1 to 65535")
    if not 0 <= process < processes:
        raise ProcessError(f"process {process} of {processes}: the numbers go from 0 to {processes - 1}")
    host = host.strip("[]")
    own = {"processes": processes, "jax": version("jax"), "jaxlib": version("jaxlib")}
    if process > 0:
        _answer(host, int(port), process, own, seconds)
        return True
    try:
        address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[4][:2], family=address[0])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ProcessError(f"port {port} is in use on this host; choose another one for the coordinator") from None
        return False  # an address that only the others see, as behind a load balancer: JAX listens on all
    with listener:
        _RollCall(listener, processes, own).hold(seconds, coordinator)
    return True


class _RollCall:
    """Calls the roll, in process 0."""

    def __init__(self, listener: socket.socket, count: int, own: Mapping[str, object]) -> None:
        self.listener, self.count, self.own = listener, count, own
        self.present: dict[int, Connection] = {}
        self.strangers: list[Connection] = []
        """Those that have not said, or not proven, who they are; the oldest first."""
        self.refused: set[int] = set()
        """The numbers of processes that came with another secret."""
        self.selector = selectors.DefaultSelector()

    def hold(self, seconds: float, coordinator: str) -> None:
        """Gather the processes, and tell all of them the outcome."""
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        end = time.monotonic() + seconds
        problem = ""
        while not problem and (missing := sorted({*range(1, self.count)} - self.present.keys())):
            if time.monotonic() > end:
                problem = (
                    f"{named(missing)} of {self.count} did not come to {coordinator} within {seconds:g} s; "
                    "start all of them"
                )
                if wrong := sorted(self.refused & {*missing}):
                    problem += f" (who came as {', '.join(map(str, wrong))} has another job secret, JAXPP_JOB_SECRET)"
            else:
                problem = self._hear()
        for each in (*self.present.values(), *self.strangers):
            with each.socket, contextlib.suppress(OSError):  # it is gone again, which JAX will notice
                if each.peer is not None:
                    each.send({"problem": problem})
        self.selector.close()
        if problem:
            raise ProcessError(problem)

    def _hear(self) -> str:
        """Read what processes say within a moment; returns what is wrong with one of them, or nothing."""
        for key, _ in self.selector.select(0.2):
            if key.fileobj is self.listener:
                with contextlib.suppress(OSError):  # the other end has hung up already
                    self._add(Connection(self.listener.accept()[0]))
            elif key.data.socket.fileno() >= 0 and (problem := self._read(key.data)):
                return problem
        late = [connection for connection in self.strangers if time.monotonic() - connection.heard > POLITE]
        for connection in {*late, *self.strangers[: -STRANGERS - self.count]}:
            self._hang_up(connection)
        return ""

    def _add(self, connection: Connection) -> None:
        connection.socket.setblocking(False)
        self.selector.register(connection.socket, selectors.EVENT_READ, connection)
        self.strangers.append(connection)
        connection.talk = self._talk(connection)
        next(connection.talk)

    def _read(self, connection: Connection) -> str:
        try:
            for message in connection.receive():
                connection.talk.send(message)
        except ProcessError as error:
            return str(error)
        except WrongSecretError as error:
            self.refused.add(error.peer)
            self._hang_up(connection)
        except Exception:  # nothing that a stranger sends may end more than his connection
            self._hang_up(connection)
        return ""

    def _talk(self, connection: Connection) -> Generator[None, bytes, None]:
        """Follow a connection message by message. Raises ProcessError for a process that should not have come."""
        number, _ = yield from introduce(connection, 0, job_secret(), _admit, is_direct=False)
        found = json.loads((yield))
        connection.peer = number
        if found["processes"] != self.count:
            raise ProcessError(
                f"process {number} was told that there are {int(found['processes'])} processes, "
                f"process 0 that there are {self.count}"
            )
        if number in self.present:
            raise ProcessError(f"two processes are process {number}; give each its own number")
        if not 0 < number < self.count:
            raise RefusedError(f"no process {number}")
        for package in ("jax", "jaxlib"):
            if found[package] != self.own[package]:
                raise ProcessError(
                    f"process {number} has {package} {str(found[package])[:50]}, process 0 has {self.own[package]}"
                )
        self.strangers.remove(connection)
        self.present[number] = connection
        yield  # until it hangs up, or the roll call is over
        raise RefusedError("it has nothing more to say")

    def _hang_up(self, connection: Connection) -> None:
        self.selector.unregister(connection.socket)
        connection.socket.close()
        if connection in self.strangers:
            self.strangers.remove(connection)
        elif connection.peer is not None:  # it may be started again
            del self.present[connection.peer]


def _admit(number: int, name: str, use: str) -> None:
    if use != USE or number < 0:
        raise RefusedError(f"{name} does not come to the roll call")


def _answer(host: str, port: int, process: int, own: Mapping[str, object], seconds: float) -> None:
    """Answer the roll call, in all other processes: say who this is, and wait for the outcome."""
    end = time.monotonic() + seconds
    with _dial(host, port, end, seconds) as dialled:
        try:
            # Process 0 says at once who it is. For the others it waits as long, and began at another time.
            now = time.monotonic()
            ends = (max(end, now + POLITE), now + 2 * seconds + POLITE)
            problem = _converse(Connection(dialled, True, USE), process, own, *ends)
        except WrongSecretError:
            raise ProcessError(f"process 0 at {host}:{port} has another job secret (JAXPP_JOB_SECRET)") from None
        except Exception:  # something else than a process of the job listens there
            raise ProcessError(
                f"what listens at {host}:{port} is no coordinator; "
                "all processes have to call jaxpp.distributed.initialize, with one address"
            ) from None
    if problem:
        raise ProcessError(problem)


def _dial(host: str, port: int, end: float, seconds: float) -> socket.socket:
    while True:
        try:
            dialled = socket.create_connection((host, port), max(end - time.monotonic(), 0.1))
            if dialled.getsockname() != dialled.getpeername():  # else TCP has connected it to itself
                return dialled
            dialled.close()
        except OSError as error:
            if time.monotonic() > end:
                raise ProcessError(
                    f"no coordinator at {host}:{port} within {seconds:g} s ({error}); "
                    "is process 0 started, and is that its address?"
                ) from None
        time.sleep(0.1)


def _converse(connection: Connection, process: int, own: Mapping[str, object], known_by: float, told_by: float) -> str:
    """The outcome, as process 0 tells it. Raises TimeoutError for silence, any other exception for another process.

    known_by, told_by: until when process 0 has to show that it is one, and to tell the outcome.
    """

    def talk() -> Generator[None, bytes, str]:
        peer, _ = yield from introduce(connection, process, job_secret(), _admit, is_direct=False)
        if peer != 0:
            raise RefusedError(f"process {peer} is not process 0")
        connection.peer = peer
        connection.send(own)
        return str(json.loads((yield))["problem"])

    return converse(connection, talk(), lambda: known_by if connection.peer is None else told_by)
