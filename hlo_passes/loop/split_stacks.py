"""`split-stacks`: cuts stacked parameters, their gradients and their optimizer state into one block per mesh."""

from itertools import accumulate
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.pieces import Evaluator, Piece, Pieces
from jaxpp.hlo_passes.loop.stack_reads import Homes, Read, StackReads
from jaxpp.hlo_passes.loop.transfer_functions import Rows, is_by_rows, mapped
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import clone, combine, erase_dead
from jaxpp.ir.functions import (
    body_of,
    main_of,
    nested,
    operations,
    program_order,
    reducer,
    values_behind,
)
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import IDEMPOTENT, shape_of
from jaxpp.ir.rows import clone_as, concatenation, is_uniform, rows_of
from jaxpp.ir.train_loop import stored
from jaxpp.ir.values import byte_size, defining_op, is_zero, origin


class SplitStacks(Pass):
    """Cuts arguments that the loop reads row by row (stacked parameters) into blocks, one for each mesh that uses them.

    Each block of rows has a mesh of its own. That mesh also holds the block's part of each value that is computed from
    the stack row by row: casts before the loop, gradients, the optimizer's update and its state. An operation that
    needs all rows gets the blocks concatenated. For a sum over all rows (a norm), only the sums of the blocks are
    combined. The meshes are those of the stages that read the rows, in the order in which the fewest bytes move. An
    encoder's stack may thus be on other meshes than a decoder's.

    - `jaxpp.blocks = array<i64: 2, 3>` on an argument or a result of `@main`: it is stored as two equal blocks along
      its first dimension, on the meshes 2 and 3. The argument is only read through its blocks, with one slice each; the
      result is the concatenation of its blocks. State that passes from step to step on the way to a block is stored in
      the same way.
    - A stage takes its rows out of the block of its mesh. So do operations before the loop that compute with single
      rows (a cast in the body of a scan). A mesh may have several separate runs of stages (interleaved schedules,
      V-shaped ones). It then receives rows of other meshes' blocks once per step, and sends their gradients back.
      `rows_sent` in the module's `jaxpp.bytes` is the number of bytes of these rows. It is absent if the layers are
      stored in the order of the meshes: `jaxpp.models.rows_of_layers`.
    - The last rows of a block may be padding that no stage reads, if the meshes have different numbers of layers
      (`jaxpp.models.rows_of_layers` with `cuts`). `rows_padded` in `jaxpp.bytes` is the number of bytes of these rows.

    An argument stays whole on each of its meshes in three cases: its rows can't be cut evenly, the loop also reads it
    in another way, or its meshes differ in size (`jaxpp.mesh_sizes`), as a `jax.Array` has equal shards. In a
    `jaxpp.train_loop` only the state is cut: the first dimension of batches and metrics is the steps.

    Preconditions: `number-stages` ran, and `forward-rows`, which finds the rows.

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

    def run(self, module: ir.Module) -> None:
        """Cuts the stacks of `module`. Raises PassError as `outline-stages` does."""
        loop = MicrobatchLoop.of(module)
        if loop.plan.meshes > 1:
            main = main_of(module)
            reads = StackReads(module, main, loop)
            at.note_bytes(module.operation, rows_sent=sum(stack.rows_sent for stack in reads.stacks.values()))
            if reads.stacks:
                splitter = _StackSplitter(module, loop, reads)
                splitter.run()
                at.note_bytes(module.operation, rows_padded=splitter.padded_bytes)


class _Cut(NamedTuple):
    """Equal blocks along the first dimension: the mesh of each block, and the share of the rows that no stage reads."""

    homes: Homes
    padding: float


class _StackSplitter:
    """The stacks of one module, and the rewrite of `@main` that cuts them. `cuts` has the values known in blocks."""

    def __init__(self, module: ir.Module, loop: MicrobatchLoop, reads: StackReads) -> None:
        self._module, self._main, self._loop, self._reads = module, main_of(module), loop, reads
        self._block = body_of(self._main)
        self._ops = operations(self._block)
        # An optimizer's state is cut like its parameters, unless the loop reads it in another way.
        self._may_cut = {
            argument
            for argument in stored(module, self._block.arguments)
            if not any(reads.is_in_loop(use.owner.operation) for use in argument.uses)
        }
        self._cuts = {argument: _Cut(stack.homes, stack.padding) for argument, stack in reads.stacks.items()}
        self._of_shape: dict[tuple[int, ...], set[_Cut]] = {}
        for argument, cut in self._cuts.items():
            self._of_shape.setdefault(tuple(shape_of(argument)), set()).add(cut)
        self._whole: dict[ir.Value, ir.Value] = {}
        self._read_before = {
            read.op.results[0]: (read, len(stack.homes))
            for stack in reads.stacks.values()
            for read in stack.reads
            if read.op.block == self._block
        }

    def run(self) -> None:
        """Rewrites `@main` in place."""
        are_known = False
        while not are_known:
            for op in self._ops[:-1]:
                if op != self._loop.op and len(op.results) == 1:
                    self._find_homes(op)
            are_known = not self._cut_versions()
        self._evaluator = Evaluator(
            {value: self._sliced(value, cut.homes) for value, cut in self._cuts.items() if defining_op(value) is None}
        )
        for op in self._ops[:-1]:
            if op == self._loop.op:
                self._read_blocks()
                self._put_together(op)
            elif len(op.results) and op.results[0] in self._read_before:
                self._read_block(op, *self._read_before[op.results[0]])
            elif not any(result in self._cuts for result in op.results) and not self._reduce(op):
                self._put_together(op)
        self._return()
        erase_dead(self._loop.body)
        erase_dead(self._block)

    def _find_homes(self, op: ir.Operation) -> None:
        """Finds out whether the result of `op` is known in blocks, and on which meshes.

        It is known in blocks if none of its rows depends on another row, and all operands in blocks have them on the
        same meshes.
        """
        result = op.results[0]
        operands = [op.operands[0]] if is_by_rows(op) and len(op.operands) == 1 else []
        if not operands and (along := mapped(op)) is not None:
            operands = [value for value, dimension in filter(None, along.operands) if dimension == 0]
        found = {cut.homes: cut for each in operands if (cut := self._cuts.get(each)) is not None}
        cut = next(iter(found.values())) if len(found) == 1 else None
        if op.name == "stablehlo.concatenate" and ir.IntegerAttr(op.attributes["dimension"]).value == 0:
            cut = self._cut_of_pieces(op)
        if cut is not None and shape_of(result)[0] % len(cut.homes) == 0:
            self._cuts[result] = cut
            self._adopt(operands, cut)

    def _adopt(self, operands: list[ir.Value], cut: _Cut) -> None:
        """Cuts operands that are combined with blocks, such as a decayed moment to which the gradient is added."""
        work = [value for value in operands if value not in self._cuts]
        while work:
            value = work.pop()
            op = defining_op(value)
            if op is None:
                if value in self._may_cut:
                    self._cuts[value] = cut
            elif op.block == self._block and not is_uniform(value, 0) and (along := mapped(op)) is not None:
                rows = [each for each, dimension in filter(None, along.operands) if dimension == 0]
                if rows and all(self._cuts.get(each, cut).homes == cut.homes for each in rows):
                    self._cuts[value] = cut
                    work += [each for each in rows if each not in self._cuts]

    def _cut_versions(self) -> bool:
        """Cuts older weights, which a step only hands on, into the blocks of the weights that they were or become.

        Returns whether there were any. The loop does not read all of them: if it takes gradients of weights that are
        two steps old, nothing reads those that are one step old.
        """
        found = len(self._cuts)
        for value, fed in self._state():
            for known, other in ((value, fed), (fed, value)):
                if known in self._cuts and other in self._may_cut and other not in self._cuts:
                    self._cuts[other] = self._cuts[known]
        return len(self._cuts) > found

    def _state(self) -> list[tuple[ir.Value, ir.Value]]:
        """Returns pairs of a result of a step and the argument that it is in the next one."""
        returned, arguments = stored(self._module, list(self._ops[-1].operands)), self._block.arguments
        pairs = zip(returned, self._fed, strict=False)
        return [(value, arguments[fed]) for value, fed in pairs if 0 <= fed < len(arguments)]

    @property
    def _fed(self) -> list[int]:
        """Returns for each result of `@main` the index of the argument that it is in the next step, or -1."""
        found = (entry.get(at.FEEDS) for entry in at.result_attributes(self._main))
        return [feeds.value if isinstance(feeds, ir.IntegerAttr) else -1 for feeds in found]

    def _cut_of_pieces(self, op: ir.Operation) -> _Cut | None:
        """Returns the blocks for a concatenation that may be the gradient of a stack, on the meshes of most rows.

        Among stacks on these meshes it is the one whose padding is closest to the share of rows that no stage makes.
        """
        found = self._of_shape.get(tuple(shape_of(op.results[0])), set())
        made = [self._home_of(piece) for piece in op.operands]
        sizes = [shape_of(piece)[0] for piece in op.operands]
        firsts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]

        def fitting(homes: Homes) -> int:
            where = [homes[first * len(homes) // sum(sizes)] for first in firsts]
            return sum(mesh in (None, home) for mesh, home in zip(made, where, strict=True))

        nowhere = sum(size for mesh, size in zip(made, sizes, strict=True) if mesh is None) / sum(sizes)
        best = max(sorted(found), key=lambda cut: (fitting(cut.homes), -abs(cut.padding - nowhere)), default=None)
        return best if best is not None and fitting(best.homes) else None

    def _home_of(self, value: ir.Value) -> int | None:
        """Returns the mesh of the stage that makes a row or its operands; None for a row that comes from no stage."""
        value = origin(value, lambda op: op != self._loop.op and is_by_rows(op))
        made = defining_op(value) == self._loop.op
        return self._reads.result_homes[ir.OpResult(value).result_number] if made else None

    def _sliced(self, argument: ir.Value, homes: Homes) -> Pieces:
        """Returns the blocks of an argument, as slices at the beginning of `@main`."""
        ip, size = ir.InsertionPoint.at_block_begin(self._block), shape_of(argument)[0] // len(homes)
        blocks = [rows_of(argument, 0, number * size, size, ip) for number in range(len(homes))]
        return Pieces(0, [Piece(n * size, size, Rows(block, 0, 0, size)) for n, block in enumerate(blocks)])

    def _blocks(self, value: ir.Value, homes: Homes, before: ir.Operation) -> list[ir.Value]:
        size = shape_of(value)[0] // len(homes)
        return [self._evaluator.make(value, number * size, size, before) for number in range(len(homes))]

    def _read_block(self, op: ir.Operation, read: Read, count: int) -> None:
        """Makes a read of rows before the loop take them out of their block."""
        (number, first), size = read.block(count), read.total // count
        block = self._evaluator.make(op.operands[0], number * size, size, op)
        op.results[0].replace_all_uses_with(rows_of(block, 0, first, read.rows, ir.InsertionPoint(op)))

    def _read_blocks(self) -> None:
        """Makes the loop read rows out of their blocks; rows of other meshes' blocks are read before the loop."""
        reads = dict[ir.Value, tuple[Read, int, bool]]()
        for stack in self._reads.stacks.values():
            for read, is_whole in zip(stack.reads, stack.whole_blocks(), strict=True):
                reads[read.op.results[0]] = (read, len(stack.homes), is_whole)
        all_whole = all(is_whole for _, _, is_whole in reads.values())
        blocks, rows = dict[tuple[ir.Value, int], ir.Value](), dict[tuple[ir.Value, int, int], ir.Value]()
        outside = dict[ir.Value, ir.Value]()
        for op in operations(self._loop.body)[:-1]:
            read, count, is_whole = reads.get(op.results[0], (None, 0, False)) if len(op.results) else (None, 0, False)
            if read is None:
                continue
            (number, first), size, source = read.block(count), read.total // count, op.operands[0]
            if (source, number) not in blocks:
                before, value = (op, source) if all_whole else (self._loop.op, self._outside(source, outside))
                blocks[source, number] = self._evaluator.make(value, number * size, size, before)
            block = blocks[source, number]
            key = (block, first, read.rows)
            if is_whole or key not in rows:
                rows[key] = rows_of(block, 0, first, read.rows, ir.InsertionPoint(op if is_whole else self._loop.op))
            op.results[0].replace_all_uses_with(rows[key])

    def _outside(self, value: ir.Value, outside: dict[ir.Value, ir.Value]) -> ir.Value:
        """Returns a copy of a loop-invariant `value` before the loop; `outside` maps values to existing copies."""
        behind = values_behind([value], self._loop.body)
        makers = (defining_op(each) for each in behind if each not in outside)
        ops = {op.results[0]: op for op in makers if op is not None and op.block == self._loop.body}
        for op in sorted(ops.values(), key=program_order):
            if boundary.is_barrier(op):
                values = zip(op.results, op.operands, strict=True)
                outside.update((result, outside.get(operand, operand)) for result, operand in values)
                continue
            copy = clone(op, outside, ir.InsertionPoint(self._loop.op))
            if at.TASK in copy.attributes:
                del copy.attributes[at.TASK]
        return outside.get(value, value)

    def _reduce(self, op: ir.Operation) -> bool:
        """Reduces each block of a value separately, then combines the results; returns False if `op` is no such
        reduction.
        """
        if op.name != "stablehlo.reduce" or len(op.operands) != 2 or op.operands[0] not in self._cuts:
            return False
        (value, first), operator = op.operands, reducer(op)
        # Each block starts from `first`, which must not count twice.
        if operator is None or not (operator in IDEMPOTENT or (operator == "stablehlo.add" and is_zero(first))):
            return False
        ip, result = ir.InsertionPoint(op), op.results[0]
        blocks = self._blocks(value, self._cuts[value].homes, op)
        parts = [clone_as(op, [block, first], result.type, ip) for block in blocks]
        result.replace_all_uses_with(combine(operator, parts, ip, op.location))
        return True

    def _put_together(self, op: ir.Operation) -> None:
        """Concatenates the blocks of each operand of which `op` needs all rows."""
        for part in (op, *nested(op)):
            for number, value in enumerate(part.operands):
                if value in self._cuts:
                    part.operands[number] = self._all_rows(value, op)

    def _all_rows(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        if value not in self._whole:
            blocks = self._blocks(value, self._cuts[value].homes, before)
            self._whole[value] = concatenation(blocks, 0, ir.InsertionPoint(before))
        return self._whole[value]

    @property
    def padded_bytes(self) -> int:
        """The bytes of the rows that no stage reads, over all stacks in blocks."""
        cut = [value for value in self._block.arguments if value in self._cuts]
        return sum(round(self._cuts[value].padding * byte_size(value.type)) for value in cut)

    def _return(self) -> None:
        """Returns a result in blocks if it is known in blocks, or is an argument in blocks of the next step.

        In a loop over steps only results that are state may be in blocks.
        """
        arguments, results = at.argument_attributes(self._main), at.result_attributes(self._main)
        cuts, end = [self._cuts.get(value) for value in self._block.arguments], self._ops[-1]
        kept = stored(self._module, list(end.operands))
        for number, (value, fed) in enumerate(zip(kept, self._fed, strict=False)):
            cut = cuts[fed] if 0 <= fed < len(cuts) else self._cuts.get(value)
            if cut is not None:
                end.operands[number] = concatenation(self._blocks(value, cut.homes, end), 0, ir.InsertionPoint(end))
                results[number][at.BLOCKS] = at.i64s(cut.homes)
        for number, value in list(enumerate(end.operands)):
            if value in self._cuts and at.BLOCKS not in results[number]:
                end.operands[number] = self._all_rows(value, end)
        for entry, cut in zip(arguments, cuts, strict=True):
            if cut is not None:
                entry[at.BLOCKS] = at.i64s(cut.homes)
        at.set_tables(self._main, arguments, results)
