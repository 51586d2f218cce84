"""Types and forms of arguments, for the parsers of the command-line tools."""

import argparse
import re
from collections.abc import Callable
from typing import Any

Add = Callable[["argparse._ActionsContainer"], object]
"""A function that adds arguments to a parser or a group."""


def flag(*names: str, **options: Any) -> Add:
    """Returns a function that adds one argument; the arguments are those of `add_argument`."""
    return lambda parser: parser.add_argument(*names, **options)


def group(title: str, *flags: Add) -> Add:
    """Returns a function that adds a group of arguments."""

    def add(parser: "argparse._ActionsContainer") -> None:
        added = parser.add_argument_group(title)
        for each in flags:
            each(added)

    return add


def at_least(least: int) -> Callable[[str], int]:
    """Returns a type for argparse: an integer that is at least `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number from {least} on, found '{text}'")
        return int(text)

    return read


def address(text: str) -> str:
    """Checks that a text is HOST:PORT."""
    if not re.fullmatch(r"[^\s:]+:[0-9]{1,5}", text):
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT")
    if int(text.rpartition(":")[2]) > 65535:
        raise argparse.ArgumentTypeError(f"{text}: there is no such port, they go up to 65535")
    return text
