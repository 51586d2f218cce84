"""`split-stacks`: stacked parameters, their gradients and their optimizer's state are cut into one block per mesh."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.functions import body_of, has_side_effect, main_of, operations, terminator
from jaxpp.hlo_passes.ir.loop import MicrobatchLoop
from jaxpp.hlo_passes.ir.values import defining_op, is_used
from jaxpp.hlo_passes.loop.blocks import Blocks, is_elementwise, keeps_rows, shape_of
from jaxpp.hlo_passes.loop.forward_rows import rows_of

_BARRIER = "stablehlo.optimization_barrier"


@dataclass(frozen=True)
class SplitStacks(Pass):
    """Cuts the arguments that the loop reads row by row (stacked parameters) into as many blocks as there are meshes.

    Each block of rows has a mesh of its own, with the block's part of everything that is computed of it row by row:
    casts before the loop, gradients, the optimizer's update and its state. What needs all rows gets them put together;
    of a sum over all rows (a norm) only the sums of the blocks meet.

    - `jaxpp.blocks = n` on an argument or a result of `@main`: it is stored as n blocks along its first dimension. The
      argument is only read through its blocks (a slice for each), the result is put together from its own.
    - A stage takes the blocks that it needs; where a mesh has several separate runs of stages (interleaved schedules,
      V-shaped ones), single rows, which are sent to it once per step from the mesh of their block. None is sent where
      the layers are stored in the order of the meshes: `jaxpp.rows_of_layers`.

    An argument whose rows can't be cut evenly, or which the loop also reads otherwise, stays whole.

    Preconditions: `find-microbatch-loop` ran, and `unroll-layers`, which makes the rows.

    ```mlir
    @main(%w: tensor<4x8x8xf32>, ...)                ==>   @main(%w: tensor<4x8x8xf32> {jaxpp.blocks = 2}, ...)
    %r = stablehlo.while(...) {                            %w0 = stablehlo.slice %w [0:2, 0:8, 0:8]
      %w_0 = stablehlo.slice %w [0:1, 0:8, 0:8]            %w1 = stablehlo.slice %w [2:4, 0:8, 0:8]
      %w_3 = stablehlo.slice %w [3:4, 0:8, 0:8] ... }      %r = stablehlo.while(...) {
    %n = stablehlo.subtract %w, %g                           %w_0 = stablehlo.slice %w0 [0:1, 0:8, 0:8]
    return %n                                                %w_3 = stablehlo.slice %w1 [1:2, 0:8, 0:8] ... }
                                                           %n0 = stablehlo.subtract %w0, %g0
                                                           %n1 = stablehlo.subtract %w1, %g1
                                                           %n = stablehlo.concatenate %n0, %n1
    ```
    """

    name: ClassVar[str] = "split-stacks"

    def run(self, module: ir.Module) -> None:
        """Cut the stacks of `module`. Raises PassError when there is no loop in canonical form."""
        loop = MicrobatchLoop.of(module)
        homes = loop.plan.placement.homes
        meshes = 1 + max(mesh for each in homes for mesh in each)
        main = main_of(module)
        if meshes > 1:
            split = _Split(main, loop, meshes, _in_one_run([each[0] for each in homes]))
            if split.find_stacks():
                split.run()


def _in_one_run(meshes: list[int]) -> bool:
    """Whether each mesh has its stages one after the other."""
    firsts = [mesh for before, mesh in pairwise([-1, *meshes]) if mesh != before]
    return len(firsts) == len(set(firsts))


@dataclass
class _Read:
    """Rows of a stack, or of what is computed of it row by row, as the loop reads them: `op` slices them out."""

    op: ir.Operation
    first: int
    rows: int
    total: int


class _Split:
    """The stacks of one module, and what becomes of them."""

    def __init__(self, main: ir.Operation, loop: MicrobatchLoop, meshes: int, in_one_run: bool) -> None:
        self._main, self._loop, self._in_one_run = main, loop, in_one_run
        self._block = body_of(main)
        self._ops = operations(self._block)
        self._end = terminator(self._block)
        self._blocks = Blocks(meshes, self._may_split)
        self._stacks: dict[ir.Value, list[_Read]] = {}
        self._types = set[tuple[int, ...]]()
        self._rows: dict[tuple[ir.Value, int, int], ir.Value] = {}

    def find_stacks(self) -> bool:
        """Find the arguments that are read row by row; whether there are any."""
        for argument in self._block.arguments:
            if self._blocks.divides(argument) and _may_hold_layers(argument.type):
                reads = self._reads(argument)
                if reads and _all_rows(reads):
                    self._stacks[argument] = reads
                    self._types.add(tuple(shape_of(argument)))
        return bool(self._stacks)

    def run(self) -> None:
        """Rewrite `@main` in place."""
        for argument in self._stacks:
            self._blocks.cut(argument)
        for op in self._ops[:-1]:
            if op == self._loop.op:
                self._read_blocks()
            elif op.name == "stablehlo.concatenate" and tuple(shape_of(op.results[0])) in self._types:
                self._blocks.join(op)
            else:
                self._blocks.visit(op)
        self._return()
        self._put_together()
        for op in reversed(operations(self._block)[:-1]):
            if not any(map(is_used, op.results)) and not has_side_effect(op):
                op.erase()

    def _may_split(self, argument: ir.Value) -> bool:
        """Whether an argument that meets blocks is cut too: an optimizer's state, but nothing that the loop reads."""
        return not any(self._in_loop(use.owner.operation) for use in argument.uses)

    def _in_loop(self, op: ir.Operation) -> bool:
        while op.block != self._block:
            parent = op.parent
            if parent is None:
                return False
            op = parent.operation
        return op == self._loop.op

    def _reads(self, value: ir.Value) -> list[_Read] | None:
        """All that the loop reads of a stack; None if that isn't only rows of single blocks."""
        found: list[_Read] = []
        for use in value.uses:
            op = use.owner.operation
            inside = op.block == self._loop.body
            by_rows = is_elementwise(op) or keeps_rows(op)
            if not inside and not self._in_loop(op):
                # Before the loop: what is computed of each row. After it: whatever there may be.
                early = by_rows and op.block == self._block and op.is_before_in_block(self._loop.op)
                more = self._reads(op.results[0]) if early else []
            elif inside and op.name == "stablehlo.slice":
                read = self._slice(op, value)
                more = None if read is None else [read]
            elif inside and len(op.operands) == 1 and by_rows and self._blocks.divides(op.results[0]):
                more = self._reads(op.results[0])
            elif inside and op.name == _BARRIER and not boundary.is_mark(op):
                more = self._reads(op.results[use.operand_number])
            else:
                more = None
            if more is None:
                return None
            found += more
        return found

    def _slice(self, op: ir.Operation, value: ir.Value) -> _Read | None:
        shape, rows = shape_of(value), self._blocks.rows(value)
        starts, limits, strides = (
            list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("start_indices", "limit_indices", "strides")
        )
        plain = set(strides) == {1} and not any(starts[1:]) and limits[1:] == shape[1:]
        if not plain or starts[0] // rows != (limits[0] - 1) // rows:
            return None
        return _Read(op, starts[0], limits[0] - starts[0], shape[0])

    def _read_blocks(self) -> None:
        """Let the loop read rows out of their blocks; with several runs of stages on a mesh, before the loop."""
        blocks, reads = self._blocks, {read.op: read for reads in self._stacks.values() for read in reads}
        outside, replaced = dict(blocks.parts), set(blocks.replaced)
        blocks.anchor = None if self._in_one_run else self._loop.op
        for op in operations(self._loop.body)[:-1]:
            if op in reads:
                op.results[0].replace_all_uses_with(self._read(reads[op]))
            elif op.name == _BARRIER and not boundary.is_mark(op):
                for value, result in zip(op.operands, op.results, strict=True):
                    if value in blocks.parts:
                        blocks.parts[result] = blocks.parts[value]
            elif len(op.operands) == 1:
                blocks.visit(op)
        for op in reads:
            _erase_unused(op)
        blocks.anchor, blocks.parts, blocks.replaced = None, outside, replaced

    def _read(self, read: _Read) -> ir.Value:
        number, first = divmod(read.first, read.total // self._blocks.count)
        block = self._blocks.parts[read.op.operands[0]][number]
        if self._in_one_run:
            return self._row(block, first, read.rows, ir.InsertionPoint(read.op), read.op.location)
        key = (block, first, read.rows)
        if key not in self._rows:
            self._rows[key] = self._row(block, first, read.rows, ir.InsertionPoint(self._loop.op), read.op.location)
        return self._rows[key]

    def _row(self, block: ir.Value, first: int, rows: int, ip: ir.InsertionPoint, location: ir.Location) -> ir.Value:
        if rows == shape_of(block)[0]:
            return block
        return self._blocks.own(rows_of(block, first, rows, ip, location))

    def _return(self) -> None:
        """Return what is known in blocks, or feeds an argument that is, in blocks."""
        arguments, results = at.argument_attributes(self._main), at.result_attributes(self._main)
        parts = self._blocks.parts
        cut = [value in parts for value in self._block.arguments]
        for number, value in enumerate(list(self._end.operands)):
            feeds = results[number].get(at.FEEDS)
            fed = feeds.value if isinstance(feeds, ir.IntegerAttr) else -1
            if cut[fed] if 0 <= fed < len(cut) else value in parts:
                self._blocks.cut(value)
                self._end.operands[number] = self._blocks.whole(value, ir.InsertionPoint(self._end))
                results[number][at.BLOCKS] = at.i64(self._blocks.count)
        for entry, split in zip(arguments, cut, strict=True):
            if split:
                entry[at.BLOCKS] = at.i64(self._blocks.count)
        at.set_tables(self._main, arguments, results)

    def _put_together(self) -> None:
        """Whatever still uses a value that is known in blocks gets it put together from them."""
        blocks = self._blocks
        for value in list(blocks.parts):
            known = blocks.made | blocks.replaced
            uses = [use for use in value.uses if use.owner.operation not in known]
            if uses:
                whole = blocks.whole(value, self._after(blocks.parts[value]))
                for use in uses:
                    use.owner.operands[use.operand_number] = whole

    def _after(self, values: list[ir.Value]) -> ir.InsertionPoint:
        """Right after the last of `values` is made."""
        last: ir.Operation | None = None
        for op in map(defining_op, values):
            if last is None or (op is not None and last.is_before_in_block(op)):
                last = op
        return ir.InsertionPoint.at_block_begin(self._block) if last is None else ir.InsertionPoint.after(last)


def _may_hold_layers(type_: ir.Type) -> bool:
    """Not the words of a random key, which its generator reads one by one."""
    tensor = ir.RankedTensorType(type_)
    return tensor.rank > 1 or isinstance(tensor.element_type, ir.FloatType)


def _all_rows(reads: list[_Read]) -> bool:
    """Whether every row is read, of everything that rows are read of."""
    seen: dict[int, set[int]] = {}
    for read in reads:
        seen.setdefault(read.total, set()).update(range(read.first, read.first + read.rows))
    return all(len(rows) == total for total, rows in seen.items())


def _erase_unused(op: ir.Operation) -> None:
    """Erase an operation in the loop whose results nobody uses, and what was there for it only, behind barriers too."""
    operands = list(op.operands)
    if op.name == _BARRIER:
        used = [number for number, result in enumerate(op.results) if is_used(result)]
        operands = [value for number, value in enumerate(operands) if number not in used]
        if used:
            kept = ir.Operation.create(
                op.name,
                results=[op.results[number].type for number in used],
                operands=[op.operands[number] for number in used],
                ip=ir.InsertionPoint(op),
                loc=op.location,
            )
            for number, result in zip(used, kept.results, strict=True):
                op.results[number].replace_all_uses_with(result)
    elif any(map(is_used, op.results)):
        return
    block = op.block
    op.erase()
    for value in operands:
        made = defining_op(value)
        if made is not None and made.block == block and not boundary.is_mark(made) and not has_side_effect(made):
            _erase_unused(made)
