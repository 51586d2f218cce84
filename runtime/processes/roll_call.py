"""The roll call: the processes of a job meet at the address of their coordinator, before JAX connects them.

JAX's own start waits for minutes, hears no Ctrl-C, and aborts the process when somebody is missing. Here each process
says its number, how many processes there are, and its version of JAX; process 0 tells all of them what is wrong, if
anything is. Before that each proves that it knows JAXPP_JOB_SECRET, as watchdogs do (`handshake`). Where that variable
is not set, every process can. The connections stay until JAX has started (`joint_start`).
"""

import contextlib
import errno
import json
import platform
import re
import selectors
import socket
import threading
import time
from collections.abc import Generator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

from jaxpp.runtime.processes.handshake import STRANGERS, Connection, RefusedError, WrongSecretError, converse, introduce
from jaxpp.runtime.processes.joint_start import POLITE, JointStart
from jaxpp.runtime.processes.membership import ProcessError, job_secret, keep_port, lend_port, named
from jaxpp.runtime.processes.waiting import aside
from jaxpp.runtime.processes.wire import TICK

USE = "roll call"
"""What the connections are for."""


def roll_call(coordinator: str, processes: int, process: int, seconds: float, bind: str = "") -> JointStart:
    """Wait until all processes have come. Returns what starts JAX on all of them.

    coordinator: host:port by which all reach process 0. Process 0 listens there; where its host does not have that
        address, such as that of a load balancer, it listens at all of its own, and calls itself.
    bind: host:port where process 0 is to listen instead.
    Raises ProcessError, in all processes that have come, when one is missing after `seconds`, or they don't fit.
    """
    host, port = _host_and_port(coordinator, "the coordinator's address is")
    at = _host_and_port(bind, "coordinator_bind_address is") if bind else (host, port)
    if not 0 <= process < processes:
        raise ProcessError(f"process {process} of {processes}: the numbers go from 0 to {processes - 1}")
    own = {"processes": processes, "jax": version("jax"), "jaxlib": version("jaxlib")}
    if process > 0:
        connection, left = _answer(host, port, process, own, seconds)
        return JointStart(process, processes, {0: connection}, left)
    begun = time.monotonic()
    listener, kept, not_own = _listen(*at, seconds, only_there=bool(bind))
    call = _RollCall(listener, processes, own, not_own)
    if not_own:
        threading.Thread(target=call.come, args=(host, port, seconds), name="jaxpp-roll-call", daemon=True).start()
    try:
        with listener:
            left = call.hold(begun + seconds, seconds, coordinator)
            lend_port(kept)
    except BaseException:
        kept.close()
        raise
    return JointStart(0, processes, call.present, left, kept, bind or ("" if not_own else coordinator))


def _host_and_port(address: str, what: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]+", port):
        raise ProcessError(f"{what} {address!r}; give host:port of process 0")
    if not 1 <= int(port) <= 65535:  # else it would be taken modulo 65536
        raise ProcessError(f"{what} {address!r}; ports go from 1 to 65535")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int, seconds: float, *, only_there: bool) -> tuple[socket.socket, socket.socket, str]:
    """Listen at host:port in process 0, or at all its addresses if its host does not have that one and may.

    Returns what listens, what keeps the port for JAX, and why the address is not one of this host, or nothing.
    """
    try:
        try:
            family, _, _, _, address = _resolved(host, port, min(seconds / 2, POLITE))
            return *_bound(family, str(address[0]), port), ""
        except OSError as error:
            if only_there or error.errno in {errno.EADDRINUSE, errno.EACCES}:
                raise
            reason = str(error)
        everywhere = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")
        return *_bound(*everywhere, port), reason
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ProcessError(f"port {port} is in use on this host; choose another one for the coordinator") from None
        raise ProcessError(f"process 0 can't listen at {host}:{port}: {error}") from None


