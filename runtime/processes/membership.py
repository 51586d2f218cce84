"""A process as a member of a `jax.distributed` job: its secret, its address, its transport and its watchdog."""

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
from jaxpp._system import keep_port
from jaxpp.runtime.processes.faults import Guard
from jaxpp.runtime.processes.reporting import reporter
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.waiting import TransferError, WaitFor, Waiting, aside
from jaxpp.runtime.processes.watchdog import ANSWER_SECONDS

Found = TypeVar("Found")

_forgets: list[Callable[[], None]] = []


def forgotten(forget: Callable[[], None]) -> None:
    """Registers a function to call when this process leaves its job. It drops data that are only valid in that job."""
    _forgets.append(forget)


class ProcessError(RuntimeError):
    """Another process is missing, or makes different calls, or a setting of the job is wrong."""


@cache
def endpoint() -> PullTransport:
    """Returns this process's end of all messages, and of transfers by `pull`. Made at the first call.

    Its address is published for the others.
    """
    own = guard()
    made = PullTransport(own.me, jax.local_devices()[0], _find, own.host)
    made.meetings.describe = _ask
    publish(f"jaxpp/transfer/{made.me}", made.address.encode())
    own.attach(made)
    return made


def watchdog_seconds() -> float:
    """Returns JAXPP_WATCHDOG_SECONDS. Raises ProcessError if that is not a positive number of seconds."""
    return _seconds("JAXPP_WATCHDOG_SECONDS", "60")


def progress_seconds() -> float:
    """Returns JAXPP_PROGRESS_SECONDS, the timeout for another process that lives. Raises as `watchdog_seconds`.

    Such a process may still compile the step before. A dead or frozen process is noticed much sooner.
    """
    return _seconds("JAXPP_PROGRESS_SECONDS", "1800")


def _seconds(variable: str, default: str) -> float:
    seconds = os.environ.get(variable, default)
    if not seconds.replace(".", "", 1).isdigit() or float(seconds) == 0:
        raise ProcessError(f"{variable} is {seconds!r}; give seconds, as {default}")
    return float(seconds)


@cache
def guard() -> Guard:
    """Returns the Guard of this process. Needs no device. Raises as `watchdog_seconds`."""
    seconds, progress = watchdog_seconds(), progress_seconds()
    me, _ = _jobs.process_numbers()
    found = Guard(me, _host(), _secret(), seconds, progress)
    reporter(_jobs.coordinator_address(), me).follow(found.states, found.hang, found.watchdog.pause)
    publish(f"jaxpp/watchdog/{me}", found.watchdog.address.encode())
    atexit.register(found.leave)
    return found


def lost_peers() -> list[int]:
    """Returns the processes of the job that are dead or frozen."""
    lost = guard().watchdog.lost if guard.cache_info().currsize else []
    return [loss.peer for loss in lost if not loss.ended]


def leave_job() -> None:
    """Leaves the job without waiting for the others, so that this process can join another job."""
    if guard.cache_info().currsize:
        atexit.unregister(guard().leave)
        reporter("", guard().me).stand_alone()
        guard().retire()
    for forget in (endpoint.cache_clear, guard.cache_clear, *_forgets):
        forget()


def is_stuck() -> bool:
    """Whether a thread waits in XLA for another process, so that nothing can end the wait."""
    return bool(endpoint.cache_info().currsize) and endpoint().is_stuck


def watch_all(seconds: float, look: Callable[[], None] = lambda: None, answer_seconds: float = ANSWER_SECONDS) -> None:
    """Begins to watch all processes of the job. All of them must call this.

    Raises ProcessError if a process doesn't call this within `seconds`, or is not of this job. Raises the errors of
    `look`, see `published`.

    answer_seconds: the time that a process has to connect after it has published its address.
    """
    me, count = _jobs.process_numbers()
    watch([process for process in range(count) if process != me], seconds, look, answer_seconds)


def watch(
    processes: Sequence[int],
    seconds: float | None = None,
    look: Callable[[], None] = lambda: None,
    answer_seconds: float = ANSWER_SECONDS,
) -> None:
    """Begins to watch these processes, which must all call this. Raises as `watch_all`."""
    own, seconds = guard(), progress_seconds() if seconds is None else seconds
    new = [process for process in processes if process not in own.watchdog.wires]
    addresses = {process: published(f"jaxpp/watchdog/{process}", process, seconds, look).decode() for process in new}
    try:
        with WaitFor("a connection to other processes", new):
            own.connect(addresses, answer_seconds, look)
    except ConnectionError as error:
        raise ProcessError(str(error)) from None


