"""Input, output and the end of the process, for all command-line tools."""

import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from jaxpp._system import write_file


class InputError(Exception):
    """The input can't be used. The message is complete: `file:line:col: error: ...`."""


def display_name(path: str) -> str:
    """Returns the name by which messages call the input, in one line."""
    return "<stdin>" if path == "-" else printable(path)


def printable(name: str) -> str:
    """Returns a name without line breaks and other characters that can't be seen."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in name)


def refused(name: str, reason: str) -> InputError:
    """Returns the error for a file that can't be used."""
    return InputError(f"{printable(name)}: error: {reason}")


def read(path: str, expected: str, most: int | None = None) -> bytes:
    """Reads the bytes of a file, or of stdin if the path is `-`; `expected` names the expected input in messages.

    Raises:
        InputError: it can't be read, is empty, or has more than `most` bytes.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                _check_size(path, os.fstat(file.fileno()).st_size, most)
                data = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise refused(display_name(path), f"cannot read: {reason}") from None
    _check_size(path, len(data), most)
    if not data.strip():
        raise refused(display_name(path), f"the input is empty; expected {expected}")
    return data


def _check_size(path: str, size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise refused(display_name(path), f"{size:,} bytes, more than the limit of --max-input, {most:,}")


def write(path: str, data: bytes | str) -> None:
    """Writes a file, or to stdout if the path is `-`.

    Raises:
        InputError: it can't be written.
    """
    try:
        if path != "-":
            write_file(path, data.encode() if isinstance(data, str) else data)
        elif isinstance(data, str):
            sys.stdout.write(data)
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the stream takes no bytes"
        raise refused("<stdout>" if path == "-" else path, f"cannot write: {reason}") from None


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs a command and ends the process with its code: 130 after Ctrl-C, 1 if nobody reads its output any more."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed when the process began
            setattr(sys, name, io.TextIOWrapper(io.BytesIO()))
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
