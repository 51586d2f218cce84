"""What a loop of a forward stacks for the loops of its backward: of each trip as few bytes as a minimum cut says."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.cut import divide, without_long_chains
from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.hlo_passes.stages.two_loops import Row, counted, read_row, stack_more, stack_type, trip_of
from jaxpp.ir import attributes as at
from jaxpp.ir.build import clone, erase_dead, sharded
from jaxpp.ir.counted import counted_loops, counters
from jaxpp.ir.functions import loop_body, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tasks import StageTask, task_inside, task_of
from jaxpp.ir.values import byte_size, defining_op, is_used


def stack_less(loop: MicrobatchLoop, mesh: MeshAxes | None) -> None:
    """Let the loops of each forward stack the fewest bytes of which the loops of its backward can make what they read.

    From the last one to the first: what stays of one may read what another one stacks.
    """
    changed = False
    for op in reversed(operations(loop.body)):
        task = task_of(op) if op.name == "stablehlo.while" else None
        if task is not None and not task.is_backward and counted_loops([op])[:1] == [op]:
            changed |= _Stacks.of(OpenLoop(op), loop, StageTask.backward(task.stage)).reduce(mesh)
    if changed:
        erase_dead(loop.body)


@dataclass
class _Reader:
    """A loop of the backward that reads a row of each trip of a loop of the forward.

    Attributes:
        loop: the loop of the backward.
        trips: (first, step) of the forward's trips, in the order in which it reads them.
        rows: the operations that read, and the value of the forward's body that each reads.
    """

    loop: OpenLoop
    trips: tuple[int, int]
    rows: list[tuple[ir.Operation, ir.Value]] = field(default_factory=list[tuple[ir.Operation, ir.Value]])

    def rewrite(self, again: "_Again", stacks: Mapping[ir.Value, tuple[ir.Value, Row]], mesh: MeshAxes | None) -> None:
        """Let the body read rows of `stacks`, and make of them what it read so far."""
        body = loop_body(self.loop.op)
        ops = again.behind(value for _, value in self.rows)
        read = dict.fromkeys(value for op in ops for value in again.operands(op))
        read |= dict.fromkeys(value for _, value in self.rows)
        values: dict[ir.Value, ir.Value] = {}
        with ir.InsertionPoint.at_block_begin(body) as ip, self.loop.op.location:
            trip = counted(trip_of(self.loop.op), *self.trips)
            for value in read:
                if value in stacks:
                    stack, row = stacks[value]
                    values[value] = read_row(stack, value, row.at(trip), mesh)
                elif value in again.counts:
                    values[value] = _as(value.type, counted(trip, *again.counts[value]))
            for op in ops:
                clone(again.inside.ops[op], values, ip, {})
        for op, value in self.rows:
            _stand_for(op, values[value])
        erase_dead(body)


@dataclass(frozen=True)
class _Stacks:
    """What a loop of the forward stacks, and who reads it.

    Attributes:
        loop: the loop of the forward.
        plan: the loop over microbatches.
        backward: the backward of its stage.
        readers: the loops of the backward that read rows.
        used: the positions of what others use, whole or in another way.
        there: the values of the body whose stacks the backward has anyway.
    """

    loop: OpenLoop
    plan: MicrobatchLoop
    backward: StageTask
    readers: Sequence[_Reader]
    used: Collection[int]
    there: Collection[ir.Value]

    @staticmethod
    def of(loop: OpenLoop, plan: MicrobatchLoop, backward: StageTask) -> "_Stacks":
        """Look who uses the results of a loop."""
        readers: dict[ir.Operation, _Reader] = {}
        used: set[int] = set()
        there: set[ir.Value] = set()
        for position, result in enumerate(loop.op.results):
            value = loop.stacks.get(position)
            for use in result.uses:
                user = use.owner.operation
                if (
                    value is not None
                    and use.operand_number == 0
                    and _reads(user, loop, position, plan, backward, readers)
                ):
                    continue
                used.add(position)
                if value is not None and task_inside(user, plan.body) == backward:
                    there.add(value)
        return _Stacks(loop, plan, backward, list(readers.values()), used, there)

    def reduce(self, mesh: MeshAxes | None) -> bool:
        """Stack less, if less will do; returns whether it does."""
        wanted = dict.fromkeys(value for reader in self.readers for _, value in reader.rows)
        inside = _Inside(Numbered(self.loop.ops), self)
        found = divide(inside, (), wanted, inside.size).again
        again = _Again(inside.body, without_long_chains(inside, sorted(found), wanted.__contains__), self._counts)
        read = again.read(wanted)
        if not inside.cost(read) < inside.cost(wanted):
            return False
        kept = {value: None for value in read if value in self.loop.inside and value not in again.counts}
        positions = [p for p in range(len(self.loop.following)) if p in self.used or self.loop.stacks.get(p) in kept]
        new = [value for value in kept if value not in self.loop.rows]
        half = self.loop.half(positions, new)
        made, added = stack_more(self.loop.op, half, new, mesh)
        stacks = {value: (stack, Row(-1, 0, 1)) for value, stack in zip(new, added, strict=True)}
        for value in kept:
            if value in self.loop.rows:
                row = self.loop.rows[value]
                stacks[value] = made.results[half.positions.index(row.position)], row
        for reader in self.readers:
            reader.rewrite(again, stacks, mesh)
        self.loop.op.erase()
        return True

    @property
    def _counts(self) -> dict[ir.Value, tuple[int, int]]:
        arguments = loop_body(self.loop.op).arguments
        return {arguments[position]: (start, step) for position, start, step in counters(self.loop.op)}


@dataclass(frozen=True)
class _Again:
    """Operations of a loop of the forward that the loops of the backward do again.

    Attributes:
        inside: the operations of the loop's body.
        ops: the numbers of those.
        counts: (start, step) of the arguments of the body that count.
    """

    inside: Numbered
    ops: Sequence[int]
    counts: Mapping[ir.Value, tuple[int, int]]

    def operands(self, op: int) -> Sequence[ir.Value]:
        """What an operation uses."""
        return self.inside.operands[op]

    def read(self, wanted: Iterable[ir.Value]) -> list[ir.Value]:
        """What they read of others, and those of `wanted` that they don't make."""
        made = {result for op in self.ops for result in self.inside.results[op]}
        read = dict.fromkeys([*wanted, *(value for op in self.ops for value in self.operands(op))])
        return [value for value in read if value not in made]

    def behind(self, wanted: Iterable[ir.Value]) -> list[int]:
        """Those on which `wanted` depends, in program order."""
        needed, found = set(wanted), list[int]()
        for op in reversed(self.ops):
            if not needed.isdisjoint(self.inside.results[op]):
                found.append(op)
                needed.update(self.operands(op))
        return found[::-1]


