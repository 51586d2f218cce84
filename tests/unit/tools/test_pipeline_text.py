"""The text form of a pipeline."""

import contextlib
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from jaxpp.hlo_passes import PASSES
from jaxpp.hlo_passes.base import Pass
from jaxpp.tools.pipeline_text import OptionValue, PipelineTextError, options_of, parse_pipeline, quote


class Silent(Pass):
    """Does nothing."""

    def run(self, module: ir.Module) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class A(Silent):
    """A."""

    name: ClassVar[str] = "a-pass"
    count: int = 1
    long_name: str = ""
    flag: bool = False


@dataclass(frozen=True)
class B(Silent):
    """B."""

    name: ClassVar[str] = "b"
    needed: int

    def __post_init__(self) -> None:
        if self.needed < 0:
            raise ValueError("needed must not be negative")


@dataclass(frozen=True)
class Plain(Silent):
    """Has no options."""

    name: ClassVar[str] = "plain"


KNOWN: dict[str, type[Pass]] = {"a-pass": A, "b": B, "plain": Plain}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("  ", ()),
        ("plain", (Plain(),)),
        (" a-pass , plain,a-pass{}", (A(), Plain(), A())),
        ("a-pass{count=2}", (A(2),)),
        ("a-pass{ count = -2  long-name=x flag }", (A(-2, "x", True),)),
        ("a-pass{long_name=a,b=c flag=false}", (A(1, "a,b=c"),)),
        ('a-pass{long-name="two words} \\"\\\\" flag=True},b{needed=3}', (A(1, 'two words} "\\', True), B(3))),
        ("a-pass{long-name=1f1b\nflag}", (A(1, "1f1b", True),)),
    ],
)
def test_parses(text: str, expected: tuple[Pass, ...]) -> None:
    assert parse_pipeline(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain,", "bad pipeline: expected the name of a pass, found the end (character 7)"),
        (",plain", "bad pipeline: expected the name of a pass, found ',plain' (character 1)"),
        ("plain plain", "bad pipeline: expected ',' or '{' or the end, found 'plain' (character 7)"),
        ("plain{}}", "bad pipeline: expected ',' or the end, found '}' (character 8)"),
        ("a-pass{", "bad pipeline: expected the name of an option or '}', found the end (character 8)"),
        ("a-pass{=1}", "bad pipeline: expected the name of an option or '}', found '=1}' (character 8)"),
        ("a-pass{count=}", "bad pipeline: expected a value for 'count', found '}' (character 14)"),
        ('a-pass{count="1}', "bad pipeline: expected a value for 'count', found '\"1}' (character 14)"),
        ("a-pas", "unknown pass 'a-pas'; did you mean 'a-pass'?"),
        ("zzz", "unknown pass 'zzz'; known: a-pass, b, plain"),
        (
            "a-pass{cout=1}",
            "pass 'a-pass' has no option 'cout'; it has: count=<int>, long-name=<str>, flag=<bool>",
        ),
        ("plain{x=1}", "pass 'plain' has no option 'x'; it has none"),
        ("a-pass{count=x}", "pass 'a-pass': option 'count' takes an integer, found 'x'"),
        ("a-pass{count=1.5}", "pass 'a-pass': option 'count' takes an integer, found '1.5'"),
        ("a-pass{count}", "pass 'a-pass': option 'count' takes an integer, found no value"),
        ("a-pass{flag=maybe}", "pass 'a-pass': option 'flag' takes true or false, found 'maybe'"),
        ("a-pass{long-name}", "pass 'a-pass': option 'long-name' takes a string, found no value"),
        ("a-pass{count=1 count=2}", "pass 'a-pass': option 'count' is given twice"),
        ("b", "pass 'b' needs its option needed=<int>"),
        ("b{needed=-1}", "pass 'b': needed must not be negative"),
        (f"a-pass{{count={'9' * 50}}}", f"pass 'a-pass': option 'count' takes an integer, found '{'9' * 27}...'"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(PipelineTextError) as error:
        parse_pipeline(text, KNOWN)
    assert str(error.value) == message


def test_options_must_be_of_simple_types() -> None:
    @dataclass(frozen=True)
    class Odd(Silent):
        """Has a field that no text can give."""

        name: ClassVar[str] = "odd"
        items: tuple[int, ...] = ()

    with pytest.raises(TypeError, match="pass 'odd': option 'items' is of type"):
        options_of(Odd)


def test_every_pass_has_options_of_simple_types() -> None:
    for step in PASSES.values():
        options_of(step)


@settings(deadline=None)
@given(st.text() | st.text('a-pssblin{}=,"\\ 1tcounflg\n', max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(PipelineTextError):
        parse_pipeline(text, KNOWN)


@settings(deadline=None)
@given(st.integers(-(10**17), 10**17), st.text(), st.booleans())
def test_what_is_quoted_parses_back(count: int, long_name: str, flag: bool) -> None:
    values: dict[str, OptionValue] = {"count": count, "long-name": long_name, "flag": flag}
    text = " ".join(f"{name}={quote(value)}" for name, value in values.items())
    assert parse_pipeline(f"a-pass{{{text}}}", KNOWN) == (A(count, long_name, flag),)
