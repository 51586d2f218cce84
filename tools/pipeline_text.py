"""The text form of a pipeline: `name,name{option=value option2="two words"}`, alone or in `builtin.module(...)`.

Passes of MLIR, StableHLO and Shardy stand among ours by their names in jaxlib, with MLIR's own syntax for their
options: `canonicalize{top-down=false},func.func(cse)`.
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.mlir_pass import MlirPass
from jaxpp.ir.errors import one_line

_PASS = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*")
_ANCHOR = re.compile(r"\s*builtin\.module\s*\(")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[(){}]', re.DOTALL)
_OPTION = re.compile(r"\s*([A-Za-z_][\w-]*)\s*")
_VALUE = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^\s{}"]+)', re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_TYPE_NAMES: dict[object, str] = {int: "an integer", bool: "true or false", str: "a string"}

OptionValue = int | str | bool


class PipelineTextError(ValueError):
    """The text of a pipeline is wrong. The message names the pass, the option and the expected input, in one line."""


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a pass: its name in text (with hyphens), its field, its type, and its default (None: required)."""

    name: str
    field: str
    type: type[OptionValue]
    default: OptionValue | None

    def __str__(self) -> str:
        return f"{self.name}=<{self.type.__name__}>"


def options_of(step: type[Pass]) -> tuple[Option, ...]:
    """Returns the options of a pass class: its dataclass fields, which are of type int, str or bool."""
    hints = typing.get_type_hints(step)
    return tuple(_option(step, field, hints[field.name]) for field in dataclasses.fields(step) if field.init)


def _option(step: type[Pass], field: "dataclasses.Field[OptionValue]", hint: object) -> Option:
    if hint not in _TYPE_NAMES:
        raise TypeError(f"pass '{step.name}': option '{field.name}' is of type {hint}, not int, str or bool")
    default = None if field.default is dataclasses.MISSING else field.default
    return Option(field.name.replace("_", "-"), field.name, typing.cast("type[OptionValue]", hint), default)


def parse_pipeline(text: str, passes: Mapping[str, type[Pass]]) -> tuple[Pass, ...]:
    """Returns the passes that `text` names, with their options, in order; an empty text is an empty pipeline.

    Values are bare words or strings in double quotes (`\\"` and `\\\\` as in C); a bool option may stand without one.

    Raises:
        PipelineTextError: the text does not parse, or names an unknown pass or option, or gives a bad value.
    """
    inner, first = _unwrapped(text)
    return tuple(_split(inner, first, passes))


def pipeline_text(steps: Sequence[Pass]) -> str:
    """Returns the text of a pipeline, which `parse_pipeline` reads back; options with their defaults are left out."""
    return f"builtin.module({','.join(map(pass_text, steps))})"


def pass_text(step: Pass) -> str:
    """Returns the text of one pass with its options."""
    if isinstance(step, MlirPass):
        return step.text
    given = [(option.name, getattr(step, option.field), option.default) for option in options_of(type(step))]
    options = " ".join(f"{name}={quote(value)}" for name, value, default in given if value != default)
    return f"{step.name}{{{options}}}" if options else step.name


def _unwrapped(text: str) -> tuple[str, int]:
    """Returns the text up to the end of the passes in `builtin.module(...)`, and the position where they begin."""
    anchor = _ANCHOR.match(text)
    if not anchor:
        return text, 0
    end = _closing(text, anchor.end() - 1)
    if text[end:].strip():
        raise _expected("the end", text, end)
    return text[: end - 1], anchor.end()


def _closing(text: str, position: int) -> int:
    """Returns the position after the bracket that closes the one at `position`."""
    opened = list[str]()
    for found in _BRACKETS.finditer(text, position):
        if found[0] in ("(", "{"):
            opened.append({"(": ")", "{": "}"}[found[0]])
        elif found[0] in (")", "}") and opened.pop() != found[0]:
            raise _expected("the other bracket", text, found.start())
        if not opened:
            return found.end()
    raise _expected(f"'{opened[-1]}'", text, len(text))


def _split(text: str, position: int, passes: Mapping[str, type[Pass]]) -> Iterator[Pass]:
    """Yields the passes in the text from `position` on."""
    while text[position:].strip():
        found = _PASS.match(text, position)
        if not found:
            raise _expected("the name of a pass", text, position)
        position = found.end()
        if found[1] in passes:
            options: list[tuple[str, str | None]] = []
            if text.startswith("{", position):
                options, position = _split_options(text, position + 1)
            yield _make(found[1], options, passes)
        else:
            end = position
            while text.startswith(("{", "("), end):
                end = _closing(text, end)
            yield _foreign(found[1], text[found.start(1) : end].strip(), passes)
            position = end + len(text[end:]) - len(text[end:].lstrip())
        if position == len(text):
            return
        if text[position] != ",":
            raise _expected("',' or '{' or the end" if text[position - 1] != "}" else "',' or the end", text, position)
        position += 1
    if text[:position].rstrip().endswith(","):
        raise _expected("the name of a pass", text, position)