@dataclass(frozen=True)
class _Inside:
    """The body of a loop of the forward, as the early half: the late one has nothing yet, but wants rows."""

    body: Numbered
    stacks: _Stacks

    def is_free(self, value: ir.Value) -> bool:
        stacks = self.stacks
        if value in stacks.loop.inside:
            return value in stacks.loop.counters or value in stacks.there
        op = defining_op(value)
        if op is None or op.block != stacks.plan.body:
            indices = set(stacks.plan.indices)
            return value.owner != stacks.plan.body or ir.BlockArgument(value).arg_number in indices
        used_by = (task_inside(use.owner.operation, stacks.plan.body) for use in value.uses)
        return task_of(op) is None or stacks.backward in used_by

    def is_early(self, value: ir.Value) -> bool:
        return True

    def may_move(self, op: int) -> bool:
        return False

    def may_repeat(self, op: int) -> bool:
        return is_cheap(self.body.ops[op])

    def cost(self, values: Iterable[ir.Value]) -> int:
        """The bytes of all trips of what is not there anyway."""
        return sum(self.size(value) for value in values if not self.is_free(value))

    def size(self, value: ir.Value) -> int:
        """The bytes of all trips."""
        return byte_size(value.type) * (self.stacks.loop.trips if value in self.stacks.loop.inside else 1)


def _reads(
    op: ir.Operation,
    loop: OpenLoop,
    position: int,
    plan: MicrobatchLoop,
    backward: StageTask,
    readers: dict[ir.Operation, _Reader],
) -> bool:
    """Whether `op` reads a row of a stack of `loop` in each trip of a loop of the backward, as `readers` then says."""
    value, parent = loop.stacks[position], op.parent
    outer = None if parent is None else parent.operation
    if outer is None or outer.name != "stablehlo.while" or outer.block != plan.body or task_of(outer) != backward:
        return False
    is_slice = op.name == "stablehlo.dynamic_slice" and op.operands[0] == loop.op.results[position]
    if not is_slice or op.block != loop_body(outer) or counted_loops([outer])[:1] != [outer]:
        return False
    reader = readers.get(outer) or _Reader(OpenLoop(outer), (0, 0))
    row, numbers = loop.rows[value], reader.loop.affine(op.operands[1])
    if numbers is None or op.results[0].type != stack_type(value, 1) or reader.loop.trips != loop.trips:
        return False
    trips = (numbers[0] - row.first) * row.step, numbers[1] * row.step
    last = trips[0] + (loop.trips - 1) * trips[1]
    each_once = abs(trips[1]) == 1 and {trips[0], last} == {0, loop.trips - 1}
    if not each_once or (outer in readers and trips != reader.trips):
        return False
    reader.trips = trips
    readers[outer] = reader
    reader.rows.append((op, value))
    return True


def _as(type_: ir.Type, value: ir.Value) -> ir.Value:
    return value if value.type == type_ else stablehlo.convert(type_, value)


def _stand_for(read: ir.Operation, value: ir.Value) -> None:
    """Let `value` stand for the row that `read` has read, whose first dimension has the size 1."""
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
