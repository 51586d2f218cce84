"""The command line of `jaxpp-opt`."""

import argparse
import inspect
import math
import re

from jaxpp.hlo_passes import PASSES, PIPELINES
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.tools.arguments import at_least
from jaxpp.tools.pipeline_text import PipelineTextError, parse_pipeline, unknown
from jaxpp.validation import MOST_TRIPS

_OF_PIPELINES = inspect.signature(mpmd).parameters
"""The arguments of a pipeline."""
_OPTIONS = {"keep": "recompute", "stages": "offload"}
"""Options of passes that have another name in a pipeline."""
_LISTS = {"recompute", "offload", "memory_limit", "host_memory_limit"}


def make_parser(doc: str) -> argparse.ArgumentParser:
    """Returns the parser; `doc` is the tool's docstring."""
    parser = argparse.ArgumentParser(
        "jaxpp-opt",
        usage="jaxpp-opt [FILE] [-p PASSES | --pipeline NAME] [options]",
        description=doc.splitlines()[0],
        epilog=doc.partition("\n\n")[2],
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="MLIR text or bytecode; -: stdin")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="write there, whole or not at all")
    parser.add_argument("--emit-bytecode", action="store_true", help="write MLIR bytecode instead of text")
    parser.add_argument("--mlir-print-debuginfo", action="store_true", help="print source locations too")
    parser.add_argument(
        "--split-input-file", action="store_true", help="the input holds several modules, between lines '// -----'"
    )
    _add_pipeline_options(parser.add_argument_group("which passes"))
    _add_watching_options(parser.add_argument_group("watching them"))
    return parser


def _add_pipeline_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "-p", "--passes", default=None, metavar="PASSES", help="name,name{option=value option2=value}, in order"
    )
    group.add_argument("--pipeline", metavar="NAME", help="a whole chain of passes, such as mpmd")
    for key, parameter in _OF_PIPELINES.items():
        about = re.search(rf"^ *{key}: (.*)\.$", mpmd.__doc__ or "", re.MULTILINE)
        help_ = f"for --pipeline: {about[1]}" if about else None
        group.add_argument(_flag(key), type=parameter.annotation, metavar="VALUE", help=help_)
    group.add_argument("--list-passes", action="store_true", help="list all passes with their options, and exit")
    group.add_argument("--pass-doc", metavar="NAME", help="print what a pass does, and exit")


def _flag(key: str) -> str:
    """Returns the flag for an argument of a pipeline."""
    return f"--{key.replace('_', '-')}"


def _add_watching_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--print-after-all", action="store_true", help="print the module after every pass")
    group.add_argument("--print-after", action="append", metavar="NAME", help="print it after this pass; repeatable")
    group.add_argument("--time-passes", action="store_true", help="print a table of the time each pass took")
    group.add_argument(
        "--verify-each", action=argparse.BooleanOptionalAction, default=True, help="verify the module after every pass"
    )
    group.add_argument(
        "--validate", action="store_true", help="run the module before and after every pass and compare the results"
    )
    group.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="run two modules and compare the results; runs no pass"
    )
    group.add_argument(
        "--tolerance",
        type=_fraction,
        metavar="T",
        help="for these two: the difference allowed, relative to an array's largest value (default: by its type)",
    )
    group.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="likewise: the seed of the inputs")
    group.add_argument(
        "--validate-trips",
        type=at_least(1),
        default=MOST_TRIPS,
        metavar="N",
        help=f"likewise: how often a loop may run (default {MOST_TRIPS})",
    )
    group.add_argument("--debug", action="store_true", help="show the traceback of an internal error")


def _fraction(text: str) -> float:
    """Reads a finite number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, such as 1e-4, found '{text}'")
    return number


def pipeline_of(options: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[Pass, ...]:
    """Returns the passes that the command line asks for. A mistake in it ends in `parser.error` (exit code 2)."""
    for name in [*(options.print_after or ()), *([options.pass_doc] if options.pass_doc is not None else ())]:
        if name not in PASSES:
            parser.error(unknown("pass", name, PASSES))
    if options.emit_bytecode and options.split_input_file:
        parser.error("--emit-bytecode writes one module; it does not go with --split-input-file")
    if options.pipeline is not None and options.passes is not None:
        parser.error("-p and --pipeline exclude each other")
    if options.compare and (options.file != "-" or options.passes is not None or options.pipeline or options.validate):
        parser.error("--compare A B takes two files, and runs no pass")
    given = [_flag(key) for key in _OF_PIPELINES if getattr(options, key) is not None]
    if options.pipeline is None and given:
        parser.error(f"{given[0]} is for --pipeline; a pass takes options as name{{option=value}}")
    try:
        if options.pipeline is not None:
            return _named_pipeline(options)
        return parse_pipeline(options.passes or "", PASSES)
    except PipelineTextError as error:
        parser.error(str(error))


def _named_pipeline(options: argparse.Namespace) -> tuple[Pass, ...]:
    name = options.pipeline
    if name not in PIPELINES:
        raise PipelineTextError(unknown("pipeline", name, PIPELINES))
    given = {key: getattr(options, key) for key in _OF_PIPELINES if getattr(options, key) is not None}
    for key in given.keys() - inspect.signature(PIPELINES[name]).parameters.keys():
        raise PipelineTextError(f"pipeline '{name}' takes no {_flag(key)}")
    # Lists have commas on the command line, and blanks in the options of these passes.
    given |= {key: given[key].replace(",", " ") for key in _LISTS & given.keys()}
    try:
        return PIPELINES[name](**given)
    except ValueError as error:
        raise PipelineTextError(f"pipeline '{name}': {_with_flag(str(error))}") from None


def _with_flag(message: str) -> str:
    """Returns the message of a pass about an option, with the flag that set it instead of the option's name."""
    option = re.split(r"\W", message, maxsplit=1)[0]
    key = _OPTIONS.get(option, option)
    return message.replace(option, _flag(key), 1) if key in _OF_PIPELINES else message
