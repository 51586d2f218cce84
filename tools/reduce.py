"""`jaxpp-reduce`: makes a module smaller for as long as a test still finds it interesting.

The test is a shell command that gets the name of a file (--test), or a run of `jaxpp-opt` in a copy of this process
(-p, --pipeline). The result goes to stdout (or `-o FILE`), a line for each accepted step to stderr. Ctrl-C ends with
the best module so far. Exit codes: 0; 1 for bad input, or input that is not interesting; 2 for bad usage; 130 after
Ctrl-C.
"""

import argparse
import os
from collections.abc import Sequence

from jaxpp._system import collector_paused
from jaxpp.tools import streams
from jaxpp.tools.arguments import at_least
from jaxpp.tools.opt_arguments import Parser, add_comparison_options, add_pipeline_options, with_defaults


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool, in this process, and returns its exit code. `argv` has the arguments after the program's name."""
    parser = _make_parser()
    options = parser.parse_args(argv)
    if mistake := _mistake(options):
        parser.error(mistake)
    with collector_paused(for_imports=True):  # otherwise searches for garbage take a fifth of a short run
        from jaxpp.tools.reduce_run import run  # imported only now: `--help` doesn't need it

    return run(with_defaults(options), parser)


def _make_parser() -> Parser:
    arguments = "[FILE] [--test COMMAND | -p PASSES | --pipeline NAME] [--expect TEXT] [options]"
    parser = Parser("jaxpp-reduce", arguments, __doc__ or "")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="MLIR text or bytecode; -: stdin")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="write there, whole or not at all")
    parser.add_argument("--in-place", action="store_true", help="overwrite the input")
    test = parser.add_argument_group("what is interesting")
    test.add_argument("--test", metavar="COMMAND", help="a shell command; the file's name is appended")
    about = "interesting: its output has this text (without it: COMMAND ends with 0)"
    test.add_argument("--expect", metavar="TEXT", help=about)
    about = "the most seconds of a test; a longer one is not interesting (default: %(default)s)"
    test.add_argument("--timeout", type=at_least(1), default=60, metavar="S", help=about)
    passes = parser.add_argument_group("passes to run in place of a command")
    add_pipeline_options(passes)
    about = "run the module before and after every pass and compare the results"
    passes.add_argument("--validate", action="store_true", help=about)
    add_comparison_options(passes)
    return parser


def _mistake(options: argparse.Namespace) -> str:
    """Returns what is wrong with the command line, or ""."""
    runs_passes = options.passes is not None or options.pipeline is not None
    if (options.test is not None) == runs_passes:
        return "give either --test COMMAND, or passes with -p or --pipeline"
    if runs_passes and not options.expect:
        return "passes need --expect TEXT: a part of the message to keep"
    if options.in_place and (options.file == "-" or options.output != "-"):
        return "--in-place needs a FILE, and no -o"
    if options.output != "-" and os.path.realpath(options.output) == os.path.realpath(options.file):
        return f"-o {streams.printable(options.output)} is the input; --in-place overwrites it"
    return ""


def cli() -> None:
    """Runs the command `jaxpp-reduce`."""
    streams.finish(main)


if __name__ == "__main__":
    cli()
