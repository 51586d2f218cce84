"""The forward of a stage, and the minimum cut that says what of it is kept and what is computed again."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.kept_values import Keep
from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.hlo_passes.stages.ties import deciding, ties
from jaxpp.hlo_passes.stages.two_loops import Divided
from jaxpp.ir.counted import is_counted
from jaxpp.ir.errors import PassError
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import blocks_of, has_side_effect, nested, operands_with_captures, operations
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import shape_of, traits
from jaxpp.ir.recomputation import OpNode, Recomputation, ValueNode
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import byte_size, is_used


@dataclass(frozen=True)
class Remaking:
    """What a recompute does.

    Attributes:
        ops: its operations, in program order.
        twins: for values that the forward makes too, by a loop of its own, those that stand for them here.
        replaced: the loops that two others stand for.
    """

    ops: list[ir.Operation]
    twins: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])
    replaced: Sequence[ir.Operation] = ()


class Forward:
    """The computation of a forward, as far as its residuals depend on it.

    Of a loop that runs a known number of times, as that of a scan over layers, each operation is one of its own: done
    again in all trips, or in none. So it is with loops inside of it.

    Args:
        module: whose functions and meshes its operations name.
        ops: the operations of the forward, in program order.
        residuals: the values that the backward reads.
        free: arguments that are there for the backward anyway: weights, the batch.
        together: of the residuals, those that an operation reads together whose result jumps (see `ties`).
    """

    def __init__(
        self,
        module: ir.Module,
        ops: Sequence[ir.Operation],
        residuals: Sequence[ir.Value],
        free: Collection[ir.Value],
        together: Sequence[Sequence[ir.Value]] = (),
    ) -> None:
        self._together = together
        self._counter = FlopCounter(module)
        self._mesh = MeshAxes.of(module)
        self._all_ops = ops
        self._ops = behind(ops, residuals)
        self._free = set(free)
        self._loops: dict[ir.Value, OpenLoop] = {}  # by their first result
        self._operands = [operands_with_captures(op) for op in self._ops]
        self._find_free(self._ops, self._operands)
        self._residuals = residuals
        self._replaced: list[ir.Operation] = []

    def recomputed(self, keep: Keep, handed_on: Collection[ir.Value] = ()) -> Remaking:
        """What the recompute does; loops that it does in part are divided.

        Args:
            keep: what the forward keeps.
            handed_on: what the forward makes for others.

        Raises:
            PassError: it can't keep as few bytes.
        """
        if keep.inputs:
            return _without_effects(self._ops)
        choice, builder = self._choice(keep)
        again = choice.fewest_bytes(self.budget(keep)) if keep.size is None else _fewest_flops(choice, keep.size)
        if again is None:
            least = choice.kept_bytes(choice.fewest_bytes())
            raise PassError(
                f"a forward can't keep as little as {keep.size:,} bytes of a microbatch: {least:,} is the least",
                location=self._all_ops[0].location,
                hint="keep more, or offload what is kept",
            )
        block = self._all_ops[0].block
        done = [op for op in map(builder.ops.__getitem__, again) if op.block == block and self._loop(op) is None]
        kept = dict.fromkeys(builder.values[number] for number in choice.kept(again))
        return self._divided(done, kept, handed_on)

    def choices(self, count: int) -> list[tuple[int, int]]:
        """From all residuals kept to the least: (bytes that are kept, FLOPs that are done again), up to `count` more.

        Each has the fewest FLOPs for its bytes; the bytes of all devices of the mesh together, of one microbatch.
        """
        choice, _ = self._choice(Keep(budget=1))
        most, least = choice.kept_bytes(set()), choice.kept_bytes(choice.fewest_bytes())
        found: list[Set[int]] = [set()]
        for number in range(1, count + 1):
            again = _fewest_flops(choice, most - number * (most - least) // count)
            if again is not None and choice.kept_bytes(again) < choice.kept_bytes(found[-1]):
                found.append(again)
        return [(choice.kept_bytes(again), choice.flops(again)) for again in found]

    def budget(self, keep: Keep) -> int | None:
        """The FLOPs that a recompute may take; None for any number."""
        if keep.budget is None:
            return None
        return math.floor(keep.budget * sum(map(self._counter.of, self._all_ops)))

    def _loop(self, op: ir.Operation) -> OpenLoop | None:
        """The loop that `op` is, if it runs a known number of times."""
        return self._loops.get(op.results[0]) if len(op.results) else None

    def _find_free(self, ops: Iterable[ir.Operation], uses: Iterable[Sequence[ir.Value]]) -> None:
        """Find what is made of free values without a FLOP: constants, masks of positions, slices, and any scalar."""
        for op, operands in zip(ops, uses, strict=True):
            scalar = all(not shape_of(result) for result in op.results) and not len(op.regions)
            no_work = (scalar or not self._counter.of(op)) and not has_side_effect(op)
            if no_work and self._free.issuperset(operands):
                self._free.update(op.results)
            elif is_counted(op):
                loop = self._loops[op.results[0]] = OpenLoop(op)
                self._free.update(loop.counts)
                self._find_free(loop.ops, loop.operands)
                self._free.update(op.results[position] for position, row in loop.stacks.items() if row in self._free)

    def _choice(self, keep: Keep) -> tuple[Recomputation, "_RecomputationBuilder"]:
        """The choice that there is, and what its numbers stand for."""
        builder = _RecomputationBuilder(self._free, self._together)
        self._add_all(builder, zip(self._ops, self._operands, strict=True), keep)
        return builder.choice(self._residuals), builder

    def _add_all(
        self,
        builder: "_RecomputationBuilder",
        ops: Iterable[tuple[ir.Operation, Sequence[ir.Value]]],
        keep: Keep,
        trips: int = 1,
    ) -> None:
        """Add operations that run `trips` times, each with what it uses; those inside of loops one by one."""
        for op, operands in ops:
            loop = self._loop(op)
            if loop is None:
                flops = self._counter.of(op) if self._may_repeat(op, keep) else None
                builder.add(op, operands, flops, trips)
                continue
            builder.add_loop(loop, trips)
            writes = {loop.following[position] for position in loop.stacks}
            pairs = zip(loop.ops, loop.operands, strict=True)
            inside = (pair for pair in pairs if writes.isdisjoint(pair[0].results))
            self._add_all(builder, inside, keep, trips * loop.trips)
            builder.add_stacks(loop)

    def _may_repeat(self, op: ir.Operation, keep: Keep) -> bool:
        if has_side_effect(op):
            return False
        return keep.repeats_products or not any(map(_is_costly, (op, *nested(op))))

    def _divided(
        self, again: Collection[ir.Operation], kept: Collection[ir.Value], handed_on: Collection[ir.Value]
    ) -> Remaking:
        """The operations `again`, what is free of what is read, and loops; those that are done in part are divided.

        From the last operation to the first, as a loop that is divided changes the operands of what stands behind it.
        """
        kept = dict.fromkeys([*kept, *self._stacks_of(kept)])
        loops = [loop for op in self._ops if (loop := self._loop(op)) is not None]
        rows = [loop.op.results[0] for loop in loops if not self._within(loop).isdisjoint(kept)]
        here = behind(self._all_ops, [*handed_on, *kept, *rows], effects=True)
        needed = {value for op in here for value in operands_with_captures(op)}.union(handed_on, kept)
        wanted = {value for op in again for value in operands_with_captures(op)}.union(self._residuals)
        done = {result for op in again for result in op.results}
        twins: dict[ir.Value, ir.Value] = {}
        for op in reversed(self._ops):
            if self._loop(op) is None:
                if any(result in wanted and result in self._free for result in op.results):
                    done.update(op.results)
                    wanted.update(operands_with_captures(op))
                continue
            second = [p for p, result in enumerate(op.results) if result in wanted and result not in kept]
            made = op
            if second and op in here:
                first = [p for p, result in enumerate(op.results) if result in needed]
                divided = self._divide(op, first, second, kept)
                made = divided.second
                twins |= divided.twins
            if second:
                done.update(made.results)
                wanted.update(operands_with_captures(made))
        ops = [op for op in operations(self._all_ops[0].block) if not done.isdisjoint(op.results)]
        return Remaking(ops, twins, self._replaced)

    def _divide(
        self, op: ir.Operation, first: Collection[int], second: Collection[int], kept: Collection[ir.Value]
    ) -> Divided:
        """Divide a loop, and before it those inside of it that are done again, from the last one to the first.

        What an inner loop stacks is a value of each trip of the outer one, which stacks it in turn.
        """
        twins: dict[ir.Value, ir.Value] = {}
        kept = dict.fromkeys(kept)
        for each in reversed(OpenLoop(op).ops):
            if self._loop(each) is None:
                continue
            loop = OpenLoop(op)
            here = [value for value in kept if value in loop.inside]
            read = [loop.read(loop.half(first, here)).union(here), loop.read(loop.half(second, (), here, twins))]
            mine, again = ([p for p, result in enumerate(each.results) if result in values] for values in read)
            again = [position for position in again if each.results[position] not in kept]
            if again:
                divided = self._divide(each, mine, again, kept)
                twins |= divided.twins
                stand = (divided.results.get(value, value) for value in kept)
                kept = dict.fromkeys([*stand, *divided.stacks])
        loop = OpenLoop(op)
        inside = [value for value in kept if value in loop.inside]
        acting = [each for each in loop.acting if each not in self._replaced]
        self._replaced.append(op)
        return loop.divided(first, second, inside, twins, acting).write(self._mesh)

    def _within(self, loop: OpenLoop) -> set[ir.Value]:
        """The values inside of a loop, and of those inside of it."""
        inner = (each for op in loop.ops if (each := self._loop(op)) is not None)
        return loop.inside.union(*map(self._within, inner))

    def _stacks_of(self, kept: Collection[ir.Value]) -> list[ir.Value]:
        """The stacks of kept values that loops make anyway, also of such stacks."""
        found: list[ir.Value] = []
        for loop in reversed(self._loops.values()):  # from inside
            rows = ((position, row) for position, row in loop.stacks.items() if row in kept or row in found)
            found += [loop.op.results[position] for position, _ in rows]
        return found


class _RecomputationBuilder:
    """Builds the choice between keeping values and doing operations again; knows what its numbers stand for.

    Attributes:
        values: the value of each number; for a stack of what each trip of a loop makes, that value.
        ops: the operation of each step; for what a loop carries, the loop.
    """

    def __init__(self, free: Set[ir.Value], together: Sequence[Sequence[ir.Value]]) -> None:
        self._together = together
        self._rows: dict[ir.Value, ir.Value] = {}
        self.values: list[ir.Value] = []
        self.ops: list[ir.Operation] = []
        self._free = free
        self._sizes: list[ValueNode] = []
        self._numbers: dict[ir.Value, int] = {}
        self._steps: list[tuple[Sequence[ir.Value], int | None]] = []

    def add_loop(self, loop: OpenLoop, runs: int) -> None:
        """Add what a loop carries that runs so often.

        That is a value of each trip, made again if the first and what the next trip gets are.
        """
        for argument, position in loop.arguments.items():
            if argument not in loop.counts and position not in loop.stacks:
                step = self._step(loop.op, [loop.op.operands[position], loop.following[position]], 0)
                self._add(argument, runs * loop.trips, step)
                self._add(loop.op.results[position], runs, step)

    def add(self, op: ir.Operation, operands: Sequence[ir.Value], flops: int | None, trips: int = 1) -> None:
        """Add an operation that is done so often."""
        if self._free.isdisjoint(op.results):
            step = self._step(op, operands, None if flops is None else flops * trips)
            for result in op.results:
                self._add(result, trips, step)

    def add_stacks(self, loop: OpenLoop) -> None:
        """Add the stacks that a loop makes: to keep one is to keep the value of each trip, and the other way round."""
        for position, row in loop.stacks.items():
            if row not in self._free:
                self._numbers[loop.op.results[position]] = self._number(row)
                self._rows[loop.op.results[position]] = row

    def choice(self, wanted: Sequence[ir.Value]) -> Recomputation:
        """The choice, where these values are wanted."""
        steps = [OpNode(self._all(operands), flops) for operands, flops in self._steps]
        numbers = self._all(wanted)
        return Recomputation(tuple(self._sizes), tuple(steps), numbers, tuple(self._ties()))

    def _ties(self) -> Iterator[tuple[int, int]]:
        """Yields the values and the steps of `Recomputation.ties`."""
        body = Numbered(self.ops)
        again = [number for number, (_, flops) in enumerate(self._steps) if flops is not None]
        groups: list[Sequence[int]] = [*deciding(body, again)]
        for values in self._together:
            rows = (self._rows.get(value, value) for value in values)
            groups.append([body.producers[row] for row in rows if row in body.producers])
        for kept, step in ties(body, groups, set(again).__contains__):
            yield from ((self._numbers[value], step) for value in body.results[kept] if value in self._numbers)

    def _all(self, values: Sequence[ir.Value]) -> tuple[int, ...]:
        return tuple(self._number(value) for value in values if value not in self._free)

    def _number(self, value: ir.Value) -> int:
        return self._numbers[value] if value in self._numbers else self._add(value)

    def _add(self, value: ir.Value, trips: int = 1, step: int | None = None) -> int:
        self._numbers[value] = len(self.values)
        self.values.append(value)
        self._sizes.append(ValueNode(trips * byte_size(value.type), step))
        return self._numbers[value]

    def _step(self, op: ir.Operation, operands: Sequence[ir.Value], flops: int | None) -> int:
        self.ops.append(op)
        self._steps.append((operands, flops))
        return len(self.ops) - 1


@lru_cache(maxsize=64)  # stages are often alike, and a search asks again and again
def _fewest_flops(choice: Recomputation, size: int) -> frozenset[int] | None:
    again = choice.fewest_flops(size)
    return None if again is None else frozenset(again)


def _is_costly(op: ir.Operation) -> bool:
    """Whether `op` is what a selective recompute keeps the result of: a product with weights, or what may be one.

    Products with batch dimensions are those of activations with each other, as attention has them: `jax.checkpoint`
    tells them apart in the same way (`dots_with_no_batch_dims_saveable`).
    """
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return not len(numbers.lhs_batching_dimensions)
    return traits(op).product or traits(op).collective


def _without_effects(ops: Sequence[ir.Operation]) -> Remaking:
    """Returns a recompute of `ops` without the callbacks in their regions, which the forward runs."""
    again: list[ir.Operation] = []
    twins: dict[ir.Value, ir.Value] = {}
    for op in ops:
        again.append(op.clone(ir.InsertionPoint(op)).operation if len(op.regions) and has_side_effect(op) else op)
        if again[-1] is not op:
            _erase_unused(again[-1])
            twins.update(zip(op.results, again[-1].results, strict=True))
    return Remaking(again, twins)


def _erase_unused(op: ir.Operation) -> None:
    """Erases the operations in the regions of `op` whose results nobody uses, callbacks among them."""
    for inner in (inner for block in blocks_of(op) for inner in reversed(operations(block)[:-1])):
        if any(map(is_used, inner.results)):
            _erase_unused(inner)
        else:
            inner.erase()


def behind(ops: Sequence[ir.Operation], outputs: Collection[ir.Value], *, effects: bool = False) -> list[ir.Operation]:
    """Those of `ops` that `outputs` depend on, in program order; with `effects` also those that act by themselves."""
    needed, found = set(outputs), list[ir.Operation]()
    for op in reversed(ops):
        if not needed.isdisjoint(op.results) or (effects and has_side_effect(op)):
            found.append(op)
            needed.update(operands_with_captures(op))
    return found[::-1]
