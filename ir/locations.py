"""Source positions: where an op comes from in the user's file."""

from jaxlib.mlir import ir


def source_of(location: ir.Location) -> str | None:
    """Returns `file:line:col` of the innermost user frame of a location; None when it holds no file.

    A location from JAX is a name around a chain of call sites, innermost frame first. JAX has already dropped the
    frames inside of JAX. A location from a parsed file is the line and column in that file.
    """
    if isinstance(location, ir.NameLoc):
        return source_of(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return source_of(location.callee) or source_of(location.caller)
    if isinstance(location, ir.FusedLoc):
        parts = (source_of(part) for part in location.locations if isinstance(part, ir.Location))
        return next((found for found in parts if found), None)
    if isinstance(location, ir.FileLineColLoc):
        return f"{location.filename}:{location.start_line}:{location.start_col}"
    return None
