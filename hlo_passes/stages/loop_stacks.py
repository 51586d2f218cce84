"""Loops of a forward that stack rows, loops of its backward that read them, and their rewriting to smaller stacks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.open_loops import OpenLoop, Row, Stacks, counted, read_row
from jaxpp.hlo_passes.stages.ties import read_together
from jaxpp.ir import attributes as at
from jaxpp.ir.build import clone, erase_dead, sharded
from jaxpp.ir.counted import affine, is_counted
from jaxpp.ir.functions import loop_body
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tasks import StageTask, task_inside, task_of
from jaxpp.ir.values import byte_size, defining_op, is_used


@dataclass
class RowReader:
    """A loop of the backward that reads, in each trip, the rows that one trip of a forward's loop stacked.

    Attributes:
        loop: the loop of the backward.
        trips: (first, step): its trip n reads the rows of the forward's trip `first + step * n`.
        rows: the operations that read rows, each with the stacked value of the forward's body.
    """

    loop: OpenLoop
    trips: tuple[int, int]
    rows: list[tuple[ir.Operation, ir.Value]] = field(default_factory=list[tuple[ir.Operation, ir.Value]])

    def together(self) -> Iterator[list[ir.Value]]:
        """Yields, for each operation of this loop whose result jumps, the forward's values that it reads."""
        return read_together(self.loop.body, {op.results[0]: value for op, value in self.rows})


@dataclass(frozen=True)
class Microbatch:
    """The body of the loop over microbatches, which contains the outermost loops of a forward and of its backward.

    Attributes:
        plan: the loop over microbatches.
        backward: the task of the backward.
    """

    plan: MicrobatchLoop
    backward: StageTask
    trips: ClassVar[int] = 1

    def uses(self, value: ir.Value) -> Iterable[ir.OpOperand]:
        """Returns the uses of a stack."""
        return value.uses

    def has_reader(self, op: ir.Operation) -> bool:
        """Whether `op`, a loop, belongs to the backward and is directly in this body."""
        return op.block == self.plan.body and task_of(op) == self.backward

    def is_late(self, op: ir.Operation) -> bool:
        """Whether `op` is a part of the backward."""
        return task_inside(op, self.plan.body) == self.backward

    def has_whole(self, value: ir.Value) -> bool | None:
        """Returns None: no loop of the forward stacks `value`, the result of an outermost loop."""
        del value

    def is_there(self, value: ir.Value) -> bool:
        """Whether the backward has `value` anyway."""
        op = defining_op(value)
        if op is None or op.block != self.plan.body:
            return value not in self.plan.carried
        return task_of(op) is None or any(self.is_late(use.owner.operation) for use in value.uses)

    def size(self, value: ir.Value) -> int:
        """Returns the bytes of `value`."""
        return byte_size(value.type)


