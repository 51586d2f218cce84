"""The user's file and line from an MLIR location."""

import re

from jaxlib.mlir import ir

_FILE = re.compile(r'"([^"\n]*)":(\d+):\d+')


def source_line(location: ir.Location) -> str:
    """`train.py:12` for the innermost file and line of a location; `<unknown>` without one."""
    found = _FILE.search(str(location))
    return f"{found[1]}:{found[2]}" if found else "<unknown>"