def _bound(family: int, host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """What listens, and what keeps the port for JAX."""
    kept = keep_port(host, port)
    try:
        # Only Linux gives a server a port that another socket keeps, where both ask for no more than SO_REUSEADDR.
        shares = platform.system() != "Linux"
        is_any = host == "::"
        return socket.create_server((host, port), family=family, reuse_port=shares, dualstack_ipv6=is_any), kept
    except OSError:
        kept.close()
        raise


class _RollCall:
    """Calls the roll, in process 0."""

    def __init__(self, listener: socket.socket, count: int, own: Mapping[str, object], not_own: str = "") -> None:
        self.listener, self.count, self.own, self.not_own = listener, count, own, not_own
        self.expected = range(0 if not_own else 1, count)
        self.end = 0.0
        self.present: dict[int, Connection] = {}
        self.strangers: list[Connection] = []
        """Those that have not said, or not proven, who they are; the oldest first."""
        self.refused: set[int] = set()
        """The numbers of processes that came with another secret."""
        self.selector = selectors.DefaultSelector()

    def come(self, host: str, port: int, seconds: float) -> None:
        """Come to this roll call by the address that the others were given: JAX too will reach process 0 by that."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(ProcessError):  # whoever is there now may soon pass it on
                _answer(host, port, 0, self.own, left)[0].socket.close()
                return
            time.sleep(0.1)

    def hold(self, end: float, seconds: float, coordinator: str) -> float:
        """Gather the processes, and tell all of them the outcome. Returns the seconds that are left for JAX's start."""
        self.end = end
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        problem = ""
        while not problem and (missing := sorted({*self.expected} - self.present.keys())):
            if time.monotonic() > end:
                problem = self._missing(missing, seconds, coordinator)
            else:
                problem = self._hear()
        left = max(end - time.monotonic(), seconds / 2, POLITE)
        self.selector.close()
        for each in (*self.present.values(), *self.strangers):
            with contextlib.suppress(OSError):  # it is gone again, which the start of JAX will notice
                if each.peer is not None:
                    each.send({"problem": problem, "left": left})
            if problem or each in self.strangers:
                each.socket.close()
        if problem:
            raise ProcessError(problem)
        if myself := self.present.pop(0, None):
            myself.socket.close()
        return left

    def _missing(self, missing: list[int], seconds: float, coordinator: str) -> str:
        if 0 in missing:
            return (
                f"process 0 was not reached at {coordinator} within {seconds:g} s, and its host can't listen there "
                f"({self.not_own}); give all processes an address of the host of process 0"
            )
        those = f"{named(missing)} of {self.count}"
        problem = f"{those} did not come to {coordinator} within {seconds:g} s; start all of them"
        if wrong := sorted(self.refused & {*missing}):
            problem += f" (who came as {', '.join(map(str, wrong))} has another job secret, JAXPP_JOB_SECRET)"
        return problem

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
        number, connection.name = yield from introduce(connection, 0, job_secret(), _admit, is_direct=False)
        found = json.loads((yield))
        connection.peer = number
        if found["processes"] != self.count:
            raise ProcessError(
                f"process {number} was told that there are {int(found['processes'])} processes, "
                f"process 0 that there are {self.count}"
            )
        if number in self.present:
            raise ProcessError(f"two processes are process {number}; give each its own number")
        if number not in self.expected:
            raise RefusedError(f"no process {number}")
        for package in ("jax", "jaxlib"):
            if found[package] != self.own[package]:
                raise ProcessError(
                    f"process {number} has {package} {str(found[package])[:50]}, process 0 has {self.own[package]}"
                )
        self.strangers.remove(connection)
        self.present[number] = connection
        connection.send({"left": max(self.end - time.monotonic(), 0.0)})
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


def _answer(host: str, port: int, process: int, own: Mapping[str, object], seconds: float) -> tuple[Connection, float]:
    """Answer the roll call, in all other processes: say who this is, and wait for the outcome.

    Returns the connection to process 0, and the seconds that are left for JAX's start.
    """
    end = time.monotonic() + seconds
    dialled = _dial(host, port, end, seconds)
    connection = Connection(dialled, True, USE)
    try:
        # Process 0 says at once who it is, and then how long it waits for the others: it began at another time.
        known_by = max(end, time.monotonic() + POLITE)
        problem, left = _converse(connection, process, own, known_by, 2 * seconds)
        if problem:
            raise ProcessError(problem)
        return connection, left
    except BaseException as error:
        dialled.close()
        if isinstance(error, WrongSecretError):
            raise ProcessError(f"process 0 at {host}:{port} has another job secret (JAXPP_JOB_SECRET)") from None
        if isinstance(error, TimeoutError) and connection.peer is not None:
            raise ProcessError(
                f"{connection.name} at {host}:{port} says nothing more; start all of them again"
            ) from None
        if isinstance(error, ProcessError) or not isinstance(error, Exception):
            raise
        raise ProcessError(  # something else than a process of the job listens there
            f"what listens at {host}:{port} is no coordinator; "
            "all processes have to call jaxpp.distributed.initialize, with one address"
        ) from None


def _within(seconds: float, function: Any, *arguments: Any) -> Any:
    """What the function returns, if it does so in time: the system may take long to resolve a name. Raises OSError."""

    def look(so_far: float) -> None:
        if so_far > seconds:
            raise TimeoutError(f"no answer within {seconds:g} s")

    return aside(partial(function, *arguments), look)


def _resolved(host: str, port: int, seconds: float) -> Any:
    return _within(seconds, partial(socket.getaddrinfo, type=socket.SOCK_STREAM), host, port)[0]


def _dial(host: str, port: int, end: float, seconds: float) -> socket.socket:
    while True:
        left = max(end - time.monotonic(), 0.1)
        try:
            dialled: socket.socket = _within(left + TICK, socket.create_connection, (host, port), left)
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


def _converse(
    connection: Connection, process: int, own: Mapping[str, object], end: float, longest: float
) -> tuple[str, float]:
    """The outcome, as process 0 tells it, and the seconds that are left for JAX's start.

    end: until when process 0 has to show that it is one, and to tell how long it waits for the others; longest: how
    many seconds that may be.
    Raises TimeoutError for silence, any other exception for another process.
    """

    def talk() -> Generator[None, bytes, tuple[str, float]]:
        nonlocal end
        peer, connection.name = yield from introduce(connection, process, job_secret(), _admit, is_direct=False)
        if peer != 0:
            raise RefusedError(f"process {peer} is not process 0")
        connection.peer = peer
        connection.send(own)
        while "problem" not in (told := json.loads((yield))):
            end = time.monotonic() + min(longest, float(told["left"])) + POLITE
        return str(told["problem"]), min(longest, float(told["left"]))

    return converse(connection, talk(), lambda: end)
