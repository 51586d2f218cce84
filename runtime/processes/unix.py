"""Unix sockets between processes of one machine, under the addresses that they have for TCP.

The names are in Linux's abstract namespace: there is no file to remove, and other machines, or containers with a
network of their own, do not see them. Every user of this machine may take any name, so that a listener counts only if
it is of the user who asks.
"""

import os
import socket
import struct
import sys
from collections.abc import Callable


def listen(address: str) -> socket.socket | None:
    """A socket that listens under the address host:port in this machine; None where there are no such names."""

    def begin(listener: socket.socket) -> None:
        listener.bind(_name(address))
        listener.listen()

    return _open(begin)


def connect(address: str, seconds: float) -> socket.socket | None:
    """A connection to the process of this user that listens under the address; None if none does, or in time."""

    def begin(connected: socket.socket) -> None:
        connected.settimeout(seconds)
        connected.connect(_name(address))
        if _user(connected) != os.geteuid():
            raise PermissionError(f"another user listens under {address}")

    return _open(begin)


def _user(connected: socket.socket) -> int:
    """The user whose process listens at the other end."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user


def _name(address: str) -> bytes:
    return b"\0jaxpp " + address.encode()


def _open(begin: Callable[[socket.socket], None]) -> socket.socket | None:
    """A socket with which `begin` has succeeded."""
    if sys.platform != "linux":
        return None
    made = socket.socket(socket.AF_UNIX)
    try:
        begin(made)
    except OSError:
        made.close()
        return None
    return made