def _foreign(name: str, text: str, passes: Mapping[str, type[Pass]]) -> Pass:
    """Returns a pass that jaxlib has."""
    try:
        return MlirPass(text)
    except ValueError as error:
        missing = re.match("'([^']*)' does not refer to a registered pass", str(error))
        if missing and missing[1] in passes:
            raise PipelineTextError(
                f"pass '{missing[1]}' stands outside of {name}(...), which takes passes of MLIR"
            ) from None
        if missing and not missing[1]:
            raise PipelineTextError(f"bad pipeline: expected the name of a pass in {name}(...)") from None
        if missing:
            raise PipelineTextError(unknown("pass", missing[1], passes)) from None
        raise PipelineTextError(f"pass '{name}' of MLIR: {error}") from None


def _split_options(text: str, position: int) -> tuple[list[tuple[str, str | None]], int]:
    """Returns the options after a `{`, and the position after its `}` and the blanks that follow."""
    options: list[tuple[str, str | None]] = []
    while not (end := re.compile(r"\s*}\s*").match(text, position)):
        name = _OPTION.match(text, position)
        if not name:
            raise _expected("the name of an option or '}'", text, position)
        position, value = name.end(), None
        if text.startswith("=", position):
            found = _VALUE.match(text, position + 1)
            if not found:
                raise _expected(f"a value for '{name[1]}'", text, position + 1)
            position, value = found.end(), _unquote(found[1])
        options.append((name[1], value))
    return options, end.end()


def _unquote(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL) if value.startswith('"') else value


def quote(value: OptionValue) -> str:
    """Returns the text that parses back to `value`."""
    if not isinstance(value, str):
        return str(value).lower()
    bare = _VALUE.fullmatch(value)
    return (
        value
        if bare and not value[0].isspace() and '"' not in value
        else '"' + re.sub(r'([\\"])', r"\\\1", value) + '"'
    )


def _make(name: str, given: list[tuple[str, str | None]], passes: Mapping[str, type[Pass]]) -> Pass:
    options = {option.name: option for option in options_of(passes[name])}
    values: dict[str, OptionValue] = {}
    for key, text in given:
        option = options.get(key.replace("_", "-"))
        if option is None:
            has = "it has: " + ", ".join(map(str, options.values())) if options else "it has none"
            raise PipelineTextError(f"pass '{name}' has no option '{key}'; {has}")
        if option.field in values:
            raise PipelineTextError(f"pass '{name}': option '{option.name}' is given twice")
        values[option.field] = _convert(name, option, text)
    for option in options.values():
        if option.default is None and option.field not in values:
            raise PipelineTextError(f"pass '{name}' needs its option {option}")
    try:
        return passes[name](**values)
    except Exception as error:  # of any kind: the pass may be the user's
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise PipelineTextError(f"pass '{name}': {kind}{one_line(str(error))}") from None


def _convert(name: str, option: Option, text: str | None) -> OptionValue:
    if option.type is bool and (text is None or text.lower() in _BOOLEANS):
        return text is None or _BOOLEANS[text.lower()]
    if option.type is str and text is not None:
        return text
    if option.type is int and text is not None and _INTEGER.fullmatch(text) and len(text) < 20:
        return int(text)
    found = "no value" if text is None else f"'{_shorten(text)}'"
    raise PipelineTextError(f"pass '{name}': option '{option.name}' takes {_TYPE_NAMES[option.type]}, found {found}")


def unknown(what: str, name: str, known: Mapping[str, object]) -> str:
    """Returns `unknown <what> 'name'` with the nearest known names, or with all of them if none is near."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"unknown {what} '{_shorten(name)}'; did you mean {' or '.join(repr(n) for n in near)}?"
    return f"unknown {what} '{_shorten(name)}'; known: {', '.join(known) or 'none'}"


def _expected(what: str, text: str, position: int) -> PipelineTextError:
    rest = text[position:].strip()
    found = f"'{_shorten(rest)}'" if rest else "the end"
    return PipelineTextError(f"bad pipeline: expected {what}, found {found} (character {position + 1})")


def _shorten(text: str, length: int = 30) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
