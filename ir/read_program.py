"""The reader of program modules: makes the typed program of a module, or raises an error about the module.

The runtime, the reference interpreter and `verify-program` all take their program from here. No other code reads or
checks the sequence of a mesh.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.check_line import CheckedLine, Source, Tables
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import callee, calls_in, functions, recursive
from jaxpp.ir.mesh_lines import Border, MeshLines
from jaxpp.ir.origins import OriginError, check_moves, check_origins
from jaxpp.ir.program import Argument, Program, Receive, Result, Send
from jaxpp.ir.program_form import check_borders, check_form
from jaxpp.ir.read_lines import read_lines
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tensors import TensorSpec, sharding_text, tensor_text
from jaxpp.ir.transports import OrderError, check_order


class ProgramReader:
    """A program module that was read and checked.

    Where meshes differ in size (`jaxpp.mesh_sizes`), a mesh shards a value only over axes that divide it there.

    Raises ProgramError, with the location of the fault, unless every call fits its function, every receive has its
    send, and no mesh waits forever. No value may be used after its last use, and each value that leaves a mesh must
    come back unchanged. Each task must read for each microbatch the same values as for the others.

    Args:
        module: the module.
        program: the lines of the meshes, if they are not to be read from the functions of the module.

    Attributes:
        program: the program; its functions have no bytecode.
        lines: the line that each mesh runs.
        sources: for each function of the program its func.func and the mesh that it is for.
    """

    def __init__(self, module: ir.Module, program: MeshLines | None = None) -> None:
        lines = (program or read_lines(module)).lines
        check_form(module, len(lines))
        axes = MeshAxes.of_each(module, len(lines))
        arguments, results = (check_borders(lines, kind, axes) for kind in ("argument", "result"))
        resharded = any(each != axes[0] for each in axes)
        tables = self._tables = Tables(module, _tasks(module), resharded=resharded)
        self.sources: Mapping[str, Source] = tables.sources
        self.lines = [CheckedLine(tables, *each) for each in zip(lines, axes, strict=True)]
        for line, *borders in zip(self.lines, arguments, results, strict=True):
            line.check(*borders)
        _check_channels(tables, self.lines)
        self.program = Program(
            meshes=len(lines),
            partitions=tuple(each.partitions for each in axes),
            axis_sizes=tuple(dict(each.named) for each in axes),
            functions=tables.functions,
            sequences=tuple(tuple(line.sequence) for line in self.lines),
            registers=tuple(tuple(line.specs) for line in self.lines),
            arguments=_arguments(self.lines, arguments),
            results=_results(self.lines, results),
        )
        if sum(1 for _ in self.program.run_order()) < sum(map(len, self.program.sequences)):
            self.check_order("pull")  # names the meshes that wait; to always call it would take ten times as long
        self._check_origins()

    def _check_origins(self) -> None:
        try:
            check_moves(self.program)
            check_origins(self.program, {name: op for name, (op, _) in self.sources.items()})
        except OriginError as error:
            location = self.lines[error.mesh].location_of(error.call)
            raise ProgramError(error.message, location=location) from None

    def check_order(self, transport: str) -> None:
        """Raises ProgramError where, by the rules of this transport, meshes wait for one another or mix up values."""
        try:
            check_order(self.program, transport)
        except OrderError as error:
            where = _end(self._tables, self.lines, type(error.transfer), error.transfer.channel)
            raise ProgramError(error.message, location=where, hint=error.hint) from None


@dataclass(frozen=True, eq=False)
class ProvenLines(MeshLines):
    """The lines of all meshes, after `verify-program` has proven them. reader: the reader that did so."""

    reader: ProgramReader


def _tasks(module: ir.Module) -> dict[str, ir.Operation]:
    """Returns the functions that a mesh can call. Raises ProgramError for one that calls itself or a mesh function."""
    known = functions(module)
    tasks = {name: function for name, function in known.items() if at.MESH not in function.attributes}
    calls = {name: calls_in(function) for name, function in tasks.items()}
    again = recursive({name: map(callee, ops) for name, ops in calls.items()})
    if again is not None:
        raise ProgramError(f"@{again} calls itself", location=known[again].location)
    for op in chain.from_iterable(calls.values()):
        if callee(op) not in tasks:
            raise ProgramError(f"a call of @{callee(op)}, which is no task in the module", location=op.location)
    return {name: function for name, function in tasks.items() if len(function.regions[0].blocks) == 1}


def _check_channels(tables: Tables, lines: Sequence[CheckedLine]) -> None:
    """Checks that each receive has one send, with the same meshes, type and, on meshes of one size, sharding."""
    if tables.sends == tables.receives:
        return
    ends = (Send, tables.sends, "recv"), (Receive, tables.receives, "send")
    for (kind, transfers, other), (_, others, _) in (ends, ends[::-1]):
        alone = next((channel for channel in transfers if channel not in others), None)
        if alone is not None:
            (source, target), _ = transfers[alone]
            message = f"channel {alone} from mesh {source} to mesh {target} has no {other}"
            raise ProgramError(message, location=_end(tables, lines, kind, alone))
    for number, (one, sent) in tables.sends.items():
        other, taken = tables.receives[number]
        if (one, sent) == (other, taken):
            continue
        symbol, same_size = lines[0].axes.name, lines[one[0]].axes == lines[other[1]].axes
        differ = {
            "meshes": [one, other],
            "type": [tensor_text(each) for each in (sent, taken)],
            "sharding": [sharding_text(each, symbol) for each in (sent, taken)] if same_size else ["", ""],
        }
        for what, (here, there) in differ.items():
            if here != there:
                message = f"channel {number}: sent with {what} {here}, received with {there}"
                raise ProgramError(message, location=_end(tables, lines, Receive, number))


def _end(tables: Tables, lines: Sequence[CheckedLine], kind: type[Send | Receive], channel: int) -> ir.Location:
    """Returns the location of the send or the receive (`kind`) on a channel."""
    mesh = tables.sends[channel][0][0] if kind is Send else tables.receives[channel][0][1]
    return lines[mesh].location_of_end(kind, channel)


def _arguments(lines: Sequence[CheckedLine], borders: Sequence[Sequence[Border]]) -> dict[int, Argument]:
    arguments: dict[int, Argument] = {}
    for number, places in _by_number(borders, [range(len(own)) for own in borders]):
        spec, registers, stacked = _places(f"argument {number} of the step", places, lines)
        arguments[number] = Argument(spec, places[0][1].donated, registers, stacked)
    return arguments


def _results(lines: Sequence[CheckedLine], borders: Sequence[Sequence[Border]]) -> tuple[Result, ...]:
    found = _by_number(borders, [line.results for line in lines])
    return tuple(Result(*_places(f"result {number} of the step", places, lines)) for number, places in found)


def _by_number(
    borders: Sequence[Sequence[Border]], registers: Sequence[Sequence[int]]
) -> list[tuple[int, list[tuple[int, Border, int]]]]:
    """Returns the number of each argument or result of the step, with its mesh, border and register wherever it is."""
    found: dict[int, list[tuple[int, Border, int]]] = {}
    for mesh, own in enumerate(borders):
        for border, register in zip(own, registers[mesh], strict=True):
            found.setdefault(border.number, []).append((mesh, border, register))
    return sorted(found.items())


def _places(
    what: str, places: Sequence[tuple[int, Border, int]], lines: Sequence[CheckedLine]
) -> tuple[TensorSpec, tuple[tuple[int, int], ...], bool]:
    """Returns (spec, (mesh, register) of each place, whether the places hold the blocks of a stack, in their order)."""
    mesh, border, register = places[0]
    spec = lines[mesh].specs[register]
    for other, _, number in places:
        if lines[other].specs[number] != spec or spec.unreduced:
            raise ProgramError(f"{what} is {lines[other].specs[number]} on mesh {other}, {spec} on mesh {mesh}")
    stacked = border.block is not None
    if stacked:
        places = sorted(places, key=lambda place: place[1].block or (-1, 0))
    return spec, tuple((mesh, number) for mesh, _, number in places), stacked
