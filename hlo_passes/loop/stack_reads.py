"""The arguments that the microbatch loop reads row by row (stacked layers), and which stage reads which rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxlib.mlir import ir

from jaxpp.hlo_passes.loop.transfer_functions import is_by_rows
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.functions import body_of, operands_with_captures, terminator, values_behind
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import shape_of, traits
from jaxpp.ir.rows import slice_bounds
from jaxpp.ir.tasks import marked_task, op_of, read_tasks, task_of_value
from jaxpp.ir.train_loop import stored
from jaxpp.ir.values import block_of, byte_size, closure, defining_op

Homes = tuple[int, ...]
"""The mesh of each block, in the order of the blocks."""


@dataclass(frozen=True)
class Read:
    """Rows of a stack, or of a value computed from it row by row, that `op` slices out for the loop.

    Attributes:
        op: the slice, in the loop or before it.
        first: the index of the first row.
        rows: the number of rows.
        total: the number of rows of the value that `op` slices.
        used: the values that the loop uses: the rows, or values computed from them before the loop, such as a cast.
        homes: the first mesh of each stage that uses them.
        places: all meshes that run these stages.
    """

    op: ir.Operation
    first: int
    rows: int
    total: int
    used: Sequence[ir.Value]
    homes: frozenset[int] = frozenset()
    places: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        """The bytes that a stage on a mesh without the rows receives from another mesh."""
        return min(byte_size(self.op.results[0].type), sum(byte_size(value.type) for value in self.used))

    def block(self, count: int) -> tuple[int, int]:
        """Returns the index of the block with the rows, out of `count` blocks, and the index of the first row in that
        block.
        """
        return divmod(self.first, self.total // count)

    def is_in_a_block(self, count: int) -> bool:
        """Whether a single one of `count` blocks has all the rows."""
        if self.total % count:
            return False
        return self.block(count)[1] + self.rows <= self.total // count


@dataclass(frozen=True)
class Stack:
    """An argument that the loop reads row by row, and the mesh of each of its blocks."""

    reads: Sequence[Read]
    homes: Homes

    @property
    def padding(self) -> float:
        """The share of the rows that are padding."""
        used = [(total, len(rows)) for (total, _), rows in _rows_used(self.reads, len(self.homes)).items()]
        total = min(total for total, _ in used)
        return 1 - sum(rows for each, rows in used if each == total) / total

    def whole_blocks(self) -> list[bool]:
        """Returns for each read whether the stage may take the block of the rows as it is.

        It may on the mesh of the block, and if all stages that read the block run on the same meshes. Otherwise it
        receives single rows.
        """
        places: dict[int, set[frozenset[int]]] = {}
        for read in self.reads:
            places.setdefault(read.block(len(self.homes))[0], set()).add(read.places)
        found: list[bool] = []
        for read in self.reads:
            number, _ = read.block(len(self.homes))
            found.append(read.places <= {self.homes[number]} or len(places[number]) == 1)
        return found

    @property
    def rows_sent(self) -> int:
        """The bytes of the rows that stages on other meshes than the mesh of their block use."""
        found = {
            (read.first, read.total, mesh): read.size
            for read in self.reads
            for mesh in read.homes - {self.homes[read.block(len(self.homes))[0]]}
        }
        return sum(found.values())


class StackReads:
    """Finds the stacks of `main`, the entry of `module`.

    Attributes:
        stacks: the reads and the meshes of each argument that is a stack.
        result_homes: the first mesh of the stage that makes each result of the loop; None if any mesh may make it.
    """

    def __init__(self, module: ir.Module, main: ir.Operation, loop: MicrobatchLoop) -> None:
        self._main, self._loop = body_of(main), loop
        sizes = module.operation.attributes.get(at.MESH_SIZES)
        self._sizes = [] if sizes is None else list(ir.ArrayAttr(sizes))
        self.stacks: dict[ir.Value, Stack] = {}
        self.result_homes: list[int | None] = []
        found: dict[ir.Value, list[Read]] = {}
        for argument in stored(module, self._main.arguments):
            if _may_hold_layers(argument.type):
                reads = self._reads(argument)
                if reads:
                    found[argument] = reads
        if found:
            self._find_homes(found)

    def is_in_loop(self, op: ir.Operation) -> bool:
        """Whether `op` stands in the loop, at any depth."""
        return op_of(self._main, op) == self._loop.op

    def _reads(self, argument: ir.Value) -> list[Read] | None:
        """Returns all reads of a stack for the loop; None if the loop reads anything but rows."""
        found, work, seen = list[Read](), [argument], {argument}
        while work:
            value = work.pop()
            for use in value.uses:
                op = use.owner.operation
                if op.name == "stablehlo.slice" and (used := self._used_by_loop(op.results[0])):
                    read = _slice(op, value, used)
                    if read is not None:
                        found.append(read)
                    elif op.block == self._loop.body:
                        return None
                    continue
                result = self._follows(op, use.operand_number)
                if result is None:
                    if self.is_in_loop(op):
                        return None
                elif result not in seen:
                    seen.add(result)
                    work.append(result)
        return found

    def _used_by_loop(self, value: ir.Value) -> list[ir.Value]:
        """Returns the values that the loop uses of `value`: itself, or values that are computed from it before the
        loop.
        """
        if block_of(value) == self._loop.body:
            return [value]

        def computed(each: ir.Value) -> list[ir.Value]:
            users = (op_of(self._main, use.owner.operation) for use in each.uses)
            return [result for op in users if self._is_before(op) for result in op.results]

        if not self._is_before(defining_op(value)):
            return []
        return [each for each in closure([value], computed) if any(self._readers(each))]

    def _is_before(self, op: ir.Operation | None) -> bool:
        return op is not None and op.block == self._main and op.is_before_in_block(self._loop.op)

    def _readers(self, value: ir.Value) -> Iterable[ir.Operation]:
        """Yields the operations of the loop's body that use a value from outside of it."""
        for use in value.uses:
            op = use.owner.operation
            if op != self._loop.op and self.is_in_loop(op):
                yield op_of(self._loop.body, op)

    def _follows(self, op: ir.Operation, number: int) -> ir.Value | None:
        """Returns the value that `op`, before the loop or in it, computes row by row from its operand of this index."""
        if op.block == self._main:  # after the loop an argument may be used in any way
            return op.results[0] if is_by_rows(op, number) and self._is_before(op) else None
        if op.block == self._loop.body and boundary.is_barrier(op):
            return op.results[number]
        is_known = op.block == self._loop.body and is_by_rows(op, number) and self._is_invariant(op)
        return op.results[0] if is_known else None

    def _is_invariant(self, op: ir.Operation) -> bool:
        """Whether an operation of the loop's body depends on nothing that changes from one microbatch to the next."""
        body = self._loop.body
        return values_behind(operands_with_captures(op), body).keys().isdisjoint(body.arguments)

    def _find_homes(self, found: Mapping[ir.Value, Sequence[Read]]) -> None:
        """Keeps the stacks that can be cut into a block for the first mesh of each stage that reads them."""
        loop, homes = self._loop, self._loop.homes
        stages = _stages_of(loop)
        for argument, reads in found.items():
            placed = [
                replace(
                    read,
                    homes=frozenset(homes[stage][0] for stage in users),
                    places=frozenset(mesh for stage in users for mesh in homes[stage]),
                )
                for read, users in ((read, self._stages(read, stages)) for read in reads)
            ]
            meshes = tuple(sorted(set[int]().union(*(read.homes for read in placed))))
            if self._can_be_cut(argument, placed, meshes):
                self.stacks[argument] = Stack(placed, _order(meshes, placed))
        tasks = map(task_of_value, terminator(loop.body).operands)
        self.result_homes = [None if task is None else homes[task.stage][0] for task in tasks]

    def _stages(self, read: Read, stages: Mapping[ir.Value, set[int]]) -> set[int]:
        """Returns the stages that use the rows."""
        users = (op for value in read.used if value not in stages for op in self._readers(value))
        values = [*read.used, *(result for op in users for result in op.results)]
        return set[int]().union(*(stages.get(value, ()) for value in values))

    def _can_be_cut(self, argument: ir.Value, reads: Sequence[Read], meshes: Homes) -> bool:
        """Whether each of the meshes can have a block, and every read is within one block."""
        if len(meshes) < 2 or shape_of(argument)[0] % len(meshes):
            return False
        alike = not self._sizes or all(self._sizes[mesh] == self._sizes[meshes[0]] for mesh in meshes)
        in_blocks = alike and all(read.is_in_a_block(len(meshes)) for read in reads)
        return in_blocks and all(_is_padded(used) for used in _rows_used(reads, len(meshes)).values())


