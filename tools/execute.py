"""`jaxpp-execute`: run a module on the devices of this machine, and print, save or compare its results.

A program (`@mesh_0`, `@mesh_1`, ...) runs as in a training: one submesh of devices for each mesh. A module with `@main`
runs by plain XLA. Results go to stdout, times to stderr. Exit codes: 0; 1 for bad input, or results that differ; 2 for
bad usage.
"""

from collections.abc import Sequence

from jaxpp._system import collector_paused
from jaxpp.tools import streams
from jaxpp.tools.arguments import at_least
from jaxpp.tools.opt_arguments import Parser, fraction


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool, in this process, and returns its exit code. `argv` has the arguments after the program's name."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.tolerance is not None and options.reference is None:
        parser.error("--tolerance is for --reference")
    if options.file == options.reference == "-":
        parser.error("FILE and --reference can't both be stdin")
    with collector_paused(for_imports=True):  # otherwise searches for garbage take a fifth of a short run
        from jaxpp.tools.execute_run import run  # imported only now: `--help` doesn't need it

    return run(options)


def _parser() -> Parser:
    parser = Parser("jaxpp-execute", "FILE [options]", __doc__ or "")
    parser.add_argument("file", metavar="FILE", help="a program or a module with @main, text or bytecode; -: stdin")
    parser.add_argument(
        "--inputs", metavar="FILE.npz", help="the arguments arg0, arg1, ... (or .safetensors); the others are random"
    )
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="the seed of random arguments")
    parser.add_argument("--steps", type=at_least(1), default=1, metavar="N", help="how often to run it")
    parser.add_argument("--save", metavar="FILE.npz", help="write the last results: result0, ... (or .safetensors)")
    about = "run it once more, and write the results of all tasks, for jaxpp-bisect"
    parser.add_argument("--record", metavar="FILE.npz", help=about)
    parser.add_argument("--print", action="store_true", dest="prints", help="print all numbers of the results")
    parser.add_argument(
        "--reference", metavar="FILE", help="a module with @main, to run by plain XLA and compare the results with"
    )
    parser.add_argument("--tolerance", type=fraction, metavar="T", help="the difference allowed, as for jaxpp-opt")
    parser.add_argument("--trace", metavar="FILE.json", help="write a Chrome trace of one more step of a program")
    return parser


def cli() -> None:
    """Runs the command `jaxpp-execute`."""
    streams.finish(main)


if __name__ == "__main__":
    cli()
