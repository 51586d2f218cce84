"""A process as a member of a `jax.distributed` job: its secret, its address, its ends of transfers and watches."""

import atexit
import contextlib
import os
import secrets
import socket
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import jax

from jaxpp import _jobs
from jaxpp.runtime.processes.faults import Guard
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.waiting import TransferError, Waiting, aside
from jaxpp.runtime.processes.watchdog import ANSWER_SECONDS

Found = TypeVar("Found")

_forgets: list[Callable[[], None]] = []


def forgotten(forget: Callable[[], None]) -> None:
    """Have a function called when this process leaves its job, which forgets what is only true of that one."""
    _forgets.append(forget)


class ProcessError(RuntimeError):
    """Another process is missing, or runs something else."""


def named(processes: Sequence[int]) -> str:
    """`process 3`, or `processes 3, 4`."""
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


@cache
def endpoint() -> PullTransport:
    """This process's end of all messages, and of transfers by `pull`; made when it is first needed.

    The others find its address.
    """
    own = guard()
    made = PullTransport(own.me, jax.local_devices()[0], _find, own.host)
    made.meetings.describe = _ask
    publish(f"jaxpp/transfer/{made.me}", made.address.encode())
    own.attach(made)
    return made


def watchdog_seconds() -> float:
    """JAXPP_WATCHDOG_SECONDS. Raises ProcessError when that is no number of seconds."""
    return _seconds("JAXPP_WATCHDOG_SECONDS", "60")


def progress_seconds() -> float:
    """JAXPP_PROGRESS_SECONDS: how long a process waits for another one that lives. Raises as `watchdog_seconds`.

    That one may still compile the step before. One that is dead or frozen is noticed much sooner.
    """
    return _seconds("JAXPP_PROGRESS_SECONDS", "1800")


def _seconds(variable: str, default: str) -> float:
    seconds = os.environ.get(variable, default)
    if not seconds.replace(".", "", 1).isdigit() or float(seconds) == 0:
        raise ProcessError(f"{variable} is {seconds!r}; give seconds, as {default}")
    return float(seconds)


@cache
def guard() -> Guard:
    """The Guard of this process. It needs no device. Raises as `watchdog_seconds`."""
    seconds, progress = watchdog_seconds(), progress_seconds()
    me, _ = _jobs.process_numbers()
    found = Guard(me, _host(), _secret(), seconds, progress)
    publish(f"jaxpp/watchdog/{me}", found.watchdog.address.encode())
    atexit.register(found.leave)
    return found


def lost_peers() -> list[int]:
    """The processes of the job that are dead or frozen."""
    lost = guard().watchdog.lost if guard.cache_info().currsize else []
    return [loss.peer for loss in lost if not loss.ended]


def leave_job() -> None:
    """Leave the job without waiting for the others, so that this process may join another one."""
    if guard.cache_info().currsize:
        atexit.unregister(guard().leave)
        guard().retire()
    for forget in (endpoint.cache_clear, guard.cache_clear, *_forgets):
        forget()


def is_stuck() -> bool:
    """Whether a thread waits inside of XLA for another process, and can't be ended."""
    return bool(endpoint.cache_info().currsize) and endpoint().is_stuck


def watch_all(seconds: float, look: Callable[[], None] = lambda: None, answer_seconds: float = ANSWER_SECONDS) -> None:
    """Notice from now on when any process of the job dies.

    All of them call this. Raises ProcessError when one of them doesn't within so many seconds, and for a stranger; and
    what `look` raises, as of `published`.

    answer_seconds: how long a process that does may take to connect.
    """
    me, count = _jobs.process_numbers()
    watch([process for process in range(count) if process != me], seconds, look, answer_seconds)


def watch(
    processes: Sequence[int],
    seconds: float | None = None,
    look: Callable[[], None] = lambda: None,
    answer_seconds: float = ANSWER_SECONDS,
) -> None:
    """Notice from now on when any of these processes dies. They all call this. Raises as `watch_all`."""
    own, seconds = guard(), progress_seconds() if seconds is None else seconds
    new = [process for process in processes if process not in own.watchdog.wires]
    addresses = {process: published(f"jaxpp/watchdog/{process}", process, seconds, look).decode() for process in new}
    try:
        own.connect(addresses, answer_seconds, look)
    except ConnectionError as error:
        raise ProcessError(str(error)) from None


