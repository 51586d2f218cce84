"""Loops such as a `lax.scan` over layers, seen from inside: a part of each trip may run in another loop."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.two_loops import Half, Row, Stacks, Written, write_half
from jaxpp.ir.build import NONE
from jaxpp.ir.counted import affine, counters, trips
from jaxpp.ir.functions import loop_body, operands_with_captures, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import block_of, defining_op

_ROW_OF_ONE = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")


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
    def _test(self) -> set[ir.Value]:
        """The values on which the result of the test depends."""
        test = self.op.regions[0].blocks[0]
        return Numbered(operations(test)[:-1]).values_behind(terminator(test).operands)

    @cached_property
    def tested(self) -> list[ir.Value]:
        """The arguments of the body for the carried values that the test reads."""
        test = self.op.regions[0].blocks[0]
        return [argument for own, argument in zip(test.arguments, self.arguments, strict=True) if own in self._test]

    @property
    def test_captures(self) -> list[ir.Value]:
        """The values from outside of the loop that the test reads."""
        test = self.op.regions[0].blocks[0]
        return [value for value in self._test if block_of(value) != test]

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

    def first(
        self,
        positions: Iterable[int],
        kept: Collection[ir.Value],
        mesh: MeshAxes | None,
        same: Mapping[ir.Value, ir.Value] = NONE,
        acting: Sequence[ir.Operation] = (),
    ) -> Written:
        """Writes a loop that makes `positions` and keeps the values `kept` of all trips for another loop, in stacks.

        `same` and `acting` are as in `half`. A value that the new loop stacks anyway gets no second stack.
        """
        half = self.half(positions, kept, (), same, acting)
        there = {value: row for value, row in self.rows.items() if row.position in half.positions}
        return write_half(self.op, half, mesh, {value: there.get(value) for value in kept}, {})

    def second(
        self,
        positions: Iterable[int],
        stacks: Stacks,
        mesh: MeshAxes | None,
        same: Mapping[ir.Value, ir.Value] = NONE,
        acting: Sequence[ir.Operation] = (),
    ) -> Written:
        """Writes a loop that makes `positions` from rows of `stacks`; `same` and `acting` are as in `half`."""
        return write_half(self.op, self.half(positions, (), stacks, same, acting), mesh, {}, stacks)

    def half(
        self,
        positions: Iterable[int],
        values: Iterable[ir.Value],
        given: Collection[ir.Value] = (),
        same: Mapping[ir.Value, ir.Value] = NONE,
        acting: Sequence[ir.Operation] = (),
    ) -> Half:
        """Returns the part of the loop that carries `positions` and makes `values`.

        Args:
            positions: the positions whose results the half makes.
            values: the values of the body that the half makes.
            given: the values of the body that the half has without making them.
            same: maps some values of the body to the values that the half uses instead.
            acting: the operations that the half runs for their side effects.
        """
        same = {value: other for value, other in same.items() if value not in given}
        carried = {*map(self.arguments.__getitem__, self.tested), *positions}
        instead = {argument: [self.following[position]] for argument, position in self.arguments.items()}
        instead |= {value: [other] for value, other in same.items()} | {value: [] for value in given}
        roots = [*values, *(self.following[position] for position in carried)]
        needed, numbers = self.body.part(roots, instead, acting)
        carried.update(self.arguments[value] for value in needed.difference(given) if value in self.arguments)
        return Half(sorted(carried), [self.body.ops[number] for number in numbers], same)

    def read(self, half: Half) -> set[ir.Value]:
        """Returns the values that the operations of `half` use, and those that it hands to its next trip."""
        used = {value for op in half.ops for value in operands_with_captures(op)}
        used.update(self.following[position] for position in half.positions)
        return {half.same.get(value, value) for value in used}

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
