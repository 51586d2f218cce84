"""Arguments and results of `@main` that `split-stacks` cut into blocks, and which mesh has which block."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir
from scipy.optimize import linear_sum_assignment

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, terminator
from jaxpp.hlo_passes.ir.values import byte_size, defining_op


@dataclass(frozen=True)
class Stacks:
    """The stacks of one `@main`.

    Attributes:
        count: the number of blocks of each; 0 when there is no stack.
        slices: for each operation that takes a block out of an argument, the number of the block.
        arguments: the arguments that are stacks.
        results: for each result that is a stack, the concatenation of its blocks.
    """

    count: int
    slices: Mapping[ir.Operation, int]
    arguments: Set[ir.Value]
    results: Mapping[int, ir.Operation]

    @staticmethod
    def of(main: ir.Operation) -> "Stacks":
        """Read the stacks of `main`. Raises PassError when one is used otherwise than in blocks."""
        count, slices, arguments, results = 0, dict[ir.Operation, int](), set[ir.Value](), dict[int, ir.Operation]()
        for argument, entry in zip(body_of(main).arguments, at.argument_attributes(main), strict=True):
            if at.BLOCKS in entry:
                count = _count(entry, count, main)
                arguments.add(argument)
                for use in argument.uses:
                    slices[use.owner.operation] = _number(use.owner.operation, argument, count)
        returned = terminator(body_of(main)).operands
        for number, entry in enumerate(at.result_attributes(main)):
            if at.BLOCKS in entry:
                count = _count(entry, count, main)
                op = defining_op(returned[number])
                if op is None or op.name != "stablehlo.concatenate" or len(op.operands) != count:
                    raise PassError(f"result {number} is not put together from {count} blocks", location=main.location)
                results[number] = op
        return Stacks(count, slices, arguments, results)

    @property
    def joins(self) -> set[ir.Operation]:
        """The concatenations that results are."""
        return set(self.results.values())


def _count(entry: Mapping[str, ir.Attribute], before: int, main: ir.Operation) -> int:
    attribute = entry[at.BLOCKS]
    count = attribute.value if isinstance(attribute, ir.IntegerAttr) else 0
    if count < 1 or before not in (0, count):
        raise PassError(f"{at.BLOCKS} = {attribute}, expected one number for all", location=main.location)
    return count


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


def order_of_blocks(stacks: Stacks, meshes_of: Mapping[ir.Value, Set[int]]) -> list[int]:
    """The mesh of each block: each mesh has one, and the fewest bytes move.

    `meshes_of` maps the blocks to the meshes of the tasks that use them. Of equals, block k is on mesh k.
    """
    used = np.eye(stacks.count) / 2
    for op, block in stacks.slices.items():
        for mesh in meshes_of.get(op.results[0], ()):
            used[block, mesh] += byte_size(op.results[0].type)
    return [int(mesh) for mesh in linear_sum_assignment(used, maximize=True)[1]]
