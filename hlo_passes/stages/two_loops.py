"""Writes the loops into which a loop is split, and the stacks between them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir.build import NONE, constant, remake, sharded, shardings
from jaxpp.ir.counted import counter_of_test, trips
from jaxpp.ir.functions import loop_body, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import element_of
from jaxpp.ir.outlining import clone_into
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes


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


def write_half(
    old: ir.Operation,
    half: Half,
    mesh: MeshAxes | None,
    kept: Mapping[ir.Value, Row | None],
    read: Stacks,
) -> Written:
    """Writes a half of the loop `old` in front of it. The results of the half replace the same results of `old`.

    Args:
        old: the loop that is split.
        half: the part of it to write.
        mesh: the axes of the meshes; None where a mesh is one device.
        kept: the values of the body that another loop reads, each with the row in which this half stacks it anyway. The
            half makes a new stack of a value without one.
        read: the stacks from which this half reads values of the body.
    """
    new, carried = [value for value, row in kept.items() if row is None], len(half.positions)
    op = _without_body(old, half, new, mesh)
    body = loop_body(op)
    arguments = (loop_body(old).arguments[position] for position in half.positions)
    values: dict[ir.Value, ir.Value] = dict(zip(arguments, body.arguments, strict=False))
    with ir.InsertionPoint(body), old.location:
        for value, (stack, row) in read.items():
            values[value] = read_row(stack, value, row.at(trip_of(old, values)), mesh)
        clone_into(body, half.ops, values, half.same)
        following = (terminator(loop_body(old)).operands[position] for position in half.positions)
        returned = [values.get(each, each) for each in (half.same.get(value, value) for value in following)]
        for value, stack in zip(new, list(body.arguments)[carried:], strict=True):
            row = sharded(stablehlo.reshape(stack_type(value.type, 1), values[value]), _stacked(value, mesh))
            written = stablehlo.dynamic_update_slice(stack, row, _start(trip_of(old, values), value))
            returned.append(sharded(written, _stacked(value, mesh)))
        stablehlo.return_(returned)
    results = dict(zip((old.results[position] for position in half.positions), op.results, strict=False))
    for result, replacement in results.items():
        result.replace_all_uses_with(replacement)
    stacks = {value: (stack, Row(-1, 0, 1)) for value, stack in zip(new, list(op.results)[carried:], strict=True)}
    there = {value: (results[old.results[row.position]], row) for value, row in kept.items() if row is not None}
    return Written(op, results, stacks | there)


def _without_body(old: ir.Operation, half: Half, new: Sequence[ir.Value], mesh: MeshAxes | None) -> ir.Operation:
    """Returns a loop with the test of `old` and an empty body, which also carries stacks of zeros for `new`."""
    with ir.InsertionPoint(old), old.location:
        zeros = [constant(stack_type(value.type, trips(old) or 0), 0) for value in new]
    stacks = [sharded(zero, _stacked(value, mesh)) for zero, value in zip(zeros, new, strict=True)]
    operands = [*(old.operands[position] for position in half.positions), *stacks]
    known = [*(_sharding(old.results[p], mesh) for p in half.positions), *(_stacked(value, mesh) for value in new)]
    types = [value.type for value in operands]
    op = remake(old, operands, types, shardings(known), empty=True)
    for region in op.regions:
        ir.Block.create_at_start(region, types, [old.location] * len(types))
    test, copy = (loop.regions[0].blocks[0] for loop in (old, op))
    values = dict(zip((test.arguments[position] for position in half.positions), copy.arguments, strict=False))
    ops, end = Numbered(operations(test)[:-1]), terminator(test)
    clone_into(copy, [ops.ops[number] for number in ops.behind(end.operands)], values)
    tests = [values.get(value, value) for value in end.operands]
    stablehlo.return_(tests, ip=ir.InsertionPoint(copy), loc=end.location)
    return op


def counted(trip: ir.Value, first: int, step: int) -> ir.Value:
    """Returns the integer `first + step * trip`."""
    if step != 1:
        trip = stablehlo.multiply(trip, constant(trip.type, step))
    return stablehlo.add(trip, constant(trip.type, first)) if first else trip


def trip_of(loop: ir.Operation, values: Mapping[ir.Value, ir.Value] = NONE) -> ir.Value:
    """Returns the index of the trip, from 0, in the body of `loop`, or in that of a half where `values` replaces its.

    The counter of the test makes it: all halves carry this counter, and it never wraps around. The index has a type
    that holds the difference between the counter and its start.
    """
    position, start, step = counter_of_test(loop)
    count = loop_body(loop).arguments[position]
    count = values.get(count, count)
    if step * (trips(loop) or 0) >= 1 << (ir.IntegerType(element_of(count)).width - 1):
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
