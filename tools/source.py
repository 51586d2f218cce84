"""Read a module from a file or a stream; turn what is wrong with it into `file:line:col: error: ...`."""

import itertools
import os
import re
from collections.abc import Iterator
from typing import TextIO

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir.errors import source_of

BYTECODE_MAGIC = b"ML\xefR"
_SEPARATOR = re.compile(rb"^// -----[ \t]*\r?$", re.MULTILINE)
_BRACKETS = bytes.maketrans(b"([{<)]}>", b"\1\1\1\1\2\2\2\2")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"([{<)]}>"))
_DEEPEST = 500


class InputError(Exception):
    """The input is not a module; the message is complete: `file:line:col: error: ...`."""


def read(path: str, stdin: TextIO) -> bytes:
    """The bytes of a file, or of `stdin` when the path is `-`.

    Raises:
        InputError: it can't be read, or is empty.
    """
    try:
        if path == "-":
            buffer = getattr(stdin, "buffer", None)
            data = buffer.read() if buffer is not None else stdin.read().encode("utf-8", "surrogatepass")
        else:
            with open(path, "rb") as file:
                data = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{display_name(path)}: error: cannot read: {reason}") from None
    if not data.strip():
        raise InputError(f"{display_name(path)}: error: the input is empty; expected an MLIR module")
    return data


def display_name(path: str) -> str:
    """What messages call the input."""
    return "<stdin>" if path == "-" else path


def split(data: bytes) -> Iterator[bytes]:
    """The parts of a text between lines `// -----`, each behind as many newlines as keep its line numbers."""
    start = 0
    for end in [match.start() for match in _SEPARATOR.finditer(data)] + [len(data)]:
        yield b"\n" * data.count(b"\n", 0, start) + data[start:end]
        start = end


def parse(data: bytes, path: str, context: ir.Context, *, whole: bool) -> ir.Module:
    """The module in `data`, text or bytecode, which came from `path` and is all of it if `whole`.

    Raises:
        InputError: it does not parse or does not verify.
    """
    name = display_name(path)
    if not data.startswith(BYTECODE_MAGIC):
        _check_text(data, name)
    try:
        if whole and os.path.isfile(path) and path.isascii():
            return ir.Module.parseFile(path, context)  # its locations then have the file's name, not `-`
        return ir.Module.parse(data, context)
    except ir.MLIRError as error:
        raise InputError(describe(error, name)) from None


def _check_text(data: bytes, name: str) -> None:
    """Refuse what MLIR's parser would not survive (it recurses on brackets) or not describe (bytes outside UTF-8)."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        message = "neither text in UTF-8 nor MLIR bytecode"
        raise InputError(f"{name}:{line}:{column}: error: {message}") from None
    steps = data.replace(b"->", b"").translate(_BRACKETS, _NOT_BRACKETS)
    if steps.count(1) <= _DEEPEST:
        return
    depth = max(itertools.accumulate((1 if step == 1 else -1) for step in steps))
    if depth > _DEEPEST:
        raise InputError(f"{name}: error: brackets are nested {depth} deep; more than {_DEEPEST} is not supported")


def describe(error: ir.MLIRError, name: str) -> str:
    """The diagnostics of an MLIR error as lines `file:line:col: error: message`."""
    lines = [line for diagnostic in error.error_diagnostics for line in describe_diagnostic(diagnostic, name)]
    return "\n".join(lines) or f"{name}: error: {error.message}"


def describe_diagnostic(diagnostic: ir.DiagnosticInfo | ir.Diagnostic, name: str) -> Iterator[str]:
    """One diagnostic and its notes as lines; notes that dump whole operations are left out."""
    severity = diagnostic.severity.name.lower()
    yield f"{place(diagnostic.location, name)}: {severity}: {one_line(diagnostic.message)}"
    for note in diagnostic.notes:
        if not note.message.startswith("see current operation"):
            yield f"{place(note.location, name)}: note: {one_line(note.message, 120)}"


def place(location: ir.Location, name: str) -> str:
    """`file:line:col` of a location; `name` alone when it has none."""
    exact = ir.Location.from_attr(location.attr, location.context)  # a diagnostic's has the base class only
    return with_name(source_of(exact), name)


def with_name(source: str | None, name: str) -> str:
    """A source position with the input's real name in place of the `-` that MLIR gives to parsed text."""
    if source is None or source in ("-:0:0", f"{name}:0:0"):
        return name
    return name + source.removeprefix("-") if source.startswith("-:") else source


def one_line(message: str, length: int = 300) -> str:
    """A message of MLIR on one line, shortened: some contain a whole type or operation."""
    text = " ".join(message.split())
    return text if len(text) <= length else text[: length - 3] + "..."


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
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
