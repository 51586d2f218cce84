"""Helpers for all rooms: writing files atomically, telling the user, pausing the garbage collector."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress


def write_file(path: str, data: bytes) -> None:
    """Write a file whole or not at all; devices and pipes are written to in place.

    Raises:
        OSError: it can't be written; what was there before is unchanged.
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        if os.path.exists(path):
            os.chmod(temporary, os.stat(path).st_mode & 0o7777)
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too: no file of half the bytes stays
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def tell(message: str) -> None:
    """Say something on stderr, if that is still there."""
    with suppress(OSError, ValueError, AttributeError):  # the user may have closed it
        # Line and line break in one write: another thread may print at the same time.
        print(f"jaxpp: {message}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause Python's garbage collector, which would search millions of small tuples for cycles; they have none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
