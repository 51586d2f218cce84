"""Unix sockets between processes of one machine, named after the processes' TCP addresses.

The names are in Linux's abstract namespace. So there is no file to remove, and other machines can't see the names, nor
can containers with a separate network. Any user of this machine may take any name, so `connect` accepts only a listener
of the same user.
"""

import os
import socket
import struct
import sys
from collections.abc import Callable


def listen(address: str) -> socket.socket | None:
    """Returns a socket that listens under the address host:port in this machine; None outside Linux, or on failure."""

    def begin(listener: socket.socket) -> None:
        listener.bind(_name(address))
        listener.listen()

    return _open(begin)


def connect(address: str, seconds: float) -> socket.socket | None:
    """Connects to a process of the same user that listens under the address; None on failure, or after `seconds`."""

    def begin(connected: socket.socket) -> None:
        connected.settimeout(seconds)
        connected.connect(_name(address))
        if not is_own(connected):
            raise PermissionError(f"another user listens under {address}")

    return _open(begin)


def listening(prefix: str) -> list[str]:
    """Returns the rest of each address in this machine that begins so and has a listener; empty outside Linux."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            found = [line.rstrip("\n").partition("@jaxpp ")[2] for line in file]
    except OSError:
        return []
    return sorted({each.removeprefix(prefix) for each in found if each.startswith(prefix)})


def is_own(connected: socket.socket) -> bool:
    """Whether the process at the other end has the user of this one."""
    return _user(connected) == os.geteuid()


def _user(connected: socket.socket) -> int:
    """Returns the user id of the process at the other end."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user


def _name(address: str) -> bytes:
    return b"\0jaxpp " + address.encode()


def _open(begin: Callable[[socket.socket], None]) -> socket.socket | None:
    """Returns a new Unix socket after `begin` has succeeded with it; None if `begin` fails, or outside Linux."""
    if sys.platform != "linux":
        return None
    made = socket.socket(socket.AF_UNIX)
    try:
        begin(made)
    except OSError:
        made.close()
        return None
    return made