@dataclass
class LoopStacks:
    """The stacks of a loop of the forward, and their readers.

    Attributes:
        loop: the loop of the forward.
        outer: the loop of the forward around it, or the body of the loop over microbatches.
        readers: the loops of the backward that read single rows.
        used: the positions of results with other uses than reads of single rows.
        there: the values of the body whose stacks the backward has anyway.
        again: the operations of the body that the readers rematerialise.
        stacks: maps values of the body to the new stack that holds them, and to the row of each trip.
        rewritten: the stacks of the loops in the body that were rewritten.
    """

    loop: OpenLoop
    outer: "Microbatch | LoopStacks"
    readers: list[RowReader] = field(default_factory=list[RowReader])
    used: set[int] = field(default_factory=set[int])
    there: set[ir.Value] = field(default_factory=set[ir.Value])
    again: Sequence[ir.Operation] = ()
    stacks: Stacks = field(default_factory=dict[ir.Value, tuple[ir.Value, Row]])
    rewritten: "Sequence[LoopStacks]" = ()

    @staticmethod
    def of(op: ir.Operation, outer: "Microbatch | LoopStacks") -> "LoopStacks":
        """Returns the stacks of the loop `op`, after a look at all uses of its results."""
        stacks = LoopStacks(OpenLoop(op), outer)
        for position, result in enumerate(op.results):
            value, whole = stacks.loop.stacks.get(position), outer.has_whole(result)
            others = [use.owner.operation for use in outer.uses(result) if not stacks._reads(use, position)]
            if others or whole is not None:
                stacks.used.add(position)
                if value is not None and (whole or any(map(outer.is_late, others))):
                    stacks.there.add(value)
        return stacks

    @property
    def trips(self) -> int:
        """The number of times that the body runs for a microbatch."""
        return self.outer.trips * self.loop.trips

    @cached_property
    def inner(self) -> "list[LoopStacks]":
        """The stacks of the counted loops in the body, from the last loop to the first."""
        return [LoopStacks.of(op, self) for op in reversed(self.loop.body.ops) if is_counted(op)]

    @property
    def wanted(self) -> list[ir.Value]:
        """The values of the body whose rows the readers read. Stacks that only their inner loops read are left out."""
        inside = {each.loop.op.results[p] for each in self.inner for p in each.loop.stacks if p not in each.used}
        return [value for reader in self.readers for _, value in reader.rows if value not in inside]

    def rewrite(self, remade: Set[ir.Value], mesh: MeshAxes | None) -> "LoopStacks | None":
        """Writes a new loop in front of the old one that does not stack the values `remade`; None if none is needed.

        Loops inside of it are rewritten first. The old loop stays until no reader uses it.
        """
        inner = [less for each in self.inner if (less := each.rewrite(remade, mesh)) is not None]
        stacks = LoopStacks.of(self.loop.op, self.outer) if inner else self
        return stacks._rewrite(inner, remade, mesh)

    def _rewrite(
        self, inner: "Sequence[LoopStacks]", remade: Set[ir.Value], mesh: MeshAxes | None
    ) -> "LoopStacks | None":
        loop = self.loop
        self.rewritten, self.again = inner, [loop.body.ops[number] for number in loop.body.making(remade)]
        if not self.again and not inner:
            return None
        kept = {value: None for value in self._read if value in loop.inside and value not in loop.counts}
        positions = self.used.union(position for position, value in loop.stacks.items() if value in kept)
        # The side effects of an inner loop that was rewritten are in its new version.
        acting = [op for op in loop.acting if self._gone.isdisjoint(op.results)]
        self.stacks = loop.write(positions, mesh, kept=kept, acting=acting).stacks
        return self

    @cached_property
    def _gone(self) -> set[ir.Value]:
        """The results of the old inner loops.

        The readers read them only for loops inside of themselves, and need them no longer.
        """
        return {result for less in self.rewritten for result in less.loop.op.results}

    @property
    def _read(self) -> dict[ir.Value, None]:
        """The values that the readers need, and the operations `again`, without those that these operations make."""
        wanted = (value for reader in self.readers for value in self._wanted_by(reader))
        return Numbered(self.again).read(range(len(self.again)), wanted)

    def _wanted_by(self, reader: RowReader) -> dict[ir.Value, None]:
        """Returns the values of the body that `reader` and the readers inside of it need."""
        inner = [less for less in self.rewritten if less._readers_in(loop_body(reader.loop.op))]
        own = (value for _, value in reader.rows if value not in self._gone)
        return dict.fromkeys([*own, *(value for less in inner for value in less._needed())])

    def _needed(self) -> list[ir.Value]:
        """Returns the values from outside of the loop that the readers need: new stacks, and operands from outside."""
        outside = (value for value in self._read if value not in self.loop.inside)
        return [*(stack for stack, _ in self.stacks.values()), *outside]

    def _readers_in(self, block: ir.Block) -> list[RowReader]:
        return [reader for reader in self.readers if reader.loop.op.block == block]

    def let_read(self, block: ir.Block, there: Mapping[ir.Value, ir.Value], mesh: MeshAxes | None) -> None:
        """Makes the readers in `block` read rows of the new stacks, and rematerialise the rows that they read before.

        `there` maps values of the forward to the values that replace them in `block`.
        """
        for reader in self._readers_in(block):
            # Read anew: rewriting a loop in front of these operations has changed their operands.
            body, again = loop_body(reader.loop.op), Numbered(self.again)
            wanted, values = self._wanted_by(reader), dict(there)
            ops = again.behind(wanted)
            with ir.InsertionPoint.at_block_begin(body) as ip, reader.loop.op.location:
                trip = counted(reader.loop.trip(), *reader.trips)
                for value in again.read(ops, wanted):
                    if value in self.stacks:
                        stack, row = self.stacks[value]
                        values[value] = read_row(there.get(stack, stack), value, row.at(trip), mesh)
                    elif value in self.loop.counts:
                        values[value] = _as(value.type, counted(trip, *self.loop.counts[value]))
                for op in ops:
                    clone(again.ops[op], values, ip)
            for less in self.rewritten:
                less.let_read(body, values, mesh)
            for op, value in reader.rows:
                if value not in self._gone:
                    _stand_for(op, values[value])
            erase_dead(body)

    def uses(self, value: ir.Value) -> Iterator[ir.OpOperand]:
        """Yields the uses of a stack that an inner loop makes: in the body, and where readers read it as a row."""
        row = self.loop.rows.get(value)
        write = None if row is None else defining_op(self.loop.following[row.position])
        for use in value.uses:
            user = use.owner.operation
            if write is None or not any(result == write.operands[1] for result in user.results):
                yield use
        for op in (op for reader in self.readers for op, read in reader.rows if read == value):
            for use in op.results[0].uses:
                user = use.owner.operation
                is_row = user.name == "stablehlo.reshape" and user.results[0].type == value.type
                yield from user.results[0].uses if is_row else [use]

    def has_reader(self, op: ir.Operation) -> bool:
        """Whether `op`, a loop, is directly in the body of one of the readers."""
        return any(op.block == loop_body(reader.loop.op) for reader in self.readers)

    def is_late(self, op: ir.Operation) -> bool:
        """Whether `op` is a part of the backward, and there is exactly one reader."""
        return len(self.readers) == 1 and self.outer.is_late(op)

    def has_whole(self, value: ir.Value) -> bool | None:
        """Whether the backward has anyway all rows of `value`, a stack that an inner loop makes.

        Returns None if this loop does not stack `value`, or if only single rows of that stack are read.
        """
        row = self.loop.rows.get(value)
        return value in self.there if row is not None and row.position in self.used else None

    def _reads(self, use: ir.OpOperand, position: int) -> bool:
        """Whether a use reads one row of this stack in each trip of a loop of the backward; adds it to `readers`."""
        op, value = use.owner.operation, self.loop.stacks.get(position)
        parent = op.parent
        loop = None if parent is None else parent.operation
        if value is None or loop is None or not is_counted(loop) or not self.outer.has_reader(loop):
            return False
        is_slice = op.name == "stablehlo.dynamic_slice" and use.operand_number == 0
        if not is_slice or op.block != loop_body(loop):
            return False
        known = next((reader for reader in self.readers if reader.loop.op == loop), None)
        reader = known or RowReader(OpenLoop(loop), (0, 0))
        row, numbers = self.loop.rows[value], affine(op.operands[1], reader.loop.counts, reader.loop.trips)
        if numbers is None or op.results[0].type != stack_type(value.type, 1) or reader.loop.trips != self.loop.trips:
            return False
        trips = (numbers[0] - row.first) * row.step, numbers[1] * row.step
        last = trips[0] + (self.loop.trips - 1) * trips[1]
        each_once = abs(trips[1]) == 1 and {trips[0], last} == {0, self.loop.trips - 1}
        if not each_once or (known is not None and trips != known.trips):
            return False
        if known is None:
            reader.trips = trips
            self.readers.append(reader)
        reader.rows.append((op, value))
        return True


def _as(type_: ir.Type, value: ir.Value) -> ir.Value:
    return value if value.type == type_ else stablehlo.convert(type_, value)


def _stand_for(read: ir.Operation, value: ir.Value) -> None:
    """Replaces the row that `read` reads, whose first dimension has size 1, by `value`, which lacks this dimension."""
    row = read.results[0]
    for use in list(row.uses):
        user = use.owner.operation
        if user.name == "stablehlo.reshape" and user.results[0].type == value.type:
            user.results[0].replace_all_uses_with(value)
            user.erase()
    if is_used(row):
        with ir.InsertionPoint(read), read.location:
            row.replace_all_uses_with(sharded(stablehlo.reshape(row.type, value), at.value_sharding(row)))
    read.erase()
