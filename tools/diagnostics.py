"""MLIR's diagnostics as lines `file:line:col: error: message`."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

from jaxlib.mlir import ir

from jaxpp.ir.locations import source_of

NOT_UTF8 = "the input holds a name that is not UTF-8"


def describe(error: ir.MLIRError, name: str) -> str:
    """Describes the diagnostics of an MLIR error, a line each; `name` is the name of the input in messages."""
    lines = [line for diagnostic in error.error_diagnostics for line in describe_diagnostic(diagnostic, name)]
    return "\n".join(lines) or f"{name}: error: {one_line(error.message)}"


def describe_diagnostic(diagnostic: ir.DiagnosticInfo | ir.Diagnostic, name: str) -> Iterator[str]:
    """Describes one diagnostic and its notes, except notes that dump whole operations."""
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


def one_line(message: str, length: int = 300) -> str:
    """Shortens a message of MLIR to one line: some contain a whole type or operation."""
    text = " ".join(message.split())
    return text if len(text) <= length else text[: length - 3] + "..."


@contextlib.contextmanager
def collected(context: ir.Context, name: str) -> Generator[list[str]]:
    """Collects the lines of all diagnostics that `context` emits inside the `with`, and prints none of them."""
    lines: list[str] = []

    def handle(diagnostic: ir.Diagnostic) -> bool:
        try:
            lines.extend(describe_diagnostic(diagnostic, name))
        except (RuntimeError, ValueError):  # the message quotes a name in the input that is not UTF-8
            lines.append(f"{name}: error: {NOT_UTF8}")
        return True

    handler: Any = context.attach_diagnostic_handler(handle)
    try:
        yield lines
    finally:
        handler.detach()


@contextlib.contextmanager
def emitted(context: ir.Context) -> Generator[None]:
    """Sends errors to the handlers. MLIRError would end the process on a message that is not UTF-8."""
    context.emit_error_diagnostics = True
    try:
        yield
    finally:
        context.emit_error_diagnostics = False
