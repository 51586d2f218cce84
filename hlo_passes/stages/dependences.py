"""The operations of a backward and those inside of its loops and conditionals, with the dependences of their values."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.ir.build import NONE
from jaxpp.ir.counted import is_counted
from jaxpp.ir.functions import CONDITIONALS, blocks_of, is_product, operations, terminator
from jaxpp.ir.numbered import Numbered


def opened_ops(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Returns the counted loops and the conditionals of tensors in `ops`, also nested ones."""
    found: list[ir.Operation] = []
    for op in ops:
        if is_counted(op) or (
            op.name in CONDITIONALS and all(isinstance(each.type, ir.RankedTensorType) for each in op.results)
        ):
            found += [op, *(inner for block in blocks_of(op) for inner in opened_ops(operations(block)))]
    return found


class Dependences(Numbered):
    """Operations of a block, with those inside of some loops and conditionals in place of these, without loops' tests.

    A value that an opened loop carries depends on its initial value, its value for the next trip and the loop's
    counter. Each result of an opened conditional depends on the operand that selects the branch, and on the values that
    the branches return for it. Every result of any other operation depends on all values that the operation uses, also
    in its regions.

    Attributes:
        constructs: the loops and conditionals that are opened. An outer one comes before those inside of it.
        loops: the loops among them, each with the operations inside of it.
        conditionals: the conditionals among them.
        trips: how often each value in a loop is made.
        barriers: maps each result of a barrier in `constructs` to the value that enters the first barrier of its chain.

    Args:
        body: the operations of the block.
        opened: the loops and conditionals to look into, as `opened_ops` returns them.
        instead: values that replace others, such as `barriers`.
    """

    def __init__(
        self, body: Numbered, opened: Collection[ir.Operation] = (), instead: Mapping[ir.Value, ir.Value] = NONE
    ) -> None:
        self.constructs: list[ir.Operation] = []
        self.loops: list[tuple[OpenLoop, range]] = []
        self.conditionals: list[ir.Operation] = []
        self.trips: dict[ir.Value, int] = {}
        self.barriers: dict[ir.Value, ir.Value] = {}
        self._opened = opened
        self._joined: dict[ir.Value, Sequence[ir.Value]] = {value: [other] for value, other in instead.items()}
        super().__init__(())
        self._add(body, 0)
        if instead:
            self.operands = [[instead.get(value, value) for value in operands] for operands in self.operands]
        self._link()

    def _add(self, body: Numbered, trips: int) -> None:
        """Adds operations that run `trips` times, with those inside of opened ones in place of these; 0: in no loop."""
        for op, operands, results in zip(body.ops, body.operands, body.results, strict=True):
            if op not in self._opened:
                self.ops.append(op)
                self.operands.append(operands)
                self.results.append(results)
                continue
            self.constructs.append(op)
            (self._add_loop if op.name == "stablehlo.while" else self._add_conditional)(op, trips)

    def _add_loop(self, op: ir.Operation, trips: int) -> None:
        loop, start = OpenLoop(op), len(self.ops)
        for argument, position in loop.arguments.items():
            # A loop's result and its argument are one carried value: a value that depends on one depends on both.
            result, first, following = op.results[position], op.operands[position], loop.following[position]
            self._joined[result] = [argument]
            self._joined[argument] = [result, first, following, loop.counter]
        self._add_block(loop.body, loop.arguments, max(trips, 1) * loop.trips)
        self.loops.append((loop, range(start, len(self.ops))))

    def _add_conditional(self, op: ir.Operation, trips: int) -> None:
        self.conditionals.append(op)
        returned = [list(terminator(block).operands) for block in blocks_of(op)]
        for number, result in enumerate(op.results):
            self._joined[result] = [*op.operands, *(values[number] for values in returned)]
        for block in blocks_of(op):
            self._add_block(Numbered(operations(block)[:-1]), (), trips)

    def _add_block(self, body: Numbered, arguments: Iterable[ir.Value], trips: int) -> None:
        for op in body.ops:
            if op.name == "stablehlo.optimization_barrier":
                pairs = zip(op.results, op.operands, strict=True)
                self.barriers.update((result, self.barriers.get(value, value)) for result, value in pairs)
        if trips:
            self.trips.update(dict.fromkeys([*arguments, *body.producers], trips))
        self._add(body, trips)

    def values_behind(
        self, values: Iterable[ir.Value], instead: Mapping[ir.Value, Sequence[ir.Value]] | None = None
    ) -> set[ir.Value]:
        """Returns the values as `Numbered.values_behind`, also through the opened loops and conditionals."""
        return super().values_behind(values, {**self._joined, **(instead or {})})

    @cached_property
    def _products(self) -> list[int]:
        return [number for number, op in enumerate(self.ops) if is_product(op)]

    def products(self, values: Collection[ir.Value]) -> set[int]:
        """Returns the products that have a result in `values`."""
        return {number for number in self._products if any(result in values for result in self.results[number])}

    def inner_products(self) -> set[ir.Value]:
        """Returns the results of products on which other products depend, or the same product in a later trip."""
        needed = self.values_behind(value for number in self._products for value in self.operands[number])
        return {result for number in self._products for result in self.results[number] if result in needed}
