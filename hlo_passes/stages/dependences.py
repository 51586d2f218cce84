"""Use-def chains of values, which pass through loops and conditionals result by result."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from jaxlib.mlir import ir

from jaxpp.ir.counted import counter_of_test, is_counted
from jaxpp.ir.functions import CONDITIONALS, blocks_of, is_product, loop_body, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.values import closure


def opened_ops(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Returns the counted loops and the conditionals of tensors in `ops`, also nested ones."""
    found: list[ir.Operation] = []
    for op in ops:
        if is_counted(op) or (
            op.name in CONDITIONALS and all(isinstance(each.type, ir.RankedTensorType) for each in op.results)
        ):
            found += [op, *(inner for block in blocks_of(op) for inner in opened_ops(operations(block)))]
    return found


class Dependences:
    """The dependences between the values of some operations, as the operations were at construction.

    A value that a loop in `opened` carries depends on its initial value, its value for the next trip and the loop's
    counter. Each result of a conditional in `opened` depends on the operand that selects the branch, and on the values
    that the branches return for it. The values inside of these regions have dependences too. Every result of any other
    operation depends on all values that the operation uses, also in its regions.

    Args:
        body: the operations of one block.
        opened: the loops and conditionals to look into, as `opened_ops` returns them.
        instead: maps some results of operations to the only value that they depend on.
    """

    def __init__(
        self,
        body: Numbered,
        opened: Collection[ir.Operation] = (),
        instead: Mapping[ir.Value, ir.Value] | None = None,
    ) -> None:
        self._read: dict[ir.Value, Sequence[ir.Value]] = {}
        self._used: list[tuple[ir.Operation, Sequence[ir.Value]]] = []
        self._products: list[tuple[ir.Operation, Sequence[ir.Value]]] = []
        self._add(body, opened)
        self._read.update((value, [other]) for value, other in (instead or {}).items())

    def _add(self, body: Numbered, opened: Collection[ir.Operation]) -> None:
        for op, operands, results in zip(body.ops, body.operands, body.results, strict=True):
            if op in opened:
                (self._add_loop if op.name == "stablehlo.while" else self._add_conditional)(op)
                for block in blocks_of(op):
                    self._add(Numbered(operations(block)[:-1]), opened)
                continue
            self._used.append((op, operands))
            self._read.update(dict.fromkeys(results, operands))
            if is_product(op):
                self._products.append((op, operands))

    def _add_conditional(self, op: ir.Operation) -> None:
        returned = [list(terminator(block).operands) for block in blocks_of(op)]
        for number, result in enumerate(op.results):
            self._read[result] = [*op.operands, *(values[number] for values in returned)]

    def _add_loop(self, loop: ir.Operation) -> None:
        body = loop_body(loop)
        counter = body.arguments[counter_of_test(loop)[0]]
        values = zip(loop.operands, terminator(body).operands, strict=True)
        for result, argument, (first, following) in zip(loop.results, body.arguments, values, strict=True):
            # A loop's result and its argument are one carried value: a value that depends on one depends on both.
            self._read[result] = [argument]
            self._read[argument] = [result, first, following, counter]

    def __iter__(self) -> Iterator[tuple[ir.Operation, Sequence[ir.Value]]]:
        """Yields each operation with the values that it uses; for one of `opened`, the operations inside of it."""
        return iter(self._used)

    def behind(self, values: Iterable[ir.Value]) -> set[ir.Value]:
        """Returns `values` and all values on which they depend, including the values from outside of the operations."""

        def read(value: ir.Value) -> Sequence[ir.Value]:
            return self._read.get(value, ())

        return set(closure(values, read))

    def products(self, values: Collection[ir.Value]) -> set[int]:
        """Returns the products that have a result in `values`, each by its index among all products."""
        made = ((number, op.results) for number, (op, _) in enumerate(self._products))
        return {number for number, results in made if any(result in values for result in results)}

    def inner_products(self) -> set[ir.Value]:
        """Returns the results of products on which other products depend, or the same product in a later trip."""
        needed = self.behind(value for _, operands in self._products for value in operands)
        return {result for op, _ in self._products for result in op.results if result in needed}
