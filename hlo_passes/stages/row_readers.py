"""Loops of a backward that read stacks of its forward's loops row by row, and their rewriting to smaller stacks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.open_loops import OpenLoop, Stacks, counted, read_row
from jaxpp.hlo_passes.stages.ties import read_together
from jaxpp.ir import attributes as at
from jaxpp.ir.build import clone, erase_dead, sharded
from jaxpp.ir.functions import loop_body
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import is_used


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

    def rewrite(self, less: "RewrittenStacks", there: Mapping[ir.Value, ir.Value], mesh: MeshAxes | None) -> None:
        """Makes the body read rows of the new stacks, and rematerialise from them the rows that it read before.

        `there` maps values of the forward to the values that replace them around this loop.
        """
        body, again = loop_body(self.loop.op), less.again
        wanted, values = less.wanted(self), dict(there)
        ops = again.behind(wanted)
        with ir.InsertionPoint.at_block_begin(body) as ip, self.loop.op.location:
            trip = counted(self.loop.trip(), *self.trips)
            for value in again.read(ops, wanted):
                if value in less.stacks:
                    stack, row = less.stacks[value]
                    values[value] = read_row(there.get(stack, stack), value, row.at(trip), mesh)
                elif value in less.loop.counts:
                    values[value] = _as(value.type, counted(trip, *less.loop.counts[value]))
            for op in ops:
                clone(again.ops[op], values, ip)
        for inner in less.inner:
            inner.let_read(body, values, mesh)
        for op, value in self.rows:
            if value not in less.gone:
                _stand_for(op, values[value])
        erase_dead(body)


@dataclass(frozen=True)
class RewrittenStacks:
    """The stacks of a loop of the forward that was rewritten to stack less.

    Attributes:
        loop: the old loop, which stays until no reader uses it.
        readers: the loops of the backward that read rows of its stacks.
        ops: the operations of its body that the readers rematerialise.
        stacks: maps values of the body to the new stack that holds them, and to the row of each trip.
        inner: the rewritten stacks of the loops inside of it.
        gone: the results of the old inner loops. The readers read them only for loops inside of themselves, and need
            them no longer.
    """

    loop: OpenLoop
    readers: Sequence[RowReader]
    ops: Sequence[ir.Operation]
    stacks: Stacks
    inner: "Sequence[RewrittenStacks]"
    gone: Collection[ir.Value]

    @property
    def again(self) -> Numbered:
        """The operations `ops`, read anew: rewriting a loop in front of them has changed their operands."""
        return Numbered(self.ops)

    def wanted(self, reader: RowReader) -> dict[ir.Value, None]:
        """Returns the values of the body that `reader` and the readers inside of it need."""
        inner = [less for less in self.inner if less.is_read_in(loop_body(reader.loop.op))]
        own = (value for _, value in reader.rows if value not in self.gone)
        return dict.fromkeys([*own, *(value for less in inner for value in less.needed())])

    def needed(self) -> list[ir.Value]:
        """Returns the values from outside of the loop that the readers need: new stacks, and operands from outside."""
        wanted = (value for reader in self.readers for value in self.wanted(reader))
        read = self.again.read(range(len(self.ops)), wanted)
        return [*(stack for stack, _ in self.stacks.values()), *(v for v in read if v not in self.loop.inside)]

    def is_read_in(self, block: ir.Block) -> bool:
        """Whether a reader is in `block`."""
        return any(reader.loop.op.block == block for reader in self.readers)

    def let_read(self, block: ir.Block, there: Mapping[ir.Value, ir.Value], mesh: MeshAxes | None) -> None:
        """Rewrites the readers in `block`, where `there` maps values of the forward to their replacements."""
        for reader in self.readers:
            if reader.loop.op.block == block:
                reader.rewrite(self, there, mesh)


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
