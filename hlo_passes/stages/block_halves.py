"""The two halves of the operations of a block inside of a backward: the body of a loop, a branch of a conditional."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.dependences import Dependences
from jaxpp.hlo_passes.stages.halves import may_be_in_either
from jaxpp.ir.counted import counters
from jaxpp.ir.functions import blocks_of, has_side_effect, operands_with_captures, operations
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap


@dataclass
class Known:
    """What is known of the values of a backward, also inside of its loops and conditionals.

    Attributes:
        early: those that the first half makes.
        free: those that both halves can have at no cost: weights, counters of loops, what is cheaply made of these.
        arguments: those that are there before the first half.
        replaced: the results of loops and conditionals that were divided.
    """

    early: set[ir.Value]
    free: set[ir.Value]
    arguments: set[ir.Value]
    replaced: set[ir.Value] = field(default_factory=set[ir.Value])

    def add_free(self, ops: Iterable[ir.Operation], opened: Collection[ir.Operation]) -> None:
        """Find what is free among the results of `ops` and inside of those that are `opened`."""
        for op in ops:
            if op in opened:
                if op.name == "stablehlo.while":
                    body = blocks_of(op)[-1]
                    self.free.update(body.arguments[position] for position, *_ in counters(op))
                for block in blocks_of(op):
                    self.add_free(operations(block), opened)
            elif is_cheap(op) and all(value in self.free for value in operands_with_captures(op)):
                self.free.update(op.results)

    def divided(self, op: ir.Operation, first: Iterable[ir.Value]) -> None:
        """Note that `op` was divided, and what the first of the two that stand for it makes."""
        self.replaced.update(op.results)
        self.early.difference_update(op.results)
        self.early.update(first)


class BlockHalves:
    """The operations of a block, numbered, as the halves that `cut.divide` moves operations between.

    The late half reads the operands of a barrier of `jax.checkpoint`, not its results: it need not wait.

    Attributes:
        body: the operations of the block.
        before_barriers: for each result of a barrier the value before all barriers.
        values: what the early half has.
        early: the operations that make these.

    Args:
        block: whose operations these are.
        known: what is known of the backward.
        wanted: what the early half has to make besides what is known to be early.
        following: in the body of a loop, for each argument what the next trip gets.
    """

    def __init__(
        self,
        block: ir.Block,
        known: Known,
        wanted: Iterable[ir.Value],
        following: Mapping[ir.Value, ir.Value] | None = None,
    ) -> None:
        ops = [op for op in operations(block)[:-1] if known.replaced.isdisjoint(op.results)]
        self.known, self.following = known, following or {}
        self.before_barriers = _before_barriers(ops)
        self.body = Numbered(ops, self.before_barriers)
        roots = [value for value in (*self.following, *self.body.producers) if value in known.early]
        self.values = Dependences(Numbered(ops), instead=self.following).behind([*roots, *wanted])
        self.early = self.making(self.values)

    def past(self, value: ir.Value) -> ir.Value:
        """The value before all barriers."""
        return self.before_barriers.get(value, value)

    def making(self, values: Collection[ir.Value]) -> set[int]:
        """The operations that make any of `values`."""
        return {number for number, op in enumerate(self.body.ops) if any(result in values for result in op.results)}

    def find_late(self, roots: Iterable[ir.Value]) -> tuple[set[ir.Value], list[int]]:
        """The values that only the late half needs for `roots`, or for effects, and the operations that make them."""
        late = [number for number in range(len(self.body.ops)) if number not in self.early]
        effects = {number for number in late if has_side_effect(self.body.ops[number])}
        acting = [value for op in effects for value in (*self.body.results[op], *self.body.operands[op])]
        needs = Dependences(self.body, instead={**self.following, **self.before_barriers})
        values = needs.behind([*roots, *acting]).difference(self.values, self.before_barriers)
        needed = effects | self.making(values)
        return values, [op for op in late if op in needed]

    def all(self, numbers: Iterable[int]) -> list[ir.Operation]:
        """The operations of these numbers."""
        return [self.body.ops[number] for number in numbers]

    def late_barriers(self) -> dict[ir.Value, ir.Value]:
        """For each result of a barrier that the first half does not have, the value before the barrier."""
        return {result: value for result, value in self.before_barriers.items() if result not in self.values}

    def is_free(self, value: ir.Value) -> bool:
        """As `cut.Halves` asks."""
        return value in self.known.free and value not in self.body.producers

    def is_early(self, value: ir.Value) -> bool:
        """As `cut.Halves` asks."""
        if value in self.body.producers:
            return self.body.producers[value] in self.early
        if value in self.following:
            return value in self.values
        return value in self.known.early or value in self.known.arguments

    def may_move(self, op: int) -> bool:
        """As `cut.Halves` asks."""
        return may_be_in_either(self.body.ops[op])

    def may_repeat(self, op: int) -> bool:
        """As `cut.Halves` asks."""
        return op in self.early and is_cheap(self.body.ops[op])


def _before_barriers(ops: Iterable[ir.Operation]) -> dict[ir.Value, ir.Value]:
    """Return for each result of a barrier the value before all barriers."""
    before: dict[ir.Value, ir.Value] = {}
    for op in ops:
        if op.name == "stablehlo.optimization_barrier":
            for result, value in zip(op.results, op.operands, strict=True):
                before[result] = before.get(value, value)
    return before


def made_by(body: Numbered, numbers: Sequence[int]) -> list[ir.Value]:
    """The results of these operations."""
    return [result for number in numbers for result in body.results[number]]
