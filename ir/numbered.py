"""Operations by their numbers, each read once: reading one through the bindings takes longer than using it.

Operations are no keys of dictionaries: their hash is made of their operands and attributes, so that an edit loses them.
Numbers are keys, or results. The tests make it an error to hash an operation.
"""

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from jaxpp.ir.functions import operands_with_captures


class Numbered:
    """Operations of a block in program order, each read once.

    Attributes:
        ops: the operations.
        operands: what each uses, also in its regions.
        results: what each makes.
        producers: the number of the operation that makes a value.
        makers: the numbers of the operations that make the operands of each, in the order of these.

    Args:
        ops: the operations.
        instead: for some values the ones that count as operands in their place.
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
