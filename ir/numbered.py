"""Operations by their indices, each read once: reading one through the bindings takes longer than using it.

Operations are no keys of dictionaries: their hash is made of their operands and attributes, so an edit loses them.
Indices or results are keys. The tests make it an error to hash an operation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from jaxpp.ir.functions import operands_with_captures
from jaxpp.ir.values import closure


class Numbered:
    """Operations of a block in program order, each read once.

    Attributes:
        ops: the operations.
        operands: the values that each operation uses, also in its regions.
        results: the values that each operation makes.
        producers: for each result the index of the operation that makes it.
        makers: for each operation the indices of the operations that make its operands, in their order.

    Args:
        ops: the operations.
        instead: values that replace others as operands.
    """

    def __init__(self, ops: Sequence[ir.Operation], instead: Mapping[ir.Value, ir.Value] | None = None) -> None:
        self.ops = ops
        self.operands: list[Sequence[ir.Value]] = [operands_with_captures(op) for op in ops]
        if instead:
            self.operands = [[instead.get(value, value) for value in operands] for operands in self.operands]
        self.results: list[list[ir.Value]] = [list(op.results) for op in ops]
        self.producers = {result: number for number, results in enumerate(self.results) for result in results}
        find = self.producers.get
        self.makers: list[list[int]] = [
            [number for value in operands if (number := find(value)) is not None] for operands in self.operands
        ]

    def behind(self, values: Iterable[ir.Value], through: Callable[[int], bool] = lambda _: True) -> list[int]:
        """Returns the operations that `values` depend on, in program order; those that fail `through` end the way."""
        makers = (number for value in values if (number := self.producers.get(value)) is not None)
        return sorted(closure(filter(through, makers), lambda number: filter(through, self.makers[number])))
