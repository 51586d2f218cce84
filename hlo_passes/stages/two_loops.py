"""Writes the two loops into which a loop is split, and the stacks between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.dependences import Dependences
from jaxpp.ir.build import constant, remake, sharded, shardings
from jaxpp.ir.counted import counter_of_test, trips
from jaxpp.ir.functions import loop_body, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import element_of
from jaxpp.ir.outlining import clone_into
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes


@dataclass(frozen=True)
class Half:
    """One of the two loops.

    Attributes:
        positions: the positions of the old loop's carried values that this loop carries too.
        ops: the operations of the old body that it runs.
        same: maps some values that `ops` use to the values that they use instead.
    """

    positions: list[int]
    ops: Sequence[ir.Operation]
    same: Mapping[ir.Value, ir.Value]


class Row(NamedTuple):
    """The row `first + step * trip` of a stack at `position` of the old loop, which holds a value of each trip."""

    position: int
    first: int
    step: int

    def at(self, trip: ir.Value) -> ir.Value:
        """Returns the index of the row of `trip`."""
        return counted(trip, self.first, self.step)


class Divided(NamedTuple):
    """The two loops, once they are written.

    Attributes:
        first: the first loop.
        second: the second loop.
        results: maps results of the old loop to results of the first loop.
        stacks: the new stacks that the first loop makes for the second.
        twins: maps results of the first loop to the equal results of the second loop, where both have them.
    """

    first: ir.Operation
    second: ir.Operation
    results: dict[ir.Value, ir.Value]
    stacks: Sequence[ir.Value]
    twins: dict[ir.Value, ir.Value]


@dataclass(frozen=True)
class TwoLoops:
    """A split of `loop` into two loops with as many trips.

    The first loop stacks the values `kept` for the second. The second also reads `rows` of stacks that the first loop
    carries anyway. Where both loops have a result of the old loop, the users of that result read the first loop's.
    """

    loop: ir.Operation
    first: Half
    second: Half
    kept: list[ir.Value]
    rows: Mapping[ir.Value, Row] = field(default_factory=dict[ir.Value, Row])

    def write(self, mesh: MeshAxes | None) -> Divided:
        """Writes both loops in front of the old one, whose results have no uses afterwards."""
        first = _Writer(self.loop, self.first, mesh)
        first.write(self.kept)
        second = _Writer(self.loop, self.second, mesh)
        second.open([])
        for stack, value in zip(first.stacks, self.kept, strict=True):
            second.read_row(stack, value)
        for value, row in self.rows.items():
            second.read_row(first.op.results[self.first.positions.index(row.position)], value, row)
        second.clone()
        second.close([])
        for half in (first, second):
            half.replace_results()
        twins = {first.results[old]: new for old, new in second.results.items() if old in first.results}
        return Divided(first.op, second.op, first.results, first.stacks, twins)


def stack_more(
    loop: ir.Operation, half: Half, values: Sequence[ir.Value], mesh: MeshAxes | None
) -> tuple[ir.Operation, Sequence[ir.Value]]:
    """Writes a half of `loop` in front of it that also stacks `values`. Returns the new loop and the stacks.

    The results of the new loop replace the results that it shares with the old loop.
    """
    writer = _Writer(loop, half, mesh)
    writer.write(values)
    writer.replace_results()
    return writer.op, writer.stacks


def counted(trip: ir.Value, first: int, step: int) -> ir.Value:
    """Returns the integer `first + step * trip`."""
    if step != 1:
        trip = stablehlo.multiply(trip, constant(trip.type, step))
    return stablehlo.add(trip, constant(trip.type, first)) if first else trip


def trip_of(loop: ir.Operation) -> ir.Value:
    """Returns the index of the trip, from 0, in the body of a loop."""
    position, start, step = counter_of_test(loop)
    return _trip(loop_body(loop).arguments[position], start, step, trips(loop) or 0)


def _trip(count: ir.Value, start: int, step: int, runs: int) -> ir.Value:
    """Returns the index of the trip, in a type that holds the difference between the counter and its start."""
    if step * runs >= 1 << (ir.IntegerType(element_of(count)).width - 1):
        count = stablehlo.convert(ir.RankedTensorType.get([], ir.IntegerType.get_signless(64)), count)
    if start:
        count = stablehlo.subtract(count, constant(count.type, start))
    return stablehlo.divide(count, constant(count.type, step)) if step != 1 else count


def read_row(stack: ir.Value, value: ir.Value, row: ir.Value, mesh: MeshAxes | None) -> ir.Value:
    """Returns row `row` of `stack`, with the type and the sharding of `value`, which it stacks."""
    found = stablehlo.dynamic_slice(stack, _start(row, value), stack_type(value.type, 1).shape)
    return sharded(stablehlo.reshape(value.type, sharded(found, _stacked(value, mesh))), _sharding(value, mesh))


def _start(row: ir.Value, value: ir.Value) -> list[ir.Value]:
    """Returns the start indices of a row in a stack of values such as `value`: its index, and zeros."""
    return [row, *(constant(row.type, 0) for _ in ir.RankedTensorType(value.type).shape)]


def _sharding(value: ir.Value, mesh: MeshAxes | None) -> ir.Attribute | None:
    """Returns the sharding of `value`; None where a mesh is one device."""
    return None if mesh is None else mesh.attribute(mesh.read(value))


def _stacked(value: ir.Value, mesh: MeshAxes | None) -> ir.Attribute | None:
    """Returns the sharding of a stack of values such as `value`; None where a mesh is one device."""
    return None if mesh is None else mesh.attribute([(), *mesh.read(value)])


class _Writer:
    """Writes one of the two loops, which carries the positions of `half` and then the new stacks."""

    op: ir.Operation

    def __init__(self, old: ir.Operation, half: Half, mesh: MeshAxes | None) -> None:
        self._old, self._half, self._mesh = old, half, mesh
        self._values: dict[ir.Value, ir.Value] = {}

    @property
    def stacks(self) -> Sequence[ir.Value]:
        """The new stacks, as results of the loop."""
        return list(self.op.results)[len(self._half.positions) :]

    @property
    def results(self) -> dict[ir.Value, ir.Value]:
        """The results of the old loop that this loop has too, each with this loop's result."""
        carried = (self._old.results[position] for position in self._half.positions)
        return dict(zip(carried, self.op.results, strict=False))

    def write(self, kept: Sequence[ir.Value]) -> None:
        """Writes the loop, with a stack for each of `kept`."""
        self.open(kept)
        self.clone()
        self.close([self._write_row(number, value) for number, value in enumerate(kept)])

    def open(self, kept: Sequence[ir.Value]) -> None:
        """Creates the loop with its test, a body without operations, and a stack of zeros for each of `kept`."""
        old, positions = self._old, self._half.positions
        operands = [*(old.operands[position] for position in positions), *map(self._zeros, kept)]
        types = [value.type for value in operands]
        carried = [old.results[position] for position in positions]
        known = (_sharding(value, self._mesh) for value in carried)
        every = shardings([*known, *(_stacked(value, self._mesh) for value in kept)])
        self.op = remake(old, operands, types, every, empty=True)
        for region in self.op.regions:
            ir.Block.create_at_start(region, types, [old.location] * len(types))
        self._copy_test()
        arguments = (loop_body(old).arguments[position] for position in positions)
        self._values.update(zip(arguments, loop_body(self.op).arguments, strict=False))

    def clone(self) -> None:
        """Adds the operations of this half to the body."""
        clone_into(loop_body(self.op), self._half.ops, self._values, self._half.same)

    def read_row(self, stack: ir.Value, value: ir.Value, row: Row | None = None) -> None:
        """Adds a read of `stack` that replaces `value` of the old body: of `row`, by default the row of the trip."""
        with ir.InsertionPoint(loop_body(self.op)), self._old.location:
            trip = self._trip()
            self._values[value] = read_row(stack, value, trip if row is None else row.at(trip), self._mesh)

    def close(self, stacks: Sequence[ir.Value]) -> None:
        """Ends the body with the values of this half for the next trip, and `stacks`."""
        following = terminator(loop_body(self._old)).operands
        values = [following[position] for position in self._half.positions]
        values = [self._half.same.get(value, value) for value in values]
        operands = [*(self._values.get(value, value) for value in values), *stacks]
        stablehlo.return_(operands, ip=ir.InsertionPoint(loop_body(self.op)), loc=self._old.location)

    def replace_results(self) -> None:
        """Replaces the results of the old loop that this loop has too."""
        for old, new in self.results.items():
            old.replace_all_uses_with(new)

    def _copy_test(self) -> None:
        old, new = self._old.regions[0].blocks[0], self.op.regions[0].blocks[0]
        values = dict(zip((old.arguments[p] for p in self._half.positions), new.arguments, strict=False))
        end = terminator(old)
        needed = Dependences(Numbered(operations(old)[:-1])).behind(end.operands)
        clone_into(new, [op for op in operations(old)[:-1] if not needed.isdisjoint(op.results)], values)
        tests = [values.get(value, value) for value in end.operands]
        stablehlo.return_(tests, ip=ir.InsertionPoint(new), loc=end.location)

    def _write_row(self, number: int, value: ir.Value) -> ir.Value:
        """Writes `value` of the old body to the row of the trip in new stack `number`. Returns the updated stack."""
        stack = loop_body(self.op).arguments[len(self._half.positions) + number]
        sharding = _stacked(value, self._mesh)
        with ir.InsertionPoint(loop_body(self.op)), self._old.location:
            row = sharded(stablehlo.reshape(stack_type(value.type, 1), self._values[value]), sharding)
            written = stablehlo.dynamic_update_slice(stack, row, _start(self._trip(), value))
        return sharded(written, sharding)

    def _trip(self) -> ir.Value:
        """Returns the index of the trip, from the test's counter: both loops carry it, and it never wraps around."""
        position, start, step = counter_of_test(self._old)
        return _trip(self._values[loop_body(self._old).arguments[position]], start, step, trips(self._old) or 0)

    def _zeros(self, value: ir.Value) -> ir.Value:
        type_ = stack_type(value.type, trips(self._old) or 0)
        made = constant(type_, 0, ip=ir.InsertionPoint(self._old), loc=self._old.location)
        return sharded(made, _stacked(value, self._mesh))


def tested(loop: ir.Operation) -> list[ir.Value]:
    """Returns the arguments of the body for the carried values that the test reads."""
    test, body = (region.blocks[0] for region in loop.regions)
    needed = Dependences(Numbered(operations(test)[:-1])).behind(terminator(test).operands)
    pairs = zip(test.arguments, body.arguments, strict=True)
    return [argument for own, argument in pairs if own in needed]
