"""The command line of `jaxpp-schedule`."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jaxpp.schedules.given import LibraryOption, WordsError, library_options
from jaxpp.tools.schedule_input import COSTS

_NAME: Final = (
    "a schedule of the library (jaxpp-schedule list), with options of its own as in gis{chunks=4}; "
    "or a file: a grid as `show` prints it, or one of PyTorch's tables (.csv); -: stdin"
)

_TIMES: Final = {"forward": "a forward", "input_grad": "an input gradient", "weight_grad": "a weight gradient"}

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


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|FILE", help=_NAME)
    _add_library_options(parser)


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME|FILE", help=_NAME)
    _add_library_options(parser)


def _add_library_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for schedules of the library")
    _add_sizes(group)
    for option in library_options().values():
        flag, about = f"--{option.name.replace('_', '-')}", f"{option.about} ({', '.join(option.schedules)})"
        if option.type is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=about)
        else:
            metavar = "N" if option.type is int else "MESHES"
            group.add_argument(flag, type=_converter(option), metavar=metavar, help=about)


def _converter(option: LibraryOption) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return option.convert(text)
        except WordsError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _add_sizes(group: "argparse._ActionsContainer", required: bool = False) -> None:
    group.add_argument("--meshes", type=int, metavar="N", required=required, help="number of meshes")
    group.add_argument("--microbatches", type=int, metavar="N", required=required, help="number of microbatches")


def _add_required_sizes(parser: argparse.ArgumentParser) -> None:
    _add_sizes(parser, required=True)


def _add_costs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("costs (by default each task takes 1, a hop nothing)")
    group.add_argument("--costs", metavar="FILE", help="TOML or JSON with the attributes of jaxpp.schedules.Costs")
    for name in COSTS:
        what = "latency from mesh to mesh" if name == "hop" else f"time of {_TIMES[name]}"
        where = "" if name == "hop" else ", of one microbatch on a whole mesh"
        group.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="TIME", help=f"{what}{where}")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="write there, whole or not at all")


def _add_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--history", metavar="FILE", help="draw what was found when, as .svg or .png")


def _add_formats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, choices=("text", "csv", "trace"), help="trace: for Perfetto")
    parser.add_argument("--communicate", action="store_true", help="for csv: with cells that send and receive")


def _add_picture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="named .svg, .png or .html")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is looked for")
    group.add_argument(
        "--memory-limit",
        type=_numbers,
        metavar="X",
        help="how many microbatches' activations a mesh may keep; a number, or one per mesh as in 4,4,3,3",
    )
    group.add_argument(
        "--memory-bytes", type=_numbers, metavar="X", help="instead, how many bytes, by those that --costs give"
    )
    group.add_argument(
        "--released-at", choices=("W", "B", "half"), default="W", help="when an activation is given back (W)"
    )
    group.add_argument(
        "--objective", choices=("makespan", "longest_stage"), default="makespan", help="what is to be short (makespan)"
    )
    group.add_argument("--seconds", type=float, metavar="S", help="how long to look")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of what is random")


def _add_change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host-bytes",
        type=_numbers,
        metavar="X",
        help="how many bytes may be offloaded to the host of a mesh at once",
    )
    parser.add_argument(
        "--change",
        type=lambda text: [word.strip() for word in text.split(",") if word.strip()],
        default=[],
        metavar="WHAT",
        help="what of the tasks may change: some of recompute,offload,fuse,homes, by what --costs say",
    )


def _add_placement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--placement",
        type=_placement,
        default="linear",
        metavar="WHERE",
        help="linear (the default), v, looped, waves, any, or the mesh of each stage as in 0,1,1,0",
    )
    parser.add_argument(
        "--after",
        type=_after,
        default=(),
        metavar="STAGES",
        help="with meshes, where stages are no chain: which stages each of them reads, as in .,.,0+1",
    )
    parser.add_argument("--chunks", type=int, metavar="N", help="stages per mesh, where the placement leaves a choice")
    parser.add_argument(
        "--split-backward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether input and weight gradients are tasks of their own",
    )


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


_ARGUMENTS: Final[Mapping[str, tuple[str, Sequence[Callable[[argparse.ArgumentParser], None]]]]] = {
    "list": ("", ()),
    "show": ("NAME|FILE [options]", (_add_name, _add_costs)),
    "simulate": ("NAME|FILE [options]", (_add_name, _add_costs, _add_json)),
    "compare": ("NAME|FILE ... [options]", (_add_names, _add_costs)),
    "search": (
        "--meshes N --microbatches N [options]",
        (_add_required_sizes, _add_costs, _add_limits, _add_placement, _add_output, _add_history),
    ),
    "improve": ("NAME|FILE [options]", (_add_name, _add_costs, _add_limits, _add_change, _add_output, _add_history)),
    "tune": ("--meshes N --microbatches N [options]", (_add_required_sizes, _add_costs, _add_limits)),
    "convert": ("NAME|FILE --to FORMAT [options]", (_add_name, _add_costs, _add_formats, _add_output)),
    "plot": ("NAME|FILE -o FILE [options]", (_add_name, _add_costs, _add_picture)),
}
