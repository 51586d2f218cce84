"""Chooses the transport that carries the values between the processes of a `jax.distributed` job."""

import os
import socket
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

import jax

from jaxpp import _jobs, _plugins
from jaxpp._system import tell
from jaxpp.runtime.processes.collective import DevicePutTransport, PairTransport
from jaxpp.runtime.processes.membership import ProcessError, endpoint, forgotten, keep_own_port
from jaxpp.runtime.processes.ordered import OrderedTransport, tags_are_wanted
from jaxpp.runtime.processes.transfer import PullTransport
from jaxpp.runtime.processes.transport import Transport

TRANSPORTS = ("pull", "device_put", "pair")

_ADDRESS = "jax_cross_host_transfer_socket_address"
"""JAX's option for the address from which other processes fetch arrays of `jax.device_put` on CPUs. Read at start."""

_kept: list[socket.socket] = []
"""The socket that keeps the port of that address."""

_given: list[str] = []
"""The `transport` argument of `jaxpp.distributed.initialize`, if it was given."""


def choose(name: str | None) -> None:
    """Chooses a transport, or the one of JAXPP_TRANSPORT if `name` is None. Called before JAX starts.

    Raises ProcessError as `wanted`, and if JAXPP_TRANSFER_ADDRESS is not an address of this machine.
    """
    _given[:] = [name] if name is not None else []
    if wanted() == "device_put" and _jobs.wanted_platforms()[0] == "cpu":
        host = os.environ.get("JAXPP_TRANSFER_ADDRESS", "127.0.0.1")
        for each in _kept:
            each.close()
        _kept[:] = [keep_own_port(host)]  # JAX does not accept port 0, and listens at this port later
        port = _kept[0].getsockname()[1]
        jax.config.update(_ADDRESS, f"{host}:{port}")
        jax.config.update("jax_cross_host_transport_addresses", f"{host}:0,{host}:0")


def wanted() -> str:
    """Returns the transport that the user has chosen; empty if none. Raises ProcessError for an unknown name."""
    where, name = ("transport", _given[0]) if _given else ("JAXPP_TRANSPORT", os.environ.get("JAXPP_TRANSPORT", ""))
    if name and name not in TRANSPORTS and name not in _plug_ins():
        raise ProcessError(f"{where} is {name!r}; give one of {', '.join(names())}")
    return name


def names() -> list[str]:
    """Returns the names of all transports: jaxpp's own and those of other packages."""
    return [*TRANSPORTS, *_plug_ins()]


def _plug_ins() -> Mapping[str, _plugins.PlugIn]:
    return _plugins.plug_ins(_plugins.TRANSPORTS, TRANSPORTS)


def name_of(platform: str, can_put: bool) -> str:
    """Returns the transport to use: the user's choice, otherwise the best that works on the platform.

    can_put: whether `jax.device_put` reaches devices of other processes.
    Raises ProcessError as `wanted`, and if the user's choice does not work here.
    """
    name = wanted()
    if name == "device_put" and not can_put:
        raise ProcessError(
            f"the transport 'device_put' does not work here: jax.device_put reaches no device of another process on "
            f"{platform}; {_REMEDY if platform == 'cpu' else ''}take 'pair'"
        )
    return name or ("pull" if platform == "cpu" else "device_put" if can_put else "pair")


_REMEDY = "choose it by jaxpp.distributed.initialize, with JAX_PLATFORMS=cpu, so that JAX starts with it; or "


def described() -> str:
    """Returns the choice that must be the same in all processes of a program, for comparison and messages."""
    found = transport()
    return f"transport {found.name}{' with tags' if found.is_ordered and tags_are_wanted() else ''}"


@cache
def transport() -> Transport:
    """Returns the transport between this process and the others. Raises ProcessError as `name_of`.

    Process 0 prints the transport's name, unless it is `pull`.
    """
    name, messages = _name(), endpoint()
    if name != "pull" and messages.me == 0:
        tell(f"values go from process to process by {name}")
    if name == "pull":
        return messages
    if name not in TRANSPORTS:
        return _loaded(name, messages)
    is_cpu = jax.local_devices()[0].platform == "cpu"
    return PairTransport(messages) if name == "pair" else DevicePutTransport(messages, is_cpu)


def _loaded(name: str, messages: PullTransport) -> Transport:
    """Makes the transport of a plug-in. Raises ProcessError if it can't be used."""
    plug_in = _plug_ins()[name]
    try:
        kind = plug_in.load()
        if not (isinstance(kind, type) and issubclass(kind, OrderedTransport) and kind.name == name):
            raise plug_in.expected(f"a class of OrderedTransport with the name '{name}'", kind)
    except _plugins.PlugInError as error:
        raise ProcessError(str(error)) from error.__cause__
    return kind(messages)


forgotten(transport.cache_clear)


def transport_between(devices: Iterable[Any]) -> str:
    """Returns the name of the transport between these devices; "pull" if all are in one process.

    Raises ProcessError as `name_of`.
    """
    return _name() if len(_processes(devices)) > 1 else "pull"


def _processes(devices: Iterable[Any]) -> Collection[int]:
    return {device.process_index for device in devices}


@cache
def _name() -> str:
    """Returns the transport's name, read once: programs are compiled for it, so later changes must have no effect."""
    device = jax.local_devices()[0]
    can_put = bool(jax.config.read(_ADDRESS)) or getattr(device.client, "supports_cross_host_transfers", False)
    return name_of(device.platform, can_put)


forgotten(_name.cache_clear)
