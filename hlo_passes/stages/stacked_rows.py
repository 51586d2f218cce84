"""Makes the loops of a forward stack the fewest bytes for the loops of its backward, by a minimum cut."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.cut import divide, without_long_chains
from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.hlo_passes.stages.row_readers import RewrittenStacks, RowReader
from jaxpp.ir.build import erase_dead
from jaxpp.ir.counted import affine, is_counted
from jaxpp.ir.functions import loop_body, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tasks import StageTask, task_inside, task_of
from jaxpp.ir.values import byte_size, defining_op


def stack_less(loop: MicrobatchLoop, mesh: MeshAxes | None) -> None:
    """Makes the loops of each forward stack the fewest bytes from which its backward can make the values that it reads.

    Nested loops are one flow problem, in which a value costs its bytes in all trips. A value of the outer loop may be
    rematerialised for the inner loop, and counts once however many operations need it. Loops in sequence are treated
    from the last to the first, because a later loop may read the stacks of an earlier one.
    """
    changed = False
    for op in reversed(operations(loop.body)):
        task = task_of(op) if is_counted(op) else None
        if task is not None and not task.is_backward:
            outside = _Microbatch(loop, StageTask.backward(task.stage))
            stacks = _Stacks.of(op, outside)
            less = stacks.reduced(_Nest(stacks, outside).again(), mesh)
            if less is not None:
                less.let_read(loop.body, {}, mesh)
                op.erase()
                changed = True
    if changed:
        erase_dead(loop.body)


@dataclass(frozen=True)
class _Microbatch:
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


@dataclass(frozen=True)
class _Stacks:
    """The stacks of a loop of the forward, and their readers.

    Attributes:
        loop: the loop of the forward.
        outer: the loop of the forward around it, or the body of the loop over microbatches.
        readers: the loops of the backward that read single rows.
        used: the positions of results with other uses than reads of single rows.
        there: the values of the body whose stacks the backward has anyway.
    """

    loop: OpenLoop
    outer: "_Microbatch | _Stacks"
    readers: list[RowReader] = field(default_factory=list[RowReader])
    used: set[int] = field(default_factory=set[int])
    there: set[ir.Value] = field(default_factory=set[ir.Value])

    @staticmethod
    def of(op: ir.Operation, outer: "_Microbatch | _Stacks") -> "_Stacks":
        """Returns the stacks of the loop `op`, after a look at all uses of its results."""
        stacks = _Stacks(OpenLoop(op), outer)
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
    def inner(self) -> "list[_Stacks]":
        """The stacks of the counted loops in the body, from the last loop to the first."""
        return [_Stacks.of(op, self) for op in reversed(self.loop.body.ops) if is_counted(op)]

    @property
    def wanted(self) -> list[ir.Value]:
        """The values of the body whose rows the readers read. Stacks that only their inner loops read are left out."""
        inside = {each.loop.op.results[p] for each in self.inner for p in each.loop.stacks if p not in each.used}
        return [value for reader in self.readers for _, value in reader.rows if value not in inside]

    def reduced(self, remade: Set[ir.Value], mesh: MeshAxes | None) -> "RewrittenStacks | None":
        """Writes a new loop in front of the old one that does not stack the values `remade`; None if none is needed.

        Loops inside of it are rewritten first.
        """
        found = (each.reduced(remade, mesh) for each in self.inner)
        inner = [less for less in found if less is not None]
        return (_Stacks.of(self.loop.op, self.outer) if inner else self)._reduced(inner, remade, mesh)

    def _reduced(
        self, inner: "Sequence[RewrittenStacks]", remade: Set[ir.Value], mesh: MeshAxes | None
    ) -> "RewrittenStacks | None":
        loop = self.loop
        again = Numbered([loop.body.ops[number] for number in loop.body.making(remade)])
        if not again.ops and not inner:
            return None
        gone = {result for less in inner for result in less.loop.op.results}
        rows = [value for reader in self.readers for _, value in reader.rows if value not in gone]
        wanted = dict.fromkeys([*rows, *(value for less in inner for value in less.needed())])
        read = again.read(range(len(again.ops)), wanted)
        kept = {value: None for value in read if value in loop.inside and value not in loop.counts}
        positions = self.used.union(position for position, value in loop.stacks.items() if value in kept)
        # The side effects of an inner loop that was rewritten are in its new version.
        acting = [op for op in loop.acting if gone.isdisjoint(op.results)]
        stacks = loop.write(positions, mesh, kept=kept, acting=acting).stacks
        return RewrittenStacks(loop, self.readers, again.ops, stacks, inner, gone)

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


class _Nest:
    """The bodies of a loop of the forward and of the loops inside of it, as an early half; the late half reads rows."""

    def __init__(self, outermost: _Stacks, outside: _Microbatch) -> None:
        loops = [outermost]
        for each in loops:
            loops += each.inner
        self._outside = outside
        self._of = {value: each for each in loops for value in each.loop.inside}
        self._wanted = dict.fromkeys(value for each in loops for value in each.wanted)
        self._together = [values for each in loops for reader in each.readers for values in reader.together()]
        self._too_long: set[int] = set()
        self.body = Numbered([op for each in loops for op in each.loop.body.ops])

    def again(self) -> set[ir.Value]:
        """Returns the values that the loops of the backward rematerialise, so that the fewest bytes are stacked."""
        while True:
            found = sorted(divide(self, (), self._wanted, self._size, self._together).again)
            short = without_long_chains(self, found, self._wanted.__contains__)
            if short == found:
                return {result for op in found for result in self.body.results[op]}
            self._too_long.update(found)
            self._too_long.difference_update(short)

    def _size(self, value: ir.Value) -> int:
        """Returns the bytes of `value` in all trips together."""
        stacks = self._of.get(value)
        return self._outside.size(value) if stacks is None else stacks.trips * byte_size(value.type)

    def is_free(self, value: ir.Value) -> bool:
        stacks = self._of.get(value)
        if stacks is None:
            return self._outside.is_there(value)
        return value in stacks.loop.counts or value in stacks.there

    def is_early(self, value: ir.Value) -> bool:
        return True

    def may_move(self, op: int) -> bool:
        return False

    def may_repeat(self, op: int) -> bool:
        return op not in self._too_long and is_cheap(self.body.ops[op])
