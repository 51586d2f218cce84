"""Loops such as a `lax.scan` over layers, seen from inside: a part of each trip may run in another loop."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir.build import NONE, constant, remake, sharded, shardings
from jaxpp.ir.counted import affine, counter_of_test, counters, trips
from jaxpp.ir.functions import loop_body, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import element_of
from jaxpp.ir.outlining import clone_into
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import defining_op

_ROW_OF_ONE = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")


class Half(NamedTuple):
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


Stacks = Mapping[ir.Value, tuple[ir.Value, Row]]
"""The stack of each value, and the row of the stack that holds the value of each trip."""
_NO_STACKS: Stacks = {}


class Written(NamedTuple):
    """A loop that was written.

    Attributes:
        op: the loop.
        results: maps results of the old loop to the results of this loop that replace them.
        stacks: the stacks of the values that the loop keeps for another one.
    """

    op: ir.Operation
    results: Mapping[ir.Value, ir.Value]
    stacks: Stacks


@dataclass(frozen=True)
class OpenLoop:
    """A loop that runs a known number of times, seen from inside.

    A value that the recompute reads in each trip has to be stacked. If the loop stacks this value anyway, the recompute
    reads that stack. Otherwise the loop gets a new stack.
    """

    op: ir.Operation

    @cached_property
    def trips(self) -> int:
        """The number of trips."""
        return trips(self.op) or 0

    @cached_property
    def body(self) -> Numbered:
        """The operations of the body."""
        return Numbered(operations(loop_body(self.op))[:-1])

    @property
    def acting(self) -> list[ir.Operation]:
        """The operations of the body that have side effects, such as callbacks."""
        return [self.body.ops[number] for number in self.body.acting]

    @cached_property
    def arguments(self) -> dict[ir.Value, int]:
        """The arguments of the body, each with its position among the carried values."""
        return {argument: position for position, argument in enumerate(loop_body(self.op).arguments)}

    @cached_property
    def following(self) -> list[ir.Value]:
        """The values that the body hands to the next trip, by position."""
        return list(terminator(loop_body(self.op)).operands)

    @cached_property
    def counts(self) -> dict[ir.Value, tuple[int, int]]:
        """The arguments of the body that are counters, each with (start, step)."""
        arguments = loop_body(self.op).arguments
        return {arguments[position]: (start, step) for position, start, step in counters(self.op)}

    @cached_property
    def inside(self) -> set[ir.Value]:
        """The arguments of the body, and the results of its operations."""
        return {*self.arguments, *self.body.producers}

    @cached_property
    def counter(self) -> ir.Value:
        """The argument of the body for the counter that the test compares with a constant."""
        return loop_body(self.op).arguments[counter_of_test(self.op)[0]]

    @cached_property
    def rows(self) -> dict[ir.Value, Row]:
        """The values of the body that the loop stacks: each trip writes one row, all trips write the whole stack."""
        found: dict[ir.Value, Row] = {}
        for position in range(len(self.following)):
            if (each := self._row(position)) is not None:
                found.setdefault(*each)
        return found

    @cached_property
    def stacks(self) -> dict[int, ir.Value]:
        """The positions whose results are stacks, each with the value of the body that it stacks."""
        return {row.position: value for value, row in self.rows.items()}

    def write(
        self,
        positions: Iterable[int],
        mesh: MeshAxes | None,
        *,
        kept: Collection[ir.Value] = (),
        read: Stacks = _NO_STACKS,
        same: Mapping[ir.Value, ir.Value] = NONE,
        acting: Collection[ir.Operation] = (),
    ) -> Written:
        """Writes a half of this loop in front of it. The results of the half replace the same results of the loop.

        Args:
            positions: the positions whose results the half makes.
            mesh: the axes of the meshes; None where a mesh is one device.
            kept: the values of the body that another loop reads, in stacks. A value that the half stacks anyway gets no
                second stack.
            read: the stacks from which this half reads values of the body, which it does not make.
            same: maps some values of the body to the values that the half uses instead.
            acting: the operations that the half runs for their side effects.
        """
        half = self._half(positions, kept, read, same, acting)
        rows = ((value, self.rows[value]) for value in kept if value in self.rows)
        there = {value: row for value, row in rows if row.position in half.positions}
        new, carried = [value for value in kept if value not in there], len(half.positions)
        op = self._without_body(half, new, mesh)
        body = loop_body(op)
        arguments = (loop_body(self.op).arguments[position] for position in half.positions)
        values: dict[ir.Value, ir.Value] = dict(zip(arguments, body.arguments, strict=False))
        with ir.InsertionPoint(body), self.op.location:
            for value, (stack, row) in read.items():
                values[value] = read_row(stack, value, row.at(self.trip(values)), mesh)
            clone_into(body, half.ops, values, half.same)
            following = (self.following[position] for position in half.positions)
            returned = [values.get(each, each) for each in (half.same.get(value, value) for value in following)]
            for value, stack in zip(new, list(body.arguments)[carried:], strict=True):
                row = sharded(stablehlo.reshape(stack_type(value.type, 1), values[value]), _stacked(value, mesh))
                written = stablehlo.dynamic_update_slice(stack, row, _start(self.trip(values), value))
                returned.append(sharded(written, _stacked(value, mesh)))
            stablehlo.return_(returned)
        results = dict(zip((self.op.results[position] for position in half.positions), op.results, strict=False))
        for result, replacement in results.items():
            result.replace_all_uses_with(replacement)
        stacks = {value: (stack, Row(-1, 0, 1)) for value, stack in zip(new, list(op.results)[carried:], strict=True)}
        shared = {value: (results[self.op.results[row.position]], row) for value, row in there.items()}
        return Written(op, results, stacks | shared)

    def _half(
        self,
        positions: Iterable[int],
        values: Iterable[ir.Value],
        given: Collection[ir.Value],
        same: Mapping[ir.Value, ir.Value],
        acting: Collection[ir.Operation],
    ) -> Half:
        """Returns the part of the loop that carries `positions` and makes `values` of those that are `given`."""
        same = {value: other for value, other in same.items() if value not in given}
        carried = {self.arguments[self.counter], *positions}
        instead = {argument: [self.following[position]] for argument, position in self.arguments.items()}
        instead |= {value: [other] for value, other in same.items()} | {value: [] for value in given}
        roots = [*values, *(self.following[position] for position in carried)]
        needed, numbers = self.body.part(roots, instead, acting)
        carried.update(self.arguments[value] for value in needed.difference(given) if value in self.arguments)
        return Half(sorted(carried), [self.body.ops[number] for number in numbers], same)

    def trip(self, values: Mapping[ir.Value, ir.Value] = NONE) -> ir.Value:
        """Returns the index of the trip, from 0, in the body, or in that of a half where `values` replaces its values.

        The counter of the test makes it: all halves carry this counter, and it never wraps around. The index has a type
        that holds the difference between the counter and its start.
        """
        start, step = self.counts[self.counter]
        count = values.get(self.counter, self.counter)
        if step * self.trips >= 1 << (ir.IntegerType(element_of(count)).width - 1):
            count = stablehlo.convert(ir.RankedTensorType.get([], ir.IntegerType.get_signless(64)), count)
        if start:
            count = stablehlo.subtract(count, constant(count.type, start))
        return stablehlo.divide(count, constant(count.type, step)) if step != 1 else count

    def _without_body(self, half: Half, new: Sequence[ir.Value], mesh: MeshAxes | None) -> ir.Operation:
        """Returns a loop with as many trips and an empty body, which also carries stacks of zeros for `new`."""
        with ir.InsertionPoint(self.op), self.op.location:
            zeros = [constant(stack_type(value.type, self.trips), 0) for value in new]
        stacks = [sharded(zero, _stacked(value, mesh)) for zero, value in zip(zeros, new, strict=True)]
        operands = [*(self.op.operands[position] for position in half.positions), *stacks]
        known = [_sharding(self.op.results[position], mesh) for position in half.positions]
        known += [_stacked(value, mesh) for value in new]
        types = [value.type for value in operands]
        op = remake(self.op, operands, types, shardings(known), empty=True)
        for region in op.regions:
            ir.Block.create_at_start(region, types, [self.op.location] * len(types))
        (start, step), test = self.counts[self.counter], op.regions[0].blocks[0]
        old = ir.OpResult(terminator(self.op.regions[0].blocks[0]).operands[0]).owner.operation
        with ir.InsertionPoint(test) as ip, old.location:
            count = test.arguments[half.positions.index(self.arguments[self.counter])]
            limit = constant(count.type, start + step * self.trips)
            stablehlo.return_(remake(old, [count, limit], ip=ip).results)
        return op

    def _row(self, position: int) -> tuple[ir.Value, Row] | None:
        """Returns the value of the body that is stacked at this position, and its row; None for another position."""
        argument, op = loop_body(self.op).arguments[position], defining_op(self.following[position])
        if op is None or op.name != "stablehlo.dynamic_update_slice" or op.operands[0] != argument:
            return None
        update, numbers = defining_op(op.operands[1]), affine(op.operands[2], self.counts, self.trips)
        if update is None or update.name not in _ROW_OF_ONE or numbers is None or len(list(argument.uses)) != 1:
            return None
        value, (first, step) = update.operands[0], numbers
        last = first + (self.trips - 1) * step
        each_once = step in (1, -1) and {first, last} == {0, self.trips - 1}
        is_stack = argument.type == stack_type(value.type, self.trips) and value in self.inside
        return (value, Row(position, first, step)) if each_once and is_stack else None


def counted(trip: ir.Value, first: int, step: int) -> ir.Value:
    """Returns the integer `first + step * trip`."""
    if step != 1:
        trip = stablehlo.multiply(trip, constant(trip.type, step))
    return stablehlo.add(trip, constant(trip.type, first)) if first else trip


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
