"""Source positions: where an op comes from in the user's file."""

import re
from collections.abc import Iterator

from jaxlib.mlir import ir

_WORD = re.compile(r"[^/()]+(?![^/()]*\()")
"""A scope in a stack of names: `layer0` and `tanh` in `transpose(jvp(layer0))/tanh`."""
_BACKWARD = re.compile(r"(?:^|[/(])transpose\(")


def source_of(location: ir.Location) -> str | None:
    """Returns `file:line:col` of the innermost user frame of a location; None when it holds no file.

    A location from JAX is a name around a chain of call sites, innermost frame first. JAX has already dropped the
    frames inside of JAX. A location from a parsed file is the line and column in that file.
    """
    return next((f"{file.filename}:{file.start_line}:{file.start_col}" for file in _files(location)), None)


def name_stacks(location: ir.Location) -> Iterator[str]:
    """Yields the names of a location, such as `jit(f)/jvp(layer0)/tanh`: of each call site, without its frames."""
    yield from (part.name_str for part in _parts(location) if isinstance(part, ir.NameLoc))


def is_backward(location: ir.Location) -> bool:
    """Whether JAX made an operation of this location as the transpose of another, or to recompute one for it."""
    return any(_BACKWARD.search(stack) for stack in name_stacks(location))


def is_in_scope(location: ir.Location, scope: str) -> bool:
    """Whether a location is in a scope: a name, `layer0` or `decoder/layer0`, or a line, `train.py:12`."""
    if any(f"/{scope}/" in f"/{'/'.join(_WORD.findall(stack))}/" for stack in name_stacks(location)):
        return True
    lines = (f"{file.filename}:{file.start_line}" for file in _files(location))
    return ":" in scope and any(f"/{line}".endswith(f"/{scope}") for line in lines)


def _files(location: ir.Location) -> Iterator[ir.FileLineColLoc]:
    """Yields the place in a file of each frame of a location, innermost frame first."""
    for part in _parts(location):
        if isinstance(part, ir.NameLoc):
            yield from _files(part.child_loc)
        elif isinstance(part, ir.FileLineColLoc):
            yield part


def _parts(location: ir.Location) -> Iterator[ir.Location]:
    """Yields the locations of all call sites, and those that were fused."""
    if isinstance(location, ir.CallSiteLoc):
        yield from _parts(location.callee)
        yield from _parts(location.caller)
    elif isinstance(location, ir.FusedLoc):
        for part in location.locations:
            if isinstance(part, ir.Location):
                yield from _parts(part)
    else:
        yield location