def job_secret() -> bytes:
    """Returns JAXPP_JOB_SECRET; empty if it is not set."""
    return os.environ.get("JAXPP_JOB_SECRET", "").encode()


def _secret() -> bytes:
    """Returns JAXPP_JOB_SECRET, otherwise a random secret that the first process has put into JAX's store."""
    if given := job_secret():
        return given
    store = _jobs.key_value_store()
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was first
        store.key_value_set_bytes("jaxpp/secret", secrets.token_bytes(32))
    return bytes(store.blocking_key_value_get_bytes("jaxpp/secret", 10_000))


def _find(process: int) -> str:
    return published(f"jaxpp/transfer/{process}", process).decode()


def keep_own_port(given: str) -> socket.socket:
    """Calls `keep_port` for JAXPP_TRANSFER_ADDRESS. Raises ProcessError if this machine does not have the address."""
    try:
        return keep_port(given.strip("[]"))
    except OSError as error:
        raise ProcessError(f"JAXPP_TRANSFER_ADDRESS is {given!r}, no address of this host ({error})") from None


def _host() -> str:
    """Returns JAXPP_TRANSFER_ADDRESS, otherwise this machine's address on the network of the coordinator.

    If the coordinator is at a loopback address, so is the result. Raises ProcessError if JAXPP_TRANSFER_ADDRESS is not
    an address of this machine.
    """
    if given := os.environ.get("JAXPP_TRANSFER_ADDRESS"):
        keep_own_port(given).close()
        return given
    host, port = _jobs.coordinator_address().rsplit(":", 1)
    host = host.strip("[]")
    family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing, only picks the interface
        own = str(probe.getsockname()[0])
    return f"[{own}]" if ":" in own else own


def _from_store(ask: Callable[[Any], Found]) -> Found:
    """Returns the answer of JAX's store, which is in process 0. If that is frozen, JAX would wait until it aborts."""
    with WaitFor("the store of jax.distributed, in process 0", (0,)):
        return _asked(ask)


def _asked(ask: Callable[[Any], Found]) -> Found:
    store = _jobs.key_value_store()
    if not guard.cache_info().currsize:  # the guard is being made
        return ask(store)
    return aside(lambda: ask(store), lambda seconds: guard().look(Waiting(0, is_message=True), seconds))


def publish(key: str, value: bytes, allow_overwrite: bool = False) -> None:
    """Stores `value` under `key` for the other processes."""
    _from_store(lambda store: store.key_value_set_bytes(key, value, allow_overwrite))


def withdraw(key: str) -> None:
    """Deletes a value that this process has published."""
    _from_store(lambda store: store.key_value_delete(key))


def published(key: str, process: int, patience: float | None = None, look: Callable[[], None] = lambda: None) -> bytes:
    """Waits until `process` has published `key`, and returns the value. Raises ProcessError after `patience` seconds.

    look: called several times a second. Ctrl-C and the errors of `look` end the wait.
    """
    start, patience = time.monotonic(), progress_seconds() if patience is None else patience
    with WaitFor(f"process {process} to begin the same call", (process,)):
        while (seconds := time.monotonic() - start) < patience:
            guard().look(Waiting(process, is_message=True), seconds)
            look()
            try:
                return bytes(_asked(lambda store: store.blocking_key_value_get_bytes(key, 200)))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise ProcessError(f"process {process} can't be asked: {error}") from None
    raise ProcessError(f"process {process} did not come within {patience:.0f} s")


def publish_text(identity: bytes, text: str) -> None:
    """Publishes the text of a Meeting of this process."""
    publish(f"jaxpp/call/{jax.process_index()}/{identity.hex()}", zlib.compress(text.encode()), allow_overwrite=True)


def _ask(process: int, identity: bytes) -> str:
    """Returns the text of a Meeting of that process; empty if it is not there.

    A process publishes the text before it begins the call.
    """
    try:
        key = f"jaxpp/call/{process}/{identity.hex()}"
        return zlib.decompress(_from_store(lambda store: store.blocking_key_value_get_bytes(key, 1000))).decode()
    except (jax.errors.JaxRuntimeError, TransferError):
        return ""
