"""The user's file and line: of an MLIR location, and of the call that is being traced."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.locations import source_of

_NOT_THE_USERS = ("jaxpp", "jax", "jaxlib", "contextlib", "functools")


def source_line(location: ir.Location) -> str:
    """Returns `train.py:12` for the innermost file and line of a location; `<unknown>` without one."""
    found = source_of(location)
    return found.rpartition(":")[0] if found else "<unknown>"


def here() -> str:
    """Returns the start of a message, `train.py:12: `, from the user's innermost frame; otherwise ""."""
    frame = next(filter(_is_the_users, _frames()), None)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}: "


def check_whole(who: str, **numbers: object) -> None:
    """Raises TypeError, with the user's line, unless each of the named arguments of `who` is a whole number."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise TypeError(f"{here()}{who}: {name} must be a whole number, found {number!r}")


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that a partial calls: JAX's messages don't name a partial."""
    while isinstance(function, partial):
        function = function.func
    return function


def name_of_function(function: Callable[..., Any]) -> str:
    """Returns the name of a function, or of the class of another callable."""
    function = called(function)
    return getattr(function, "__name__", type(function).__name__)


def position() -> str:
    """Returns `train.py:12:4` for the user's innermost frame, in the form of `jaxpp.ir.locations.source_of`."""
    frame = next(filter(_is_the_users, _frames()), None)
    if frame is None:
        return "<unknown>:0:0"
    _, _, column, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return f"{frame.f_code.co_filename}:{frame.f_lineno}:{column or 0}"


def is_for_shapes() -> bool:
    """Whether this call runs under `jax.eval_shape`, so that nothing that it traces is computed."""
    return any(frame.f_code.co_name == "eval_shape" and _package(frame) == "jax" for frame in _frames())


def _frames() -> Iterator[FrameType]:
    """Yields the frames of this call, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_ours(error: BaseException) -> bool:
    """Whether jaxpp raised an error, and not the user's function or a function that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "jaxpp"


def _is_the_users(frame: FrameType) -> bool:
    return _package(frame) not in _NOT_THE_USERS


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
