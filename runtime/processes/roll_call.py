"""The roll call: the processes of a job meet at the address of their coordinator, before JAX connects them.

JAX's own start waits for minutes, ignores Ctrl-C, and aborts the process if any process is missing. Here each process
sends its number, the number of processes, and its versions of JAX and jaxlib. Process 0 sends the problem, if there is
any, to all. Before that each process proves that it knows JAXPP_JOB_SECRET, as for watchdogs (`handshake`). If that
variable is not set, the secret is empty. The connections stay open until JAX has started (`joint_start`).
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

from jaxpp._system import keep_port, lend_port
from jaxpp.runtime.processes.autopsy import named
from jaxpp.runtime.processes.handshake import STRANGERS, Connection, RefusedError, WrongSecretError, converse, introduce
from jaxpp.runtime.processes.joint_start import POLITE, JointStart
from jaxpp.runtime.processes.membership import ProcessError, job_secret
from jaxpp.runtime.processes.waiting import WaitFor, aside
from jaxpp.runtime.processes.wire import TICK

USE = "roll call"
"""The use of the connections, for `handshake`."""


def roll_call(coordinator: str, processes: int, process: int, seconds: float, bind: str = "") -> JointStart:
    """Waits until all processes have come. Returns the object that starts JAX on all of them.

    coordinator: host:port by which all reach process 0, which listens there. If its host lacks that address, such as a
        load balancer's, process 0 listens at all its addresses, and also connects to itself by `coordinator`.
    bind: host:port where process 0 listens instead.
    Raises ProcessError, in all processes that have come, if one is missing after `seconds`, or they don't match.
    """
    host, port = _host_and_port(coordinator, "the coordinator's address is")
    at = _host_and_port(bind, "coordinator_bind_address is") if bind else (host, port)
    if not 0 <= process < processes:
        raise ProcessError(f"process {process} of {processes}: the numbers go from 0 to {processes - 1}")
    own = {"processes": processes, "jax": version("jax"), "jaxlib": version("jaxlib")}
    if process > 0:
        with WaitFor(f"the roll call of process 0 at {coordinator}", (0,)):
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
    if not 1 <= int(port) <= 65535:  # otherwise the system would take it modulo 65536
        raise ProcessError(f"{what} {address!r}; ports go from 1 to 65535")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int, seconds: float, *, only_there: bool) -> tuple[socket.socket, socket.socket, str]:
    """Listens in process 0 at host:port. If its host lacks the address, listens at all addresses, unless `only_there`.

    Returns the listener, the socket that keeps the port for JAX, and why the host lacks the address (otherwise empty).
    Raises ProcessError if it can't listen.
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
    """Returns the listener, and the socket that keeps the port for JAX."""
    kept = keep_port(host, port)
    try:
        # Only Linux lets a server have a port that another socket keeps, if both set no more than SO_REUSEADDR.
        shares = platform.system() != "Linux"
        is_any = host == "::"
        return socket.create_server((host, port), family=family, reuse_port=shares, dualstack_ipv6=is_any), kept
    except OSError:
        kept.close()
        raise


class _RollCall:
    """The roll call in process 0."""

    def __init__(self, listener: socket.socket, count: int, own: Mapping[str, object], not_own: str = "") -> None:
        self.listener, self.count, self.own, self.not_own = listener, count, own, not_own
        self.expected = range(0 if not_own else 1, count)
        self.end = 0.0
        self.present: dict[int, Connection] = {}
        self.strangers: list[Connection] = []
        """The connections whose process has not given or not proven its identity, the oldest first."""
        self.refused: set[int] = set()
        """The numbers of processes that came with another secret."""
        self.selector = selectors.DefaultSelector()

    def come(self, host: str, port: int, seconds: float) -> None:
        """Connects to this roll call by the address that the others use, because JAX also needs that address."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(ProcessError):  # a load balancer may not pass connections on yet
                _answer(host, port, 0, self.own, left)[0].socket.close()
                return
            time.sleep(0.1)

    def hold(self, end: float, seconds: float, coordinator: str) -> float:
        """Gathers the processes, and tells all of them the outcome. Returns the seconds that remain for JAX's start."""
        self.end = end
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        problem = ""
        with WaitFor(f"processes that have not come to {coordinator}") as wait:
            while not problem and (missing := sorted({*self.expected} - self.present.keys())):
                wait.peers = missing
                problem = self._missing(missing, seconds, coordinator) if time.monotonic() > end else self._hear()
        left = max(end - time.monotonic(), seconds / 2, POLITE)
        self.selector.close()
        for each in (*self.present.values(), *self.strangers):
            with contextlib.suppress(OSError):  # the process is gone, and the start of JAX will notice
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
        """Reads the messages that arrive within 0.2 s; returns the problem with a process, or nothing."""
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
        except Exception:  # messages of a stranger must end only this connection
            self._hang_up(connection)
        return ""

    def _talk(self, connection: Connection) -> Generator[None, bytes, None]:
        """Handles a connection message by message. Raises ProcessError for a process that does not match."""
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
        yield  # until the other end hangs up, or the roll call is over
        raise RefusedError("it has nothing more to say")

    def _hang_up(self, connection: Connection) -> None:
        self.selector.unregister(connection.socket)
        connection.socket.close()
        if connection in self.strangers:
            self.strangers.remove(connection)
        elif connection.peer is not None:  # the process may be started again
            del self.present[connection.peer]


def _admit(number: int, name: str, use: str) -> None:
    if use != USE or number < 0:
        raise RefusedError(f"{name} does not come to the roll call")


def _answer(host: str, port: int, process: int, own: Mapping[str, object], seconds: float) -> tuple[Connection, float]:
    """Answers the roll call in a process other than 0: sends its number and versions, and waits for the outcome.

    Returns the connection to process 0, and the seconds that are left for JAX's start. Raises ProcessError.
    """
    end = time.monotonic() + seconds
    dialled = _dial(host, port, end, seconds)
    connection = Connection(dialled, True, USE)
    try:
        # Process 0 proves its identity at once, then tells how long it waits for the others: it may have begun later.
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
        raise ProcessError(  # the listener is not a process of the job
            f"what listens at {host}:{port} is no coordinator; "
            "all processes have to call jaxpp.distributed.initialize, with one address"
        ) from None


def _within(seconds: float, function: Any, *arguments: Any) -> Any:
    """Returns the result of a function that may block, as name resolution does. Raises TimeoutError after `seconds`."""

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
            if dialled.getsockname() != dialled.getpeername():  # otherwise TCP has connected the socket to itself
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
    """Returns the problem that process 0 tells, or "", and the seconds that are left for JAX's start.

    end: the deadline for process 0 to prove its identity and to tell how long it waits for the others.
    longest: the largest number of seconds that it may then take.
    Raises TimeoutError if process 0 is silent, any other exception if the other end is not process 0.
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
