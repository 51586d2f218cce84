"""The user's file and line: of an MLIR location, and of the call that is being traced."""

import sys
from types import FrameType

from jaxlib.mlir import ir

from jaxpp.ir.locations import source_of

_NOT_THE_USERS = ("jaxpp", "jax", "jaxlib", "contextlib", "functools")


def source_line(location: ir.Location) -> str:
    """`train.py:12` for the innermost file and line of a location; `<unknown>` without one."""
    found = source_of(location)
    return found.rpartition(":")[0] if found else "<unknown>"


def here() -> str:
    """`train.py:12: `, to begin a message with: the innermost frame of this call that is the user's; else nothing."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_the_users(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}: "
        frame = frame.f_back
    return ""


def _is_the_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_USERS
