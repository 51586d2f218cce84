"""Divides a block inside a backward, the body of a loop or a branch of a conditional, into an early and a late half."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.halves import may_be_in_either
from jaxpp.ir.build import NONE
from jaxpp.ir.counted import counters
from jaxpp.ir.functions import blocks_of, operands_with_captures, operations
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap


@dataclass
class Known:
    """The known properties of a backward's values, also of values inside its loops and conditionals.

    Attributes:
        early: the values that the early half makes.
        free: the values that both halves can have at no cost: weights, loop counters, and cheap results of free values.
        arguments: the arguments of the backward that the microbatch loop does not carry.
        replaced: the results of loops and conditionals that were divided.
    """

    early: set[ir.Value]
    free: set[ir.Value]
    arguments: set[ir.Value]
    replaced: set[ir.Value] = field(default_factory=set[ir.Value])

    def add_free(self, ops: Iterable[ir.Operation], opened: Collection[ir.Operation]) -> None:
        """Adds the free results of `ops`, and the free values inside the loops and conditionals in `opened`."""
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
        """Records that two operations replace `op`, and that the early one of them makes the values `first`."""
        self.replaced.update(op.results)
        self.early.difference_update(op.results)
        self.early.update(first)


class BlockHalves:
    """A block of numbered operations, as the two halves between which `cut.divide` moves operations.

    The late half does not wait at a barrier of `jax.checkpoint`: it reads the barrier's operands, not its results.

    Attributes:
        body: the operations of the block, without those that two others replace.
        before_barriers: maps each result of a barrier to the value that enters the first barrier of its chain.
        values: the values that the early half has.
        early: the operations that make `values`.
        late: the operations that only the late half needs, in program order, as `find_late` finds them.

    Args:
        ops: the operations of the body of a loop, or of a branch of a conditional.
        known: the properties of the backward's values.
        wanted: values that the early half has to make besides `known.early`.
        following: in the body of a loop, maps each argument to the value that the next trip gets for it.
    """

    late: list[int]

    def __init__(
        self,
        ops: Iterable[ir.Operation],
        known: Known,
        wanted: Iterable[ir.Value],
        following: Mapping[ir.Value, ir.Value] = NONE,
    ) -> None:
        self.known, self.following = known, following
        ops = [op for op in ops if known.replaced.isdisjoint(op.results)]
        self.before_barriers = _before_barriers(ops)
        self.body = Numbered(ops, self.before_barriers)
        roots = [value for value in (*following, *self.body.producers) if value in known.early]
        self._carried = {argument: [value] for argument, value in following.items()}
        self.values = Numbered(ops).values_behind([*roots, *wanted], self._carried)
        self.early = set(self.body.making(self.values))

    def past(self, value: ir.Value) -> ir.Value:
        """Returns the value that enters the chain of barriers that ends in `value`; `value` itself if none does."""
        return self.before_barriers.get(value, value)

    def find_late(self, roots: Iterable[ir.Value]) -> set[ir.Value]:
        """Sets `late`. Returns the values that only the late half needs.

        The late half needs `roots`, its operations with side effects, and everything on which these depend.
        """
        effects = set(self.body.acting) - self.early
        acting = [value for op in effects for value in (*self.body.results[op], *self.body.operands[op])]
        past = {result: [value] for result, value in self.before_barriers.items()}
        values = self.body.values_behind([*roots, *acting], self._carried | past)
        values.difference_update(self.values, self.before_barriers)
        self.late = sorted(effects.union(self.body.making(values)) - self.early)
        return values

    def all(self, numbers: Iterable[int]) -> list[ir.Operation]:
        """Returns the operations with these numbers."""
        return [self.body.ops[number] for number in numbers]

    def late_barriers(self) -> dict[ir.Value, ir.Value]:
        """Returns the part of `before_barriers` for barrier results that the early half lacks."""
        return {result: value for result, value in self.before_barriers.items() if result not in self.values}

    def is_free(self, value: ir.Value) -> bool:
        """Implements `cut.Halves`: a value that the block makes is never free."""
        return value in self.known.free and value not in self.body.producers

    def is_early(self, value: ir.Value) -> bool:
        """Implements `cut.Halves`, for values from inside and outside of the block."""
        if value in self.body.producers:
            return self.body.producers[value] in self.early
        if value in self.following:
            return value in self.values
        return value in self.known.early or value in self.known.arguments

    def may_move(self, op: int) -> bool:
        """Implements `cut.Halves`, by `may_be_in_either`."""
        return may_be_in_either(self.body.ops[op])

    def may_repeat(self, op: int) -> bool:
        """Implements `cut.Halves`: an early operation may be repeated if it is cheap."""
        return op in self.early and is_cheap(self.body.ops[op])


def _before_barriers(ops: Iterable[ir.Operation]) -> dict[ir.Value, ir.Value]:
    """Returns, for each result of a barrier, the value that enters the first barrier of its chain."""
    before: dict[ir.Value, ir.Value] = {}
    for op in ops:
        if op.name == "stablehlo.optimization_barrier":
            for result, value in zip(op.results, op.operands, strict=True):
                before[result] = before.get(value, value)
    return before
