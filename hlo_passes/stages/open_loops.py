"""Loops of a forward, such as a `lax.scan` over layers, of which each operation may be recomputed on its own."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.two_loops import Half, Row, TwoLoops, tested
from jaxpp.ir.counted import affine, counters, trips
from jaxpp.ir.functions import has_side_effect, loop_body, operands_with_captures, operations, terminator
from jaxpp.ir.rows import stack_type
from jaxpp.ir.values import defining_op

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
    def ops(self) -> list[ir.Operation]:
        """The operations of the body."""
        return operations(loop_body(self.op))[:-1]

    @property
    def acting(self) -> list[ir.Operation]:
        """The operations of the body that have side effects, such as callbacks."""
        return [op for op in self.ops if has_side_effect(op)]

    @cached_property
    def operands(self) -> list[list[ir.Value]]:
        """The values that each operation of the body uses, also in its regions."""
        return [operands_with_captures(op) for op in self.ops]

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
        return {*self.arguments, *(result for op in self.ops for result in op.results)}

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

    def divided(
        self,
        first: Iterable[int],
        second: Iterable[int],
        kept: Collection[ir.Value],
        twins: Mapping[ir.Value, ir.Value],
        acting: Sequence[ir.Operation] = (),
    ) -> TwoLoops:
        """Returns the split into a loop of the forward and a loop of the recompute, yet to be written.

        Args:
            first: the positions whose results the forward makes.
            second: the positions whose results the recompute makes.
            kept: the values of the body that the forward stacks for the recompute.
            twins: maps some values of the body to the values that the recompute uses instead.
            acting: the operations that the forward runs for their side effects. The recompute does not run them.
        """
        rows = {value: self.rows[value] for value in kept if value in self.rows}
        return TwoLoops(
            self.op,
            self.half({*first, *(row.position for row in rows.values())}, kept, acting=acting),
            self.half(second, (), kept, twins),
            [value for value in kept if value not in rows],
            rows,
        )

    def half(
        self,
        positions: Iterable[int],
        values: Collection[ir.Value],
        given: Collection[ir.Value] = (),
        twins: Mapping[ir.Value, ir.Value] | None = None,
        acting: Sequence[ir.Operation] = (),
    ) -> Half:
        """Returns the part of the loop that carries `positions` and makes `values`.

        Args:
            positions: the positions whose results the half makes.
            values: the values of the body that the half makes.
            given: the values of the body that the half has without making them.
            twins: maps some values of the body to the values that the half uses instead.
            acting: the operations that the half runs for their side effects.
        """
        twins = {value: twin for value, twin in (twins or {}).items() if value not in given}
        carried = {*map(self.arguments.__getitem__, tested(self.op)), *positions}
        made: set[ir.Value] = set()
        work, seen = [*values, *(self.following[position] for position in carried)], set(given)
        work += [value for op in acting for value in operands_with_captures(op)]
        while work:
            value = work.pop()
            value = twins.get(value, value)
            if value in seen:
                continue
            seen.add(value)
            position, op = self.arguments.get(value), defining_op(value)
            if position is not None:
                carried.add(position)
                work.append(self.following[position])
            elif op is not None and op.block == loop_body(self.op):
                made.add(value)
                work += operands_with_captures(op)
        ops = [op for op in self.ops if op in acting or not made.isdisjoint(op.results)]
        return Half(sorted(carried), ops, twins)

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