def job_secret() -> bytes:
    """JAXPP_JOB_SECRET; empty where it is not set."""
    return os.environ.get("JAXPP_JOB_SECRET", "").encode()


def _secret() -> bytes:
    """The secret of this job: JAXPP_JOB_SECRET, or else a random one that the first process has put into the store."""
    if given := job_secret():
        return given
    store = _jobs.key_value_store()
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first
        store.key_value_set_bytes("jaxpp/secret", secrets.token_bytes(32))
    return bytes(store.blocking_key_value_get_bytes("jaxpp/secret", 10_000))


def _find(process: int) -> str:
    return published(f"jaxpp/transfer/{process}", process).decode()


def keep_own_port(given: str) -> socket.socket:
    """`keep_port` for JAXPP_TRANSFER_ADDRESS. Raises ProcessError when this machine does not have the address."""
    try:
        return keep_port(given.strip("[]"))
    except OSError as error:
        raise ProcessError(f"JAXPP_TRANSFER_ADDRESS is {given!r}, no address of this host ({error})") from None


def keep_port(host: str, port: int = 0) -> socket.socket:
    """A socket that keeps a port, and never listens: only a server may still have it, which asks for SO_REUSEADDR.

    port: 0 for any that is free. Raises OSError when it is in use, or this machine does not have the address.
    """
    kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            kept.setsockopt(socket.SOL_SOCKET, option, 1)
        if host == "::":
            kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        kept.bind((host, port))
    except BaseException:
        kept.close()
        raise
    return kept


def lend_port(kept: socket.socket) -> None:
    """Let JAX's services listen at the port of a `keep_port`, which ask for SO_REUSEPORT, and no other server."""
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def _host() -> str:
    """JAXPP_TRANSFER_ADDRESS, or this machine's address on the network of the coordinator: loopback where that is.

    Raises ProcessError when the former is no address of this machine.
    """
    if given := os.environ.get("JAXPP_TRANSFER_ADDRESS"):
        keep_own_port(given).close()
        return given
    host, port = _jobs.coordinator_address().rsplit(":", 1)
    host = host.strip("[]")
    family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing: only picks the interface
        own = str(probe.getsockname()[0])
    return f"[{own}]" if ":" in own else own


def _from_store(ask: Callable[[Any], Found]) -> Found:
    """What JAX's store answers. It is in process 0: where that is frozen, JAX waits for it until it aborts."""
    store = _jobs.key_value_store()
    if not guard.cache_info().currsize:  # it is just being made
        return ask(store)
    return aside(lambda: ask(store), lambda seconds: guard().look(Waiting(0, is_message=True), seconds))


def publish(key: str, value: bytes, allow_overwrite: bool = False) -> None:
    """Let the other processes find `value` under `key`."""
    _from_store(lambda store: store.key_value_set_bytes(key, value, allow_overwrite))


def withdraw(key: str) -> None:
    """Take away what this process let the others find."""
    _from_store(lambda store: store.key_value_delete(key))


def published(key: str, process: int, patience: float | None = None, look: Callable[[], None] = lambda: None) -> bytes:
    """What `process` put under `key`, waiting for it. Raises ProcessError after so long.

    Ctrl-C ends the wait, and what `look` raises, which is called several times a second.
    """
    start, patience = time.monotonic(), progress_seconds() if patience is None else patience
    while (seconds := time.monotonic() - start) < patience:
        guard().look(Waiting(process, is_message=True), seconds)
        look()
        try:
            return bytes(_from_store(lambda store: store.blocking_key_value_get_bytes(key, 200)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise ProcessError(f"process {process} can't be asked: {error}") from None
    raise ProcessError(f"process {process} did not come within {patience:.0f} s")


def publish_text(identity: bytes, text: str) -> None:
    """Let the others find the text of a Meeting of this process."""
    publish(f"jaxpp/call/{jax.process_index()}/{identity.hex()}", zlib.compress(text.encode()), allow_overwrite=True)


def _ask(process: int, identity: bytes) -> str:
    """The text of a Meeting of that process; empty if it is not there. A process tells it before it begins the call."""
    try:
        key = f"jaxpp/call/{process}/{identity.hex()}"
        return zlib.decompress(_from_store(lambda store: store.blocking_key_value_get_bytes(key, 1000))).decode()
    except (jax.errors.JaxRuntimeError, TransferError):
        return ""
