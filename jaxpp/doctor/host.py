"""Checks this host: loopback, the coordinator's port, file descriptors, shared memory and the clock."""

import ctypes
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jaxpp.doctor.finding import NOTE, PROBLEM, Finding, in_one_line
from jaxpp.doctor.probing import run_probes

COORDINATOR = "127.0.0.1:9876"
"""The coordinator's address in the docs, at this host."""
DESCRIPTORS = 160
"""The file descriptors that a process needs at most, beside those of its connections to other processes."""
DESCRIPTORS_PER_PEER = 8
"""The file descriptors that a process needs at most for its connections to another process."""
SHARED_MEMORY = 1 << 30
"""The bytes of shared memory that are enough. NCCL on GPUs, and Ray, use some of it for each process."""
_SHARED_FOLDER = Path("/dev/shm")
_TIME_ERROR = 5
"""The result of `adjtimex` for a clock that nothing synchronises."""


def check_loopback(seconds: float) -> Iterator[Finding]:
    """Yields whether this host can listen at a loopback address, and connect to itself."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(seconds)
            with socket.create_connection(server.getsockname(), seconds) as client, server.accept()[0] as accepted:
                accepted.settimeout(seconds)
                client.sendall(b"jaxpp")
                accepted.recv(5)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        remedy = "allow TCP connections at 127.0.0.1: ip link set lo up, or change the firewall"
        yield Finding("loopback", f"no connection at 127.0.0.1: {error}", PROBLEM, remedy)
        return
    yield Finding("loopback", "connects at 127.0.0.1")


def check_coordinator(address: str, seconds: float) -> Iterator[Finding]:
    """Yields whether process 0 could listen at the coordinator's address, if that is an address of this host."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    (outcome,) = run_probes("resolve", [(host, port)], seconds)
    if outcome.problem:
        remedy = "give an address that this host can resolve: --coordinator, or JAX_COORDINATOR_ADDRESS"
        yield Finding("coordinator", f"{address}: {outcome.problem}", PROBLEM, remedy)
        return
    found = str(outcome.result["address"])
    try:
        family = socket.AF_INET6 if ":" in found else socket.AF_INET
        socket.create_server((found, int(port)), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            yield Finding("coordinator", f"{address} is at {found}, another host: check the port there")
        elif error.errno == errno.EADDRINUSE:
            remedy = f"choose another port for the coordinator, or end what listens there: ss -ltnp 'sport = {port}'"
            yield Finding("coordinator", f"port {port} is in use at {found}", PROBLEM, remedy)
        elif error.errno == errno.EACCES:
            remedy = "choose a port for the coordinator that every user may have, from 1024 on"
            yield Finding("coordinator", f"port {port} is not allowed: {error}", PROBLEM, remedy)
        else:
            raise
        return
    yield Finding("coordinator", f"{address} is free")


def check_descriptors(processes: int) -> Iterator[Finding]:
    """Yields whether a process may have as many file descriptors as a job of `processes` needs."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        yield Finding("descriptors", "no limit of file descriptors")
        return
    need = DESCRIPTORS + DESCRIPTORS_PER_PEER * (processes - 1)
    enough = max((limit - DESCRIPTORS) // DESCRIPTORS_PER_PEER + 1, 0)
    if limit >= need:
        yield Finding("descriptors", f"{limit} file descriptors, enough for a job of {enough} processes")
        return
    found = f"{limit} file descriptors, a process of a job of {processes} needs up to {need}"
    above = "" if most == resource.RLIM_INFINITY or most >= need else f"; root must allow more than {most} first"
    yield Finding("descriptors", found, PROBLEM, f"ulimit -n {need}{above}")


def check_shared_memory() -> Iterator[Finding]:
    """Yields how much shared memory there is."""
    if sys.platform != "linux":
        return
    try:
        space = os.statvfs(_SHARED_FOLDER)
    except OSError as error:
        remedy = f"mount it: mount -t tmpfs tmpfs {_SHARED_FOLDER}"
        yield Finding("shared memory", in_one_line(error), PROBLEM, remedy)
        return
    free = space.f_bavail * space.f_frsize
    if not os.access(_SHARED_FOLDER, os.W_OK):
        remedy = f"chmod 1777 {_SHARED_FOLDER}"
        yield Finding("shared memory", f"{_SHARED_FOLDER} can't be written", PROBLEM, remedy)
    elif free < SHARED_MEMORY:
        remedy = "on GPUs and with Ray give more: docker run --shm-size=1g, or a volume of `medium: Memory`"
        yield Finding("shared memory", f"{free >> 20} MiB are free in {_SHARED_FOLDER}", NOTE, remedy)
    else:
        yield Finding("shared memory", f"{free / (1 << 30):.1f} GiB are free in {_SHARED_FOLDER}")


def check_clock() -> Iterator[Finding]:
    """Yields whether the clock is right as far as this host can tell: traces of several hosts compare their clocks."""
    written = Path(__file__).stat().st_mtime
    now = time.time()
    if now < written:
        found = f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(now))} UTC is before jaxpp was installed"
        yield Finding("clock", found, PROBLEM, "set the clock, and run an NTP service such as chrony")
        return
    shown = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now))} UTC"
    if _is_synchronised():
        yield Finding("clock", shown)
    else:
        remedy = "to trace steps of several hosts, run an NTP service such as chrony on each"
        yield Finding("clock", f"{shown}, which no NTP service synchronises", NOTE, remedy)


def _is_synchronised() -> bool:
    """Whether the system keeps the clock synchronised; True where it can't be asked."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None) if sys.platform == "linux" else None
    if adjtimex is None:
        return True
    return int(adjtimex(ctypes.create_string_buffer(1024))) != _TIME_ERROR  # zeros: it only reads
