"""Input, output and the end of the process, for all command-line tools."""

import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TextIO


class InputError(Exception):
    """The input can't be used. The message is complete: `file:line:col: error: ...`."""


def standard(stdin: TextIO | None, stdout: TextIO | None, stderr: TextIO | None) -> tuple[TextIO, TextIO, TextIO]:
    """Returns the given streams; for None that of this process, or an empty one where it is closed."""
    return (
        stdin or sys.stdin or io.StringIO(),
        stdout or sys.stdout or io.StringIO(),
        stderr or sys.stderr or io.StringIO(),
    )


def display_name(path: str) -> str:
    """Returns the name by which messages call the input."""
    return "<stdin>" if path == "-" else path


def read(path: str, stdin: TextIO, expected: str) -> bytes:
    """Reads the bytes of a file, or of `stdin` if the path is `-`; `expected` names the expected input in messages.

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
        raise InputError(f"{display_name(path)}: error: the input is empty; expected {expected}")
    return data


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs a command and ends the process with its code: 130 after Ctrl-C, 1 if nobody reads its output any more."""
    try:
        code = main()
        if sys.stdout:
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
