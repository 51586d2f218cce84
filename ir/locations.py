"""Source positions: where in the user's file an op comes from."""

from jaxlib.mlir import ir


def source_of(location: ir.Location) -> str | None:
    """`file:line:col` of the innermost user frame of a location; None when it holds no file.

    A location of JAX is a name around a chain of call sites, innermost frame first; frames inside JAX itself were
    already dropped by JAX. A location of a parsed file is its line and column in that file.
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
