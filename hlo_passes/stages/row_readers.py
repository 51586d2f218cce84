"""Loops of a backward that read what loops of its forward have stacked, row by row, and how they come to read less."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.hlo_passes.stages.ties import read_together
from jaxpp.hlo_passes.stages.two_loops import Row, counted, read_row, trip_of
from jaxpp.ir import attributes as at
from jaxpp.ir.build import clone, erase_dead, sharded
from jaxpp.ir.functions import loop_body, operands_with_captures
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import is_used


@dataclass
class RowReader:
    """A loop of the backward that reads a row of each trip of a loop of the forward.

    Attributes:
        loop: the loop of the backward.
        trips: (first, step) of the forward's trips, in the order in which it reads them.
        rows: the operations that read, and the value of the forward's body that each reads.
    """

    loop: OpenLoop
    trips: tuple[int, int]
    rows: list[tuple[ir.Operation, ir.Value]] = field(default_factory=list[tuple[ir.Operation, ir.Value]])

    def together(self) -> Iterator[list[ir.Value]]:
        """Yields those of the forward's values that an operation reads together whose result jumps."""
        return read_together(Numbered(self.loop.ops), {op.results[0]: value for op, value in self.rows})

    def rewrite(self, less: "RewrittenStacks", there: Mapping[ir.Value, ir.Value], mesh: MeshAxes | None) -> None:
        """Let the body read rows of the new stacks, and compute from these the rows that it read so far."""
        body, again = loop_body(self.loop.op), less.again
        wanted = less.wanted(self)
        ops = again.behind(wanted)
        read = dict.fromkeys([*(value for op in ops for value in again.operands(op)), *wanted])
        values = dict(there)
        with ir.InsertionPoint.at_block_begin(body) as ip, self.loop.op.location:
            trip = counted(trip_of(self.loop.op), *self.trips)
            for value in read:
                if value in less.stacks:
                    stack, row = less.stacks[value]
                    values[value] = read_row(there.get(stack, stack), value, row.at(trip), mesh)
                elif value in again.counts:
                    values[value] = _as(value.type, counted(trip, *again.counts[value]))
            for op in ops:
                clone(again.inside.ops[op], values, ip)
        for inner in less.inner:
            inner.let_read(body, values, mesh)
        for op, value in self.rows:
            if value not in less.gone:
                _stand_for(op, values[value])
        erase_dead(body)


@dataclass(frozen=True)
class RewrittenStacks:
    """The stacks of a loop of the forward that was written again, so that it stacks less.

    Attributes:
        loop: the old loop, which is there until no reader uses it any more.
        readers: the loops of the backward that read rows of its stacks.
        again: the operations that the readers rematerialise.
        stacks: for values of the body the new stack that holds them, and the row of each trip.
        inner: the rewritten stacks of loops inside of it.
        gone: values of the body that the readers no longer need: they read them only for loops inside of themselves.
    """

    loop: OpenLoop
    readers: Sequence[RowReader]
    again: "Rematerialised"
    stacks: Mapping[ir.Value, tuple[ir.Value, Row]]
    inner: "Sequence[RewrittenStacks]"
    gone: Collection[ir.Value]

    def wanted(self, reader: RowReader) -> dict[ir.Value, None]:
        """The values of the body that a reader needs, for itself and for the readers inside of it."""
        inner = [less for less in self.inner if less.is_read_in(loop_body(reader.loop.op))]
        own = (value for _, value in reader.rows if value not in self.gone)
        return dict.fromkeys([*own, *(value for less in inner for value in less.needed())])

    def needed(self) -> list[ir.Value]:
        """The values from outside of the loop that the readers need: the new stacks, and what they compute with."""
        read = self.again.read(value for reader in self.readers for value in self.wanted(reader))
        return [*(stack for stack, _ in self.stacks.values()), *(v for v in read if v not in self.loop.inside)]

    def is_read_in(self, block: ir.Block) -> bool:
        """Whether a reader is in this block."""
        return any(reader.loop.op.block == block for reader in self.readers)

    def let_read(self, block: ir.Block, there: Mapping[ir.Value, ir.Value], mesh: MeshAxes | None) -> None:
        """Rewrite the readers in a block. there: for values of the forward those that stand for them in this block."""
        for reader in self.readers:
            if reader.loop.op.block == block:
                reader.rewrite(self, there, mesh)


@dataclass(frozen=True)
class Rematerialised:
    """Operations of a loop of the forward that the loops of the backward rematerialise.

    Attributes:
        inside: the operations of the loop's body.
        ops: the numbers of those that are rematerialised.
        counts: (start, step) of the arguments of the body that count.
    """

    inside: Numbered
    ops: Sequence[int]
    counts: Mapping[ir.Value, tuple[int, int]]

    def operands(self, op: int) -> Sequence[ir.Value]:
        """What an operation uses now: its operands change where a loop in front of this one is written again."""
        return operands_with_captures(self.inside.ops[op])

    def read(self, wanted: Iterable[ir.Value]) -> list[ir.Value]:
        """The values that these operations read and don't make, and those of `wanted` that they don't make."""
        made = {result for op in self.ops for result in self.inside.results[op]}
        read = dict.fromkeys([*wanted, *(value for op in self.ops for value in self.operands(op))])
        return [value for value in read if value not in made]

    def behind(self, wanted: Iterable[ir.Value]) -> list[int]:
        """Those of these operations on which `wanted` depends, in program order."""
        needed, found = set(wanted), list[int]()
        for op in reversed(self.ops):
            if not needed.isdisjoint(self.inside.results[op]):
                found.append(op)
                needed.update(self.operands(op))
        return found[::-1]


def _as(type_: ir.Type, value: ir.Value) -> ir.Value:
    return value if value.type == type_ else stablehlo.convert(type_, value)


def _stand_for(read: ir.Operation, value: ir.Value) -> None:
    """Replace the row that `read` reads, which has a first dimension of size 1, by `value`, which lacks that."""
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
