"""Operations by their numbers: to hash an MLIR object, or to read it again, takes longer than using it."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.ir.functions import operands_with_captures


class Numbered:
    """Operations of a block in program order, each read once.

    Attributes:
        ops: the operations.
        operands: what each uses, also in its regions.
        results: what each makes.
        producers: the number of the operation that makes a value.
    """

    def __init__(self, ops: Sequence[ir.Operation]) -> None:
        self.ops = ops
        self.operands = [operands_with_captures(op) for op in ops]
        self.results: list[list[ir.Value]] = [list(op.results) for op in ops]
        self.producers = {result: number for number, results in enumerate(self.results) for result in results}
