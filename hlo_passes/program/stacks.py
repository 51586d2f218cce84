"""Reads the arguments and results of `@main` that are stacks in blocks (`jaxpp.blocks`), and each block's mesh."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, terminator
from jaxpp.ir.locations import source_of
from jaxpp.ir.ops import shape_of
from jaxpp.ir.rows import slice_bounds
from jaxpp.ir.steps import Step
from jaxpp.ir.values import defining_op

_HINT = f"leave {at.BLOCKS} to split-stacks, which writes it with a slice for each block: run the whole pipeline"


@dataclass(frozen=True)
class StackedResult:
    """A result that is a stack: `op` concatenates its blocks, which are on the meshes `homes`."""

    op: ir.Operation
    homes: list[int]

    def blocks(self) -> Iterator[tuple[ir.Value, int]]:
        """Yields each block and its mesh."""
        return zip(self.op.operands, self.homes, strict=True)


@dataclass(frozen=True)
class Stacks:
    """The stacks of `@main`.

    Attributes:
        blocks: for each value that is a block of an argument, the index of the block.
        arguments: for each argument that is a stack, the meshes of its blocks.
        results: the results that are stacks, by index.
    """

    blocks: Mapping[ir.Value, int]
    arguments: Mapping[ir.Value, list[int]]
    results: Mapping[int, StackedResult]

    @staticmethod
    def of(main: ir.Operation) -> "Stacks":
        """Reads the stacks of `main`.

        Raises:
            PassError: if `jaxpp.blocks` is not a list of different meshes, an argument is not used in whole blocks, or
                a result is not a concatenation of its blocks.
        """
        blocks, arguments, results = dict[ir.Value, int](), dict[ir.Value, list[int]](), dict[int, StackedResult]()
        for argument, entry in zip(body_of(main).arguments, at.argument_attributes(main), strict=True):
            if at.BLOCKS in entry:
                homes = arguments[argument] = _homes(entry, main)
                for op in [use.owner.operation for use in argument.uses]:
                    number = _number(op, argument, len(homes))
                    blocks[op.results[0]] = number
        returned = terminator(body_of(main)).operands
        for number, entry in enumerate(at.result_attributes(main)):
            if at.BLOCKS in entry:
                homes, op = _homes(entry, main), defining_op(returned[number])
                if op is None or op.name != "stablehlo.concatenate" or len(op.operands) != len(homes):
                    raise PassError(
                        f"result {number} of @main is no concatenation of {len(homes)} blocks, as {at.BLOCKS} says",
                        location=main.location if op is None else op.location,
                        hint=_HINT,
                    )
                results[number] = StackedResult(op, homes)
        return Stacks(blocks, arguments, results)

    @property
    def whole(self) -> set[ir.Value]:
        """The concatenations: the values of results that are stacks."""
        return {stack.op.results[0] for stack in self.results.values()}

    def check_others(self, steps: Iterable[Step]) -> None:
        """Raises PassError for an operation of `@main` that is no call, no constant, and no part of a stack."""
        known = self.blocks.keys() | self.whole
        for step in steps:
            if step.function is None and step.name != "stablehlo.constant" and known.isdisjoint(step.results):
                raise PassError(
                    f"a {step.name} on no mesh", location=step.op.location, hint="run infer-placement first"
                )

    def home_of(self, block: ir.Value) -> int:
        """Returns the mesh of a block of an argument."""
        argument = ir.OpResult(block).owner.operands[0]
        return self.arguments[argument][self.blocks[block]]


def _homes(entry: Mapping[str, ir.Attribute], main: ir.Operation) -> list[int]:
    attribute = entry[at.BLOCKS]
    homes = list(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else []
    if not homes or len(set(homes)) < len(homes):
        raise PassError(
            f"{at.BLOCKS} = {attribute}, expected another mesh for each block", location=main.location, hint=_HINT
        )
    return homes


def _number(op: ir.Operation, argument: ir.Value, count: int) -> int:
    """Returns the index of the block of `argument` that an operation slices. Raises PassError for any other use."""
    rows, *others = shape_of(argument) or [0]
    bounds = slice_bounds(op)
    if bounds is not None:
        (first, size), *rest = bounds
        if size and size * count == rows and first % size == 0 and [each for _, each in rest] == others:
            return first // size
    number = ir.BlockArgument(argument).arg_number
    raise PassError(
        f"{op.name} reads argument {number} of @main, which is stored in {count} blocks of rows, but not one of these",
        location=op.location if source_of(op.location) else argument.location,
        hint=_HINT,
    )
