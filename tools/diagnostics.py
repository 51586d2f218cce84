"""MLIR's diagnostics as lines `file:line:col: error: message`."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

from jaxlib.mlir import ir

from jaxpp.ir.errors import PassError, one_line
from jaxpp.ir.locations import source_of

NOT_UTF8 = "the input holds a name that is not UTF-8"


def describe_diagnostic(diagnostic: ir.Diagnostic, name: str) -> Iterator[str]:
    """Describes one diagnostic and its notes, except notes that dump whole operations.

    name: the name of the input in messages.
    """
    severity = diagnostic.severity.name.lower()
    yield f"{place(diagnostic.location, name)}: {severity}: {one_line(diagnostic.message)}"
    for note in diagnostic.notes:
        if not note.message.startswith("see current operation"):
            yield f"{place(note.location, name)}: note: {one_line(note.message, 120)}"


def place(location: ir.Location, name: str) -> str:
    """Returns `file:line:col` of a location; `name` alone if it has none."""
    exact = ir.Location.from_attr(location.attr, location.context)  # a diagnostic's location has only the base class
    return with_name(source_of(exact), name)


def with_name(source: str | None, name: str) -> str:
    """Replaces the `-` that MLIR gives to parsed text by the input's real name."""
    if source is None or source in ("-:0:0", f"{name}:0:0"):
        return name
    return name + source.removeprefix("-") if source.startswith("-:") else source


def explained(error: PassError, name: str) -> str:
    """Returns the message of an error, with its place and its hint."""
    hint = f"\n  {error.hint}" if error.hint else ""
    return f"{with_name(error.source, name)}: error: {error.message}{hint}"


@contextlib.contextmanager
def collected(context: ir.Context, name: str) -> Generator[list[str]]:
    """Collects the lines of all diagnostics that `context` emits inside the `with`, and prints none of them.

    Otherwise an MLIRError takes those of its error, and ends the process where one of them is not UTF-8.
    """
    lines: list[str] = []

    def handle(diagnostic: ir.Diagnostic) -> bool:
        try:
            lines.extend(describe_diagnostic(diagnostic, name))
        except (RuntimeError, ValueError):  # the message quotes a name in the input that is not UTF-8
            lines.append(f"{name}: error: {NOT_UTF8}")
        return True

    handler: Any = context.attach_diagnostic_handler(handle)
    before, context.emit_error_diagnostics = context.emit_error_diagnostics, True
    try:
        yield lines
    finally:
        context.emit_error_diagnostics = before
        handler.detach()
