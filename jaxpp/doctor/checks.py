"""Makes all checks. JAX is only imported in child processes: it may be what does not work."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from jaxpp._system import keep_port
from jaxpp._versions import PLATFORMS, TESTED
from jaxpp.doctor import host, packages
from jaxpp.doctor.finding import NOTE, PROBLEM, Finding, in_one_line
from jaxpp.doctor.probing import run_probes

MORE_DESCRIPTORS = "ulimit -n 4096"


def examine(coordinator: str = "", processes: int = 2, seconds: float = 60) -> Iterator[Finding]:
    """Yields the result of each check.

    coordinator: host:port of process 0 of the job to run. "": that of JAX_COORDINATOR_ADDRESS, or of the docs.
    processes: the number of processes of that job.
    seconds: the time limit of each check that may hang.
    """
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS") or host.COORDINATOR
    checks: Mapping[str, Callable[[], Iterator[Finding]]] = {
        "python": packages.check_python,
        "jaxpp": packages.check_jaxpp,
        "jax": packages.check_jax,
        "extras": packages.check_extras,
        "descriptors": partial(host.check_descriptors, processes),
        "shared memory": host.check_shared_memory,
        "clock": host.check_clock,
        "loopback": partial(host.check_loopback, seconds),
        "coordinator": partial(host.check_coordinator, coordinator, seconds),
        "devices": partial(_check_devices, seconds),
    }
    for name, check in checks.items():
        try:
            yield from check()
        except OSError as error:
            is_full = error.errno in (errno.EMFILE, errno.ENFILE)
            remedy = MORE_DESCRIPTORS if is_full else "let this process do what the message names"
            yield Finding(name, f"not checked: {in_one_line(error)}", PROBLEM, remedy)
        except Exception as error:  # of any kind: the other checks go on
            found = f"not checked: {type(error).__name__}: {in_one_line(error)}"
            yield Finding(name, found, PROBLEM, "report this as a bug of jaxpp")
    tested = ", ".join(f"jax {jax} on Python {python}" for jax, python in TESTED.items())
    yield Finding("tested with", f"{tested}; on {', '.join(PLATFORMS)}")


def _check_devices(seconds: float) -> Iterator[Finding]:
    """Yields the settings, the devices of each platform, and each transport."""
    (outcome,) = run_probes("devices", [()], seconds)
    told = outcome.result
    for wrong in told.get("wrong", ()):
        found, _, remedy = wrong.partition("; ")
        yield Finding("settings", found, PROBLEM, remedy or "give an address of this host, or none")
    if told.get("wrong") == []:
        yield Finding("settings", "the variables JAXPP_* have values that jaxpp knows")
    if outcome.problem:
        yield Finding("devices", outcome.problem, PROBLEM, _remedy_for_devices(told))
        yield Finding("transports", "not tried without devices", NOTE, "solve the problem of the devices first")
        return
    for platform, (count, kind) in told["platforms"].items():
        found = f"{count} of {platform} ({kind}){', the default' if platform == told['default'] else ''}"
        if platform in PLATFORMS:
            yield Finding("devices", found)
        else:
            note = f"{found}; jaxpp was tested on {', '.join(PLATFORMS)} only"
            yield Finding("devices", note, NOTE, "compare the first steps with plain jax.jit: jaxpp.compare")
    for warning in told["warnings"]:
        yield Finding("devices", warning, NOTE, "to use them: pip install 'jax[cuda13]', or 'jax[tpu]'")
    if told["wrong"]:
        yield Finding("transports", "not tried with wrong settings", NOTE, "correct the settings first")
        return
    several = told["platforms"].get("gpu", [0])[0] > 1
    for name in told["transports"]:
        yield from _check_transport(name, "gpu" if several else "cpu", seconds)


def _remedy_for_devices(told: Mapping[str, Any]) -> str:
    if "transports" not in told:  # JAX or jaxpp could not be imported
        return "install both again: pip install --force-reinstall jax, and jaxpp"
    if given := os.environ.get("JAX_PLATFORMS"):
        return f"JAX_PLATFORMS is {given!r}: install JAX for that platform, or unset the variable"
    return "end other processes that hold the devices, or leave the devices out: JAX_PLATFORMS=cpu"


def _check_transport(name: str, platform: str, seconds: float) -> Iterator[Finding]:
    """Yields whether a transport carries values between two processes of this host, each with one device."""
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if platform == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    with keep_port("127.0.0.1") as kept:
        port = str(kept.getsockname()[1])
        each = [(name, platform, port, str(process)) for process in range(2)]
        outcomes = run_probes("transport", each, seconds, environment)
    check = f"transport {name}"
    problems = [f"process {process}: {each.problem}" for process, each in enumerate(outcomes) if each.problem]
    if problems:
        is_full = any(os.strerror(errno.EMFILE) in problem for problem in problems)
        other = "choose another transport, which works here: JAXPP_TRANSPORT, or jaxpp.distributed.initialize"
        remedy = MORE_DESCRIPTORS if is_full else other
        yield Finding(check, "; ".join(problems), PROBLEM, remedy)
        return
    longest = max(each.result["seconds"] for each in outcomes)
    descriptors = max(each.result["descriptors"] for each in outcomes)
    found = f"two processes exchange 1 MB on {platform} in {longest:.3f} s, with {descriptors} file descriptors each"
    yield Finding(check, found)
