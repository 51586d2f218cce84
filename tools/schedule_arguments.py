"""The command line of `jaxpp-schedule`."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jaxpp.schedules.given import LibraryOption, WordsError, library_options
from jaxpp.tools.arguments import Add, flag, group

_NAME: Final = (
    "a schedule of the library (jaxpp-schedule list), with options of its own as in gis{chunks=4}; "
    "or a file: a grid as `show` prints it, or one of PyTorch's tables (.csv); -: stdin"
)

_COST_FLAGS: Final = {
    "--forward": "time of a forward, of one microbatch on a whole mesh",
    "--input-grad": "time of an input gradient, of one microbatch on a whole mesh",
    "--weight-grad": "time of a weight gradient, of one microbatch on a whole mesh",
    "--hop": "latency from mesh to mesh",
}

Command = Callable[..., Any]


def make_parser(doc: str, commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Returns the parser. `doc` is the tool's docstring; the docstring of each command is its help, with an example."""
    parser = argparse.ArgumentParser(
        "jaxpp-schedule", description=doc.splitlines()[0], epilog=doc.partition("\n\n")[2], allow_abbrev=False
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name, command in commands.items():
        summary, _, rest = (command.__doc__ or "").partition("\n\n")
        about = f"{summary[0].lower()}{summary[1:].rstrip('.')}"
        usage, arguments = _ARGUMENTS[name]
        subparser = subparsers.add_parser(
            name,
            usage=f"jaxpp-schedule {name} {usage}",
            help=about,
            description=summary,
            epilog="\n".join(line.removeprefix("    ") for line in rest.rstrip().splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        subparser.set_defaults(command=command, usage=subparser)
        for add in arguments:
            add(subparser)
    return parser


def _converter(option: LibraryOption) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return option.convert(text)
        except WordsError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _library_flag(option: LibraryOption) -> Add:
    name, about = f"--{option.name.replace('_', '-')}", f"{option.about} ({', '.join(option.schedules)})"
    if option.type is bool:
        return flag(name, action=argparse.BooleanOptionalAction, default=None, help=about)
    return flag(name, type=_converter(option), metavar="N" if option.type is int else "MESHES", help=about)


def _placement(text: str) -> object:
    names = ("linear", "v", "looped", "waves", "any")
    if text in names:
        return text
    if text[:1].isdigit():
        return _converter(library_options()["placement"])(text)
    raise argparse.ArgumentTypeError(f"expected {', '.join(names)}, or meshes such as 0,1,1,0, found {text!r}")


def _after(text: str) -> list[list[int]]:
    try:
        return [[] if word == "." else list(map(int, word.split("+"))) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected the stages that each reads, as in .,.,0+1, found {text!r}"
        ) from None


def _numbers(text: str) -> float | list[float]:
    try:
        numbers = list(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, or several as in 4,4,3,3, found {text!r}") from None
    return numbers if "," in text else numbers[0]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _sizes(required: bool) -> Sequence[Add]:
    return (
        flag("--meshes", type=int, metavar="N", required=required, help="number of meshes"),
        flag("--microbatches", type=int, metavar="N", required=required, help="number of microbatches"),
    )


_SIZES: Final = _sizes(required=True)
_LIBRARY: Final = group(
    "for schedules of the library", *_sizes(required=False), *map(_library_flag, library_options().values())
)
_ONE: Final = (flag("name", metavar="NAME|FILE", help=_NAME), _LIBRARY)
_SEVERAL: Final = (flag("names", nargs="+", metavar="NAME|FILE", help=_NAME), _LIBRARY)
_COSTS: Final = group(
    "costs (by default each task takes 1, a hop nothing)",
    flag("--costs", metavar="FILE", help="TOML or JSON with the attributes of jaxpp.schedules.Costs"),
    *(flag(name, type=float, metavar="TIME", help=about) for name, about in _COST_FLAGS.items()),
)
_JSON: Final = flag("--json", action="store_true", help="print JSON, for scripts")
_OUTPUT: Final = flag("-o", "--output", default="-", metavar="FILE", help="write there, whole or not at all")
_PICTURE: Final = flag(
    "-o", "--output", metavar="FILE", help="named .svg, .png or .html; for step.json by default step.html"
)
_TRACE: Final = "; or a trace of a step (.json)"
_HISTORY: Final = flag("--history", metavar="FILE", help="draw what was found when, as .svg or .png")
_FORMATS: Final = (
    flag("--to", required=True, choices=("text", "csv", "trace"), help="trace: for Perfetto"),
    flag("--communicate", action="store_true", help="for csv: with cells that send and receive"),
)
_LIMITS: Final = group(
    "what is looked for",
    flag(
        "--memory-limit",
        type=_numbers,
        metavar="X",
        help="how many microbatches' activations a mesh may keep; a number, or one per mesh as in 4,4,3,3",
    ),
    flag("--memory-bytes", type=_numbers, metavar="X", help="instead, how many bytes, by those that --costs give"),
    flag("--released-at", choices=("W", "B", "half"), default="W", help="when an activation is given back (W)"),
    flag(
        "--objective", choices=("makespan", "longest_stage"), default="makespan", help="what is to be short (makespan)"
    ),
    flag("--seconds", type=float, metavar="S", help="how long to look"),
    flag("--seed", type=int, default=0, metavar="N", help="of what is random"),
)
_CHANGE: Final = (
    flag(
        "--host-bytes",
        type=_numbers,
        metavar="X",
        help="how many bytes may be offloaded to the host of a mesh at once",
    ),
    flag(
        "--change",
        type=_words,
        default=[],
        metavar="WHAT",
        help="what of the tasks may change: some of recompute,offload,fuse,homes, by what --costs say",
    ),
)
_PLACEMENT: Final = (
    flag(
        "--placement",
        type=_placement,
        default="linear",
        metavar="WHERE",
        help="linear (the default), v, looped, waves, any, or the mesh of each stage as in 0,1,1,0",
    ),
    flag(
        "--after",
        type=_after,
        default=(),
        metavar="STAGES",
        help="with meshes, where stages are no chain: which stages each of them reads, as in .,.,0+1",
    ),
    flag("--chunks", type=int, metavar="N", help="stages per mesh, where the placement leaves a choice"),
    flag(
        "--split-backward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether input and weight gradients are tasks of their own",
    ),
)

_ARGUMENTS: Final[Mapping[str, tuple[str, Sequence[Add]]]] = {
    "list": ("", ()),
    "show": ("NAME|FILE [options]", (*_ONE, _COSTS)),
    "simulate": ("NAME|FILE [options]", (*_ONE, _COSTS, _JSON)),
    "compare": ("NAME|FILE ... [options]", (*_SEVERAL, _COSTS)),
    "search": (
        "--meshes N --microbatches N [options]",
        (*_SIZES, _COSTS, _LIMITS, *_PLACEMENT, _OUTPUT, _HISTORY),
    ),
    "improve": ("NAME|FILE [options]", (*_ONE, _COSTS, _LIMITS, *_CHANGE, _OUTPUT, _HISTORY)),
    "tune": ("--meshes N --microbatches N [options]", (*_SIZES, _COSTS, _LIMITS)),
    "convert": ("NAME|FILE --to FORMAT [options]", (*_ONE, _COSTS, *_FORMATS, _OUTPUT)),
    "plot": (
        "NAME|FILE -o FILE [options]",
        (flag("name", metavar="NAME|FILE", help=_NAME + _TRACE), _LIBRARY, _COSTS, _PICTURE),
    ),
}
