"""`jaxpp-bisect`: finds the first pass after which a module computes other results, and the first wrong value.

It runs the module on the CPU on random inputs: before the passes, after all of them, and after some of them. It prints
the pass, the first task and value that differ, the user's line, the result with the largest error, and a command to go
on with. With two files it runs no pass: it compares two programs, or two records of `jaxpp-execute --record`, or one of
each, and prints the first task and value that differ. Exit codes: 0 if the results agree; 1 if they differ, and for bad
input; 2 for bad usage.
"""

import shlex
import sys
from collections.abc import Sequence

from jaxpp._system import collector_paused
from jaxpp.tools import streams
from jaxpp.tools.opt_arguments import Parser, add_comparison_options, add_pipeline_options, with_defaults


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool, in this process, and returns its exit code. `argv` has the arguments after the program's name."""
    parser = _make_parser()
    words = sys.argv[1:] if argv is None else list(argv)
    options = parser.parse_args(words)
    has_passes = options.passes is not None or options.pipeline is not None
    if options.other is None and not has_passes:
        parser.error("give the passes, with -p or --pipeline, or a second file")
    if options.other is not None and (has_passes or options.nan):
        parser.error("two files are compared as they are: leave out " + ("the passes" if has_passes else "--nan"))
    if options.file == options.other == "-":
        parser.error("the two files can't both be stdin")
    with collector_paused(for_imports=True):  # otherwise searches for garbage take a fifth of a short run
        from jaxpp.tools.bisect_run import compare, search  # imported only now: `--help` doesn't need it

    return compare(options) if options.other else search(with_defaults(options), parser, shlex.join(words))


def _make_parser() -> Parser:
    parser = Parser("jaxpp-bisect", "[FILE] [-p PASSES | --pipeline NAME | OTHER] [options]", __doc__ or "")
    about = "MLIR text or bytecode, or a record of jaxpp-execute; -: stdin"
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help=about)
    parser.add_argument("other", nargs="?", metavar="OTHER", help="a second module or record, to compare with FILE")
    about = "find the first NaN after all passes instead: the task, the operation and the user's line"
    parser.add_argument("--nan", action="store_true", help=about)
    add_pipeline_options(parser.add_argument_group("which passes"))
    add_comparison_options(parser.add_argument_group("comparing results"))
    return parser


def cli() -> None:
    """Runs the command `jaxpp-bisect`."""
    streams.finish(main)


if __name__ == "__main__":
    cli()