def _slice(op: ir.Operation, value: ir.Value, used: Sequence[ir.Value]) -> Read | None:
    bounds, shape = slice_bounds(op), shape_of(value)
    if bounds is None or [size for _, size in bounds[1:]] != shape[1:]:
        return None
    return Read(op, *bounds[0], shape[0], used)


def _may_hold_layers(type_: ir.Type) -> bool:
    """Whether a value of this type may be a stack of layers.

    The words of a random key are none: the generator reads them one by one.
    """
    if not isinstance(type_, ir.RankedTensorType) or not type_.rank or not type_.shape[0]:
        return False
    return type_.rank > 1 or isinstance(type_.element_type, ir.FloatType)


def _rows_used(reads: Sequence[Read], count: int) -> dict[tuple[int, int], set[int]]:
    """Returns the rows that are read of each of `count` blocks, by (total number of rows, index of the block)."""
    used = {(read.total, number): set[int]() for read in reads for number in range(count)}
    for read in reads:
        number, first = read.block(count)
        used[read.total, number].update(range(first, first + read.rows))
    return used


def _is_padded(used: set[int]) -> bool:
    """Whether the rows that are read are the first rows of the block: the others are padding."""
    return bool(used) and max(used) + 1 == len(used)


def _stages_of(loop: MicrobatchLoop) -> dict[ir.Value, set[int]]:
    """Returns the stage of each value of the loop's body; for a value that is only moved or cast, the stages of its
    users.
    """
    ops, tasks = read_tasks(loop.body)
    numbered = Numbered(ops)
    stages: list[set[int]] = [set() for _ in ops]
    for number, (op, task) in reversed(list(enumerate(zip(ops, tasks, strict=True)))):
        if boundary.is_mark(op):
            # The task of a mark is the one that begins there, but its rows are used by the stage that ends there.
            stages[number] = {marked_task(boundary.read(op), loop.stages_per_slice).stage}
        elif task is not None and not traits(op).view:
            stages[number] = {task.stage}
        for maker in numbered.makers[number]:  # the loop visits it later, and replaces this if it has its own task
            stages[maker] |= stages[number]
    return {result: stages[number] for result, number in numbered.producers.items()}


def _order(meshes: Homes, reads: Sequence[Read]) -> Homes:
    """Returns the mesh of each block, so that the fewest bytes move; among equal choices, meshes in ascending order."""
    bytes_of = {
        (read.block(len(meshes))[0], read.first, read.total, mesh): read.size
        for read in reads
        for mesh in read.homes  # once per step, however often a stage reads it
    }
    used = np.eye(len(meshes)) / 2
    for (block, _, _, mesh), size in bytes_of.items():
        used[block, meshes.index(mesh)] += size
    return tuple(meshes[column] for column in assigned(used))


def assigned(gains: np.ndarray) -> Sequence[int]:
    """Returns the column of each row of a square matrix, each column once, with the largest sum of entries."""
    best = gains == gains.max(axis=1, keepdims=True)
    if (best.sum(axis=0) == 1).all() and (best.sum(axis=1) == 1).all():  # one maximum in each column: usual
        return best.argmax(axis=1).tolist()
    from scipy.optimize import linear_sum_assignment  # imported here: it takes longer than all of jaxpp-opt

    return linear_sum_assignment(gains, maximize=True)[1].tolist()
