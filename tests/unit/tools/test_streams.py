"""The names of files in messages: each message stays one line, whatever a file is called."""

from collections.abc import Callable, Sequence
from importlib import import_module

import pytest
import runline

from jaxpp.tools.streams import display_name

STEP = "1f1b", "--meshes", "2", "--microbatches", "3"


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("opt", ["\n"], r"\n: error: cannot read: No such file or directory"),
        ("bisect", ["\n", "\n"], r"\n: error: cannot read: No such file or directory"),
        ("execute", ["\x1b[2J"], r"\x1b[2J: error: cannot read: No such file or directory"),
        ("plan", ["a\n"], r"a\n: error: cannot read: No such file or directory"),
        (
            "reduce",
            ["\n", "--test", "true", "-o", "\n"],
            r"jaxpp-reduce: error: -o \n is the input; --in-place overwrites it",
        ),
        ("schedule", ["simulate", *STEP, "--costs", "\n"], r"\n: error: cannot read: No such file or directory"),
        (
            "schedule",
            ["plot", *STEP, "-o", "no\n/x.svg"],
            r"no\n/x.svg: error: cannot write: No such file or directory",
        ),
        (
            "schedule",
            ["plot", *STEP, "-o", "\n"],
            r"jaxpp-schedule: error: a picture's name must end in .svg, .png or .html, found '\n'",
        ),
    ],
)
def test_odd_names(tool: str, arguments: Sequence[str], message: str) -> None:
    main: Callable[[Sequence[str]], int] = import_module(f"jaxpp.tools.{tool}").main
    code, out, err = runline.call(main, *arguments).texts
    assert code in (1, 2)
    assert (out, err.splitlines()[-1]) == ("", message)


def test_usual_names_are_shown_as_they_are() -> None:
    assert [display_name(each) for each in ("-", "a b/ö.mlir", "\udc80")] == ["<stdin>", "a b/ö.mlir", r"\udc80"]
