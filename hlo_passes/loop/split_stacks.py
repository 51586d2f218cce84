"""`split-stacks`: stacked parameters, their gradients and their optimizer's state are cut into one block per mesh."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.functions import body_of, has_side_effect, main_of, operations, terminator
from jaxpp.hlo_passes.ir.loop import MicrobatchLoop
from jaxpp.hlo_passes.ir.values import defining_op, is_used
from jaxpp.hlo_passes.loop.blocks import Blocks, Homes, is_elementwise, keeps_rows, shape_of
from jaxpp.hlo_passes.loop.forward_rows import rows_of
from jaxpp.hlo_passes.loop.stack_reads import Read, StackReads

_BARRIER = "stablehlo.optimization_barrier"


@dataclass(frozen=True)
class SplitStacks(Pass):
    """Cuts arguments that the loop reads row by row (stacked parameters) into blocks, one for each mesh that uses them.

    Each block of rows has a mesh of its own, with the block's part of everything that is computed of it row by row:
    casts before the loop, gradients, the optimizer's update and its state. What needs all rows gets them put together;
    of a sum over all rows (a norm) only the sums of the blocks meet. The meshes are the homes of the stages that read
    the rows, in the order in which the fewest bytes move: an encoder's stack may be on other meshes than a decoder's.

    - `jaxpp.blocks = array<i64: 2, 3>` on an argument or a result of `@main`: it is stored as two equal blocks along
      its first dimension, on the meshes 2 and 3. The argument is only read through its blocks (a slice for each), the
      result is put together from its own.
    - A stage takes its rows out of the block of its mesh. Where a mesh has several separate runs of stages (interleaved
      schedules, V-shaped ones), rows of other meshes' blocks are sent to it once per step, their gradients back:
      `jaxpp.rows_sent` on the module are the bytes of these rows. None is sent where the layers are stored in the order
      of the meshes: `jaxpp.rows_of_layers`.

    An argument whose rows can't be cut evenly, or which the loop also reads otherwise, stays whole on each of its
    meshes; so does one whose meshes differ in size (`jaxpp.mesh_sizes`). A `jax.Array` has equal shards.

    Preconditions: `find-microbatch-loop` ran, and `unroll-layers`, which makes the rows.

    ```mlir
    @main(%w: tensor<4x8x8xf32>, ...)                ==>   @main(%w: tensor<4x8x8xf32> {jaxpp.blocks = [0, 1]}, ...)
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
        """Cut the stacks of `module`. Raises PassError as `outline-stages` does."""
        loop = MicrobatchLoop.of(module)
        if loop.plan.meshes > 1:
            main = main_of(module)
            reads = StackReads(module, main, loop)
            sent = sum(stack.rows_sent for stack in reads.stacks.values())
            if sent:
                module.operation.attributes[at.ROWS_SENT] = at.i64(sent)
            if reads.stacks:
                _Split(main, loop, reads).run()


class _Split:
    """The stacks of one module, and what becomes of them."""

    def __init__(self, main: ir.Operation, loop: MicrobatchLoop, reads: StackReads) -> None:
        self._main, self._loop, self._stacks = main, loop, reads.stacks
        self._result_homes = reads.result_homes
        self._block = body_of(main)
        self._ops = operations(self._block)
        self._end = terminator(self._block)
        # An optimizer's state is cut with the parameters; nothing that the loop reads otherwise.
        inside = {a for a in self._block.arguments if any(reads.is_in_loop(use.owner.operation) for use in a.uses)}
        self._blocks = Blocks(set[ir.Value](self._block.arguments) - inside)
        self._homes_of_type: dict[tuple[int, ...], set[Homes]] = {}
        for argument, stack in self._stacks.items():
            self._homes_of_type.setdefault(tuple(shape_of(argument)), set()).add(stack.homes)
        self._rows: dict[tuple[ir.Value, int, int], ir.Value] = {}

    def run(self) -> None:
        """Rewrite `@main` in place."""
        for argument, stack in self._stacks.items():
            self._blocks.cut(argument, stack.homes)
        for op in self._ops[:-1]:
            if op == self._loop.op:
                self._read_blocks()
            elif op.name == "stablehlo.concatenate" and (homes := self._homes_of_pieces(op)):
                self._blocks.join(op, homes)
            else:
                self._blocks.visit(op)
        self._return()
        self._put_together()
        for op in reversed(operations(self._block)[:-1]):
            if not any(map(is_used, op.results)) and not has_side_effect(op):
                op.erase()

    def _homes_of_pieces(self, op: ir.Operation) -> Homes | None:
        """Where the blocks of a concatenation are that may be a stack's gradient: where most of its rows are made."""
        found = self._homes_of_type.get(tuple(shape_of(op.results[0])), set())
        made = [self._home_of(piece) for piece in op.operands]

        def fitting(homes: Homes) -> int:
            where = [homes[k * len(homes) // len(made)] for k in range(len(made))]
            return sum(mesh in (None, home) for mesh, home in zip(made, where, strict=True))

        best = max(sorted(found), key=fitting, default=None)
        return best if best is not None and fitting(best) else None

    def _home_of(self, value: ir.Value) -> int | None:
        """The home of the stage that makes a row, or what it is computed of; None where it comes from nowhere else."""
        op = defining_op(value)
        while op is not None and op != self._loop.op and (is_elementwise(op) or keeps_rows(op)):
            value = op.operands[0]
            op = defining_op(value)
        return self._result_homes[ir.OpResult(value).result_number] if op == self._loop.op else None

    def _read_blocks(self) -> None:
        """Let the loop read rows out of their blocks; those of other meshes' blocks before the loop."""
        blocks, reads = self._blocks, dict[ir.Operation, tuple[Read, int, bool]]()
        for stack in self._stacks.values():
            for read, is_whole in zip(stack.reads, stack.whole_blocks(), strict=True):
                reads[read.op] = (read, len(stack.homes), is_whole)
        outside = dict(blocks.parts), dict(blocks.homes), set(blocks.replaced)
        blocks.anchor = None if all(is_whole for _, _, is_whole in reads.values()) else self._loop.op
        for op in operations(self._loop.body)[:-1]:
            if op in reads:
                op.results[0].replace_all_uses_with(self._read(*reads[op]))
            elif op.name == _BARRIER and not boundary.is_mark(op):
                for value, result in zip(op.operands, op.results, strict=True):
                    if value in blocks.parts:
                        blocks.put(result, blocks.parts[value], blocks.homes[value])
            elif len(op.operands) == 1:
                blocks.visit(op)
        for op in reads:
            _erase_unused(op)
        blocks.anchor, (blocks.parts, blocks.homes, blocks.replaced) = None, outside

    def _read(self, read: Read, count: int, is_whole: bool) -> ir.Value:
        number, first = read.block(count)
        block = self._blocks.parts[read.op.operands[0]][number]
        if is_whole:
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
        blocks, cut = self._blocks, [self._blocks.homes.get(value) for value in self._block.arguments]
        ip = ir.InsertionPoint(self._end)
        for number, value in enumerate(list(self._end.operands)):
            feeds = results[number].get(at.FEEDS)
            fed = feeds.value if isinstance(feeds, ir.IntegerAttr) else -1
            homes = cut[fed] if 0 <= fed < len(cut) else blocks.homes.get(value)
            if homes is not None:
                if blocks.homes.get(value, homes) != homes:
                    value = blocks.whole(value, ip)
                blocks.cut(value, homes)
                self._end.operands[number] = blocks.whole(value, ip)
                results[number][at.BLOCKS] = at.i64s(homes)
        for entry, homes in zip(arguments, cut, strict=True):
            if homes is not None:
                entry[at.BLOCKS] = at.i64s(homes)
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
