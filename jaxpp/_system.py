"""Helpers for all packages: write files atomically, print messages, set context variables, keep ports and so on."""

from __future__ import annotations

import gc
import os
import secrets
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

_Value = TypeVar("_Value")


def write_file(path: str, data: bytes) -> None:
    """Writes a file as a whole or not at all, even if the machine fails; devices and pipes are written in place.

    Raises:
        OSError: the file can't be written; its old content is unchanged.
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    # Another thread, or a process with the same id on another machine, may write the same file.
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            os.chmod(temporary, os.stat(path).st_mode & 0o7777)
        os.replace(temporary, path)
        sync_folder(os.path.dirname(path))
    except BaseException as error:  # Ctrl-C too: no incomplete file is left
        if os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            error.filename = path  # the file that the user named
        raise


def sync_folder(folder: str) -> None:
    """Writes the names in a folder to the disk, if the file system can."""
    with suppress(OSError):  # some file systems sync no folders
        _sync(folder)


def sync_tree(folder: str) -> None:
    """Writes all files below a folder, and their names, to the disk. Raises OSError if a file can't be written."""
    for root, _, files in os.walk(folder):
        for name in files:
            _sync(os.path.join(root, name))
        sync_folder(root)


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def tell(message: str) -> None:
    """Prints a message on stderr, if that is still open."""
    with suppress(OSError, ValueError, AttributeError):  # the user may have closed it
        # Line and line break in one write: another thread may print at the same time.
        print(f"jaxpp: {message}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def setting(variable: ContextVar[_Value], value: _Value) -> Generator[None]:
    """Sets a context variable inside of a `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def collector_paused(*, for_imports: bool = False) -> Generator[None]:
    """Pauses Python's garbage collector, which would search millions of small tuples for cycles, and find none.

    With `for_imports`, it never searches what the first such block of the process has made: modules stay.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_imports and not gc.get_freeze_count():
            gc.freeze()
        if was_enabled:
            gc.enable()


def keep_port(host: str, port: int = 0) -> socket.socket:
    """Returns a socket that keeps a port and never listens. Only a server with SO_REUSEADDR can then have the port.

    port: 0 for any free port. Raises OSError if it is in use, or this machine does not have the address.
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
    """Lets JAX's services, which set SO_REUSEPORT, listen at the port of a `keep_port`. Other servers can't."""
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
