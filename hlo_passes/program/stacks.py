"""Arguments and results of `@main` that `split-stacks` cut into blocks, and which mesh has which block."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, terminator
from jaxpp.ir.values import defining_op


class Block(NamedTuple):
    """One block of a stack: its number, and its mesh."""

    number: int
    mesh: int


@dataclass(frozen=True)
class Join:
    """The concatenation of its blocks that a result is; `homes` are their meshes."""

    op: ir.Operation
    homes: list[int]

    def blocks(self) -> Iterator[tuple[ir.Value, int]]:
        """Each block and its mesh."""
        return zip(self.op.operands, self.homes, strict=True)


@dataclass(frozen=True)
class Stacks:
    """The stacks of one `@main`.

    Attributes:
        slices: the operations that take a block out of an argument, and which.
        arguments: the arguments that are stacks, with the meshes of their blocks.
        results: the results that are stacks.
    """

    slices: Mapping[ir.Operation, Block]
    arguments: Mapping[ir.Value, list[int]]
    results: Mapping[int, Join]

    @staticmethod
    def of(main: ir.Operation) -> "Stacks":
        """Read the stacks of `main`. Raises PassError when one is used otherwise than in blocks."""
        slices, arguments, results = dict[ir.Operation, Block](), dict[ir.Value, list[int]](), dict[int, Join]()
        for argument, entry in zip(body_of(main).arguments, at.argument_attributes(main), strict=True):
            if at.BLOCKS in entry:
                homes = arguments[argument] = _homes(entry, main)
                for use in argument.uses:
                    number = _number(use.owner.operation, argument, len(homes))
                    slices[use.owner.operation] = Block(number, homes[number])
        returned = terminator(body_of(main)).operands
        for number, entry in enumerate(at.result_attributes(main)):
            if at.BLOCKS in entry:
                homes, op = _homes(entry, main), defining_op(returned[number])
                if op is None or op.name != "stablehlo.concatenate" or len(op.operands) != len(homes):
                    raise PassError(
                        f"result {number} is not put together from {len(homes)} blocks", location=main.location
                    )
                results[number] = Join(op, homes)
        return Stacks(slices, arguments, results)

    @property
    def joins(self) -> set[ir.Operation]:
        """The concatenations that results are."""
        return {join.op for join in self.results.values()}


def _homes(entry: Mapping[str, ir.Attribute], main: ir.Operation) -> list[int]:
    attribute = entry[at.BLOCKS]
    homes = list(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else []
    if not homes or len(set(homes)) < len(homes):
        raise PassError(f"{at.BLOCKS} = {attribute}, expected the mesh of each block", location=main.location)
    return homes


def _number(op: ir.Operation, argument: ir.Value, count: int) -> int:
    """Which of `count` blocks of `argument` the operation takes."""
    shape = list(ir.RankedTensorType(argument.type).shape)
    rows = shape[0] // count
    if op.name == "stablehlo.slice" and rows * count == shape[0]:
        starts, limits = (
            list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("start_indices", "limit_indices")
        )
        block = starts[0] // rows
        if (starts[0], limits[0]) == (block * rows, (block + 1) * rows) and limits[1:] == shape[1:]:
            return block
    raise PassError(f"a stack of {count} blocks is used as a whole", location=op.location, hint="run split-stacks")
