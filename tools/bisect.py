"""`jaxpp-bisect`: finds the first pass after which a module computes other results.

It runs the module on the CPU on random inputs: before the passes, after all of them, and after some of them. It prints
the pass, the result, its largest error, the user's line, and a command to go on with. Exit codes: 0 if the results
agree after all passes; 1 if they differ, and for bad input; 2 for bad usage.
"""

import shlex
import sys
from collections.abc import Sequence

from jaxpp.tools import streams
from jaxpp.tools.opt_arguments import Parser, add_comparison_options, add_pipeline_options, with_defaults


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool, in this process, and returns its exit code. `argv` has the arguments after the program's name."""
    parser = _make_parser()
    words = sys.argv[1:] if argv is None else list(argv)
    options = parser.parse_args(words)
    if options.passes is None and options.pipeline is None:
        parser.error("give the passes, with -p or --pipeline")
    from jaxpp.tools.bisect_run import run  # imported only now: it takes a second, which `--help` doesn't need

    return run(with_defaults(options), parser, shlex.join(words))


def _make_parser() -> Parser:
    parser = Parser("jaxpp-bisect", "[FILE] [-p PASSES | --pipeline NAME] [options]", __doc__ or "")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="MLIR text or bytecode; -: stdin")
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
