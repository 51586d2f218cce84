"""The command line of `jaxpp-opt`. It imports neither MLIR nor passes, so that `--help` answers at once."""

import argparse
import ast
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

from jaxpp.tools.arguments import at_least


class Parser(argparse.ArgumentParser):
    """A parser that names the nearest option where one is unknown. `doc` is the tool's docstring."""

    def __init__(self, prog: str, arguments: str, doc: str) -> None:
        first, _, rest = doc.partition("\n\n")
        super().__init__(prog, f"{prog} {arguments}", first, rest, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Prints the message and exits with code 2."""
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        if unknown:
            flag = unknown[1].partition("=")[0]
            if flag in self._option_string_actions:
                super().error(f"{flag} stands behind --, which ends the options")
            near = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.7)
            message = f"unknown option {flag}" + (f"; did you mean {near[0]}?" if near else "")
        super().error(message)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the pipeline `mpmd`: its name, its type, and its description."""

    name: str
    type: type[int] | type[str]
    about: str | None

    @property
    def flag(self) -> str:
        """The flag of the parameter."""
        return f"--{self.name.replace('_', '-')}"


_TYPES: Final[Mapping[str, type[int] | type[str]]] = {"int": int, "str": str}


@cache
def pipeline_parameters() -> dict[str, Parameter]:
    """Returns the parameters of `mpmd` that have a text form, by name.

    They are read from its source, as importing it takes a second.
    """
    source = Path(__file__).parents[1] / "hlo_passes" / "pipelines.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (mpmd,) = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "mpmd"]
    doc = ast.get_docstring(mpmd) or ""
    found: dict[str, Parameter] = {}
    for argument in (*mpmd.args.args, *mpmd.args.kwonlyargs):
        about = re.search(rf"^ *{argument.arg}: (.*)\.$", doc, re.MULTILINE)
        kind = _TYPES.get(ast.unparse(argument.annotation) if argument.annotation else "")
        if kind is not None:  # others have no text form
            found[argument.arg] = Parameter(argument.arg, kind, about[1] if about else None)
    return found


def with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Returns the options of another tool, and the defaults of `jaxpp-opt` for all others."""
    return argparse.Namespace(**{**vars(make_parser("").parse_args([])), **vars(options)})


def make_parser(doc: str) -> Parser:
    """Returns the parser; `doc` is the tool's docstring."""
    parser = Parser("jaxpp-opt", "[FILE] [-p PASSES | --pipeline NAME] [options]", doc)
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="MLIR text or bytecode; -: stdin")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="write there, whole or not at all")
    parser.add_argument("--version", action="store_true", help="print the versions of jaxpp, jax and jaxlib, and exit")
    passes = parser.add_argument_group("which passes")
    add_pipeline_options(passes)
    _add_questions(passes)
    _add_format_options(parser.add_argument_group("input and output"))
    _add_watching_options(parser.add_argument_group("watching them"))
    _add_validation_options(parser.add_argument_group("comparing results"))
    _add_failure_options(parser.add_argument_group("failures"))
    return parser


def add_pipeline_options(group: "argparse._ArgumentGroup") -> None:
    """Adds the options that choose passes."""
    group.add_argument(
        "-p",
        "--passes",
        "--pass-pipeline",
        metavar="PASSES",
        help="name,name{option=value option2=value}, in order, alone or in builtin.module(...); passes of MLIR, "
        "StableHLO and Shardy too, such as canonicalize",
    )
    group.add_argument(
        "--load-pass",
        type=_reference,
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="a pass of your own, as package.module:MyPass; its name is then known; repeatable",
    )
    group.add_argument("--pipeline", metavar="NAME", help="a whole chain of passes, such as mpmd")
    for parameter in pipeline_parameters().values():
        about = f"for --pipeline: {parameter.about}" if parameter.about else None
        group.add_argument(parameter.flag, type=parameter.type, metavar="VALUE", help=about)
    group.add_argument("--start-after", metavar="NAME", help="leave out the passes up to this one")
    group.add_argument("--stop-after", metavar="NAME", help="leave out the passes after this one")
    group.add_argument("--disable", action="append", default=[], metavar="NAME", help="leave it out; repeatable")


