"""Chooses the values that a stage's forward keeps and the operations that its recompute runs."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.dependences import Dependences
from jaxpp.hlo_passes.stages.kept_values import Keep
from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.hlo_passes.stages.ties import ties
from jaxpp.hlo_passes.stages.two_halves import Halved, write_constructs
from jaxpp.ir.counted import is_counted
from jaxpp.ir.errors import PassError
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import blocks_of, has_side_effect, nested, operations
from jaxpp.ir.locations import source_of
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import shape_of, traits
from jaxpp.ir.recomputation import OpNode, Recomputation, ValueNode
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import byte_size, is_used


@dataclass(frozen=True)
class Remaking:
    """The operations of a recompute.

    Attributes:
        ops: the operations, in program order.
        twins: maps values that the forward makes too to the values that replace them in the recompute.
        replaced: the loops that were split in two.
    """

    ops: list[ir.Operation]
    twins: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])
    replaced: Sequence[ir.Operation] = ()


class Forward:
    """The computation of a forward's residuals.

    A loop that runs a known number of times, such as a `lax.scan` over layers, is opened. Each of its operations may be
    recomputed by itself, in all trips or in none. The same holds for nested loops.

    Args:
        module: the module with the functions and meshes that the operations name.
        ops: the operations of the forward, in program order.
        residuals: the values that the backward reads.
        free: the arguments that the backward has anyway, such as weights and the batch.
        together: groups of residuals that one operation of the backward reads whose result jumps; see `ties`.
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
        self._body = body = Numbered(ops)
        self._behind = body.behind(residuals)
        self._free = set(free)
        self._loops: dict[ir.Value, OpenLoop] = {}  # the key is the loop's first result
        self._pairs = [(ops[number], body.operands[number]) for number in self._behind]
        self._find_free(self._pairs)
        self._residuals = residuals

    def recomputed(self, keep: Keep, handed_on: Collection[ir.Value] = ()) -> Remaking:
        """Returns the operations of the recompute, and splits the loops that it runs in part.

        Args:
            keep: the limits on the kept values.
            handed_on: the values that the forward makes for other tasks than its own backward.

        Raises:
            PassError: the forward can't keep as few bytes as `keep` allows.
        """
        if keep.inputs:
            return _without_effects([op for op, _ in self._pairs])
        choice, builder = self._choice(keep)
        again = choice.fewest_bytes(self.budget(keep)) if keep.size is None else _fewest_flops(choice, keep.size)
        if again is None:
            least = choice.kept_bytes(choice.fewest_bytes())
            first = next((op for op in self._body.ops if source_of(op.location)), self._body.ops[0])
            raise PassError(
                f"a forward can't keep as little as {keep.size:,} bytes of a microbatch: {least:,} is the least",
                location=first.location,
                hint="keep more, or offload what is kept",
            )
        return self._divided([builder.values[number] for number in choice.kept(again)], handed_on)

    def choices(self, count: int) -> list[tuple[int, int]]:
        """Returns choices as (kept bytes, recomputed FLOPs), from keeping all residuals to keeping the fewest bytes.

        After the first one there are up to `count` more. Each has the fewest FLOPs for its bytes. The bytes are for one
        microbatch, on all devices of the mesh together.
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
        """Returns the most FLOPs that a recompute may take; None for no limit."""
        if keep.budget is None:
            return None
        return math.floor(keep.budget * sum(map(self._counter.of, self._body.ops)))

    def _loop(self, op: ir.Operation) -> OpenLoop | None:
        """Returns `op` as an opened loop; None unless it is a loop that runs a known number of times."""
        return self._loops.get(op.results[0]) if len(op.results) else None

    def _find_free(self, pairs: Iterable[tuple[ir.Operation, Sequence[ir.Value]]]) -> None:
        """Opens the counted loops, and adds values made from free values without FLOPs to the free ones.

        Examples are constants, masks of positions and slices. A scalar made from free values is free even if it takes
        FLOPs.
        """
        for op, operands in pairs:
            scalar = all(not shape_of(result) for result in op.results) and not len(op.regions)
            no_work = (scalar or not self._counter.of(op)) and not has_side_effect(op)
            if no_work and self._free.issuperset(operands):
                self._free.update(op.results)
            elif is_counted(op):
                loop = self._loops[op.results[0]] = OpenLoop(op)
                self._free.update(loop.counts)
                self._find_free(zip(loop.body.ops, loop.body.operands, strict=True))
                self._free.update(op.results[position] for position, row in loop.stacks.items() if row in self._free)

    def _choice(self, keep: Keep) -> tuple[Recomputation, "_RecomputationBuilder"]:
        """Returns the choice, and the builder that knows the values and operations of its numbers."""
        builder = _RecomputationBuilder(self._free, self._together)
        self._add_all(builder, self._pairs, keep)
        return builder.choice(self._residuals), builder

    def _add_all(
        self,
        builder: "_RecomputationBuilder",
        ops: Iterable[tuple[ir.Operation, Sequence[ir.Value]]],
        keep: Keep,
        trips: int = 1,
    ) -> None:
        """Adds operations that run `trips` times, each with the values that it uses. Opens the counted loops."""
        for op, operands in ops:
            loop = self._loop(op)
            if loop is None:
                flops = self._counter.of(op) if self._may_repeat(op, keep) else None
                builder.add(op, operands, flops, trips)
                continue
            builder.add_loop(loop, trips)
            writes = {loop.following[position] for position in loop.stacks}
            pairs = zip(loop.body.ops, loop.body.operands, strict=True)
            inside = (pair for pair in pairs if writes.isdisjoint(pair[0].results))
            self._add_all(builder, inside, keep, trips * loop.trips)
            builder.add_stacks(loop)

    def _may_repeat(self, op: ir.Operation, keep: Keep) -> bool:
        if has_side_effect(op):
            return False
        return keep.repeats_products or not any(map(_is_costly, (op, *nested(op))))

    def _divided(self, values: Sequence[ir.Value], handed_on: Collection[ir.Value]) -> Remaking:
        """Returns the recompute that makes the residuals of these values, which the forward keeps.

        Splits the loops that the recompute runs: it may need only some of the values that they carry.
        """
        body, kept = self._body, dict.fromkeys(values)
        kept.update(dict.fromkeys(self._stacks_of(kept)))
        late, split = set[ir.Value](), list[ir.Operation]()
        if self._loops:
            opened = Dependences(body, [loop.op for loop in self._loops.values()])
            late = opened.values_behind(self._residuals, dict.fromkeys(kept, ())).difference(kept)
            split = [op for op in opened.constructs if not late.isdisjoint(op.results)]
        there, twins = list(kept), dict[ir.Value, ir.Value]()
        if split:
            needs = Dependences(body, split)
            effects = [value for number in needs.acting for value in (*needs.results[number], *needs.operands[number])]
            early = needs.values_behind([*handed_on, *kept, *effects])
            acting = [needs.ops[number] for number in needs.acting]
            halved = Halved(split, early, late, there, (acting, []), {}, twins)
            there = write_constructs(halved, self._mesh)
            body = Numbered(operations(body.ops[0].block)[:-1])
        residuals = [twins.get(value, value) for value in self._residuals if value not in kept]
        _, again = body.part(residuals, {old: [new] for old, new in twins.items()} | dict.fromkeys(there, ()))
        return Remaking([body.ops[number] for number in again], twins, split)

    def _stacks_of(self, kept: Collection[ir.Value]) -> list[ir.Value]:
        """Returns the stacks of kept values that loops make anyway, and the stacks of those stacks."""
        found: list[ir.Value] = []
        for loop in reversed(self._loops.values()):  # inner loops come before outer ones
            rows = ((position, row) for position, row in loop.stacks.items() if row in kept or row in found)
            found += [loop.op.results[position] for position, _ in rows]
        return found


class _RecomputationBuilder:
    """Builds the choice between keeping values and recomputing operations, which have numbers in it.

    Attributes:
        values: the value of each number. A stack has the number of the value that it stacks.
        ops: the operation of each step. The step of a value that a loop carries has the loop.
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
        """Adds the values that a loop carries, apart from counters and stacks, if it runs `runs` times.

        Such a value exists in each trip. It is recomputed from its initial value and the value for the next trip.
        """
        for argument, position in loop.arguments.items():
            if argument not in loop.counts and position not in loop.stacks:
                step = self._step(loop.op, [loop.op.operands[position], loop.following[position]], 0)
                self._add(argument, runs * loop.trips, step)
                self._add(loop.op.results[position], runs, step)

    def add(self, op: ir.Operation, operands: Sequence[ir.Value], flops: int | None, trips: int = 1) -> None:
        """Adds an operation that runs `trips` times; `flops` is None if it must not be recomputed."""
        if self._free.isdisjoint(op.results):
            step = self._step(op, operands, None if flops is None else flops * trips)
            for result in op.results:
                self._add(result, trips, step)

    def add_stacks(self, loop: OpenLoop) -> None:
        """Adds the stacks that a loop makes. Keeping a stack is the same as keeping its value in each trip."""
        for position, row in loop.stacks.items():
            if row not in self._free:
                self._numbers[loop.op.results[position]] = self._number(row)
                self._rows[loop.op.results[position]] = row

    def choice(self, wanted: Sequence[ir.Value]) -> Recomputation:
        """Returns the choice, if the backward reads the values `wanted`."""
        steps = [OpNode(self._all(operands), flops) for operands, flops in self._steps]
        numbers = self._all(wanted)
        return Recomputation(tuple(self._sizes), tuple(steps), numbers, tuple(self._ties()))

    def _ties(self) -> Iterator[tuple[int, int]]:
        """Yields the pairs of a value and a step for `Recomputation.ties`."""
        body = Numbered(self.ops)
        again = [number for number, (_, flops) in enumerate(self._steps) if flops is not None]
        together = [[self._rows.get(value, value) for value in values] for values in self._together]
        for kept, step in ties(body, again, set(again).__contains__, together):
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


@lru_cache(maxsize=64)  # stages are often alike, and a search calls this repeatedly
def _fewest_flops(choice: Recomputation, size: int) -> frozenset[int] | None:
    again = choice.fewest_flops(size)
    return None if again is None else frozenset(again)


def _is_costly(op: ir.Operation) -> bool:
    """Whether a selective recompute never runs `op`: a product with weights, another kind of product, or a collective.

    A matrix product with batch dimensions multiplies activations with each other, as in attention. `jax.checkpoint`
    makes the same distinction (`dots_with_no_batch_dims_saveable`).
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