def _add_questions(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--print-pipeline", action="store_true", help="print the passes, as -p takes them, and exit")
    group.add_argument("--list-passes", action="store_true", help="list all passes with their options, and exit")
    group.add_argument("--pass-doc", metavar="NAME", help="print what a pass does, and exit")
    group.add_argument("--show-dialects", action="store_true", help="list the dialects of the input, and exit")


def _add_format_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--emit-bytecode", action="store_true", help="write MLIR bytecode instead of text")
    group.add_argument("--mlir-print-debuginfo", action="store_true", help="print source locations too")
    group.add_argument(
        "--mlir-elide-elementsattrs-if-larger",
        type=at_least(0),
        metavar="N",
        help="print constants of more elements without their values; the text can't be read again",
    )
    group.add_argument(
        "--max-input", type=at_least(1), default=1 << 30, metavar="N", help="refuse input of more bytes (default 1 GiB)"
    )
    group.add_argument(
        "--op-stats",
        nargs="?",
        const="table",
        choices=("table", "json"),
        help="in place of the module, print operations, FLOPs, bytes and residuals per task",
    )
    group.add_argument(
        "--split-input-file", action="store_true", help="the input holds several modules, between lines '// -----'"
    )


def _add_watching_options(group: "argparse._ArgumentGroup") -> None:
    for when in ("before", "after"):
        group.add_argument(
            f"--print-{when}-all",
            f"--mlir-print-ir-{when}-all",
            action="store_true",
            help=f"print the module {when} every pass",
        )
        group.add_argument(
            f"--print-{when}",
            f"--mlir-print-ir-{when}",
            action="append",
            metavar="NAME",
            help=f"print it {when} this pass; repeatable",
        )
    group.add_argument(
        "--print-after-change",
        "--mlir-print-ir-after-change",
        action="store_true",
        help="print what each pass changed, as a diff",
    )
    group.add_argument(
        "--time-passes", "--mlir-timing", action="store_true", help="print a table of the time each pass took"
    )
    group.add_argument(
        "--verify-each", action=argparse.BooleanOptionalAction, default=True, help="verify the module after every pass"
    )
    group.add_argument(
        "--verify-diagnostics",
        action="store_true",
        help="compare messages with comments such as // expected-error {{text}}; print no result",
    )


def _add_validation_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--validate", action="store_true", help="run the module before and after every pass and compare the results"
    )
    group.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="run two modules and compare the results; runs no pass"
    )
    add_comparison_options(group)


def add_comparison_options(group: "argparse._ArgumentGroup") -> None:
    """Adds the options of a comparison: its tolerance, its inputs, and its longest loop."""
    group.add_argument(
        "--tolerance",
        type=fraction,
        metavar="T",
        help="the difference allowed, relative to an array's largest value (default: by its type)",
    )
    group.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="the seed of the inputs")
    group.add_argument("--validate-trips", type=at_least(1), metavar="N", help="how often a loop may run at most")


def _add_failure_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--isolate",
        action="store_true",
        help="try every pass in a child process first, as those of MLIR always are: C++ may abort",
    )
    group.add_argument(
        "--reproducer",
        "--mlir-pass-pipeline-crash-reproducer",
        metavar="FILE",
        help="if a pass fails, write the module before it there, with the passes from there on "
        "(without this: only after an internal error, to a new file; '': never)",
    )
    group.add_argument("--run-reproducer", action="store_true", help="run the passes that such a file names")
    group.add_argument("--debug", action="store_true", help="show the traceback of an internal error")


def _reference(text: str) -> str:
    """Checks that a text names a module and a class in it."""
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise argparse.ArgumentTypeError(f"expected package.module:Class, found '{text}'")
    return text


def fraction(text: str) -> float:
    """Reads a finite number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, such as 1e-4, found '{text}'")
    return number
