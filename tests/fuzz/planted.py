"""Faults of eight kinds that a broken pass may make."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant, replace
from jaxpp.ir.functions import body_of, bytecode_of, callee, functions, kind_and_stage, nested, operations
from jaxpp.ir.ops import float_width
from jaxpp.ir.tasks import inherit_task

Site = Callable[[], None]
"""Makes the fault at one place of a module."""


def dropped(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Loses what an addition adds."""
    for op in nested(module.operation):
        if op.name == "stablehlo.add" and is_outermost(op) and op.operands[0].type == op.results[0].type:
            yield op, partial(replace, op, [op.operands[0]])


def swapped(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Swaps the operands of a subtraction."""

    def swap(op: ir.Operation) -> None:
        left, right = op.operands
        op.operands[0], op.operands[1] = right, left

    for op in nested(module.operation):
        if op.name == "stablehlo.subtract" and is_outermost(op):
            yield op, partial(swap, op)


def wrong_constant(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Replaces a constant of floating point numbers."""

    def change(op: ir.Operation) -> None:
        replace(op, [constant(op.results[0].type, 3, ip=ir.InsertionPoint(op), loc=op.location)])

    for op in nested(module.operation):
        if op.name == "stablehlo.constant" and float_width(op.results[0]) and is_outermost(op):
            # What a reduction over devices starts from has to be neutral: XLA may ignore any other number.
            if not any(use.owner.operation.name.startswith("stablehlo.reduce") for use in op.results[0].uses):
                yield op, partial(change, op)


def wrong_index(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Takes a slice from another place."""

    def move(op: ir.Operation, number: int) -> None:
        made = constant(op.operands[number].type, 1, ip=ir.InsertionPoint(op), loc=op.location)
        op.operands[number] = made

    def shift(op: ir.Operation, starts: list[int], limits: list[int]) -> None:
        op.attributes["start_indices"] = ir.DenseI64ArrayAttr.get(starts)
        op.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(limits)

    for op in nested(module.operation):
        if op.name == "stablehlo.dynamic_slice" and is_outermost(op):
            sizes, whole = op.results[0].type.shape, op.operands[0].type.shape
            if number := next((n for n in range(len(sizes)) if sizes[n] < whole[n]), -1) + 1:
                yield op, partial(move, op, number)
        if op.name == "stablehlo.slice" and is_outermost(op):
            starts, limits = (at.numbers(op.attributes[name]) for name in ("start_indices", "limit_indices"))
            for n, (start, limit) in enumerate(zip(starts, limits, strict=True)):
                step = -1 if start else 1 if limit < op.operands[0].type.shape[n] else 0
                if step:
                    both = ([*each[:n], each[n] + step, *each[n + 1 :]] for each in (starts, limits))
                    yield op, partial(shift, op, *both)
                    break


def nan(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Takes the root of numbers that may be negative."""

    def root(op: ir.Operation) -> None:
        made = stablehlo.sqrt(op.results[0], ip=ir.InsertionPoint.after(op), loc=op.location).owner.operation
        inherit_task(made, op)
        op.results[0].replace_all_uses_except(made.results[0], made)

    for op in nested(module.operation):
        if op.name in ("stablehlo.dot_general", "stablehlo.multiply", "stablehlo.subtract") and is_outermost(op):
            if float_width(op.results[0]):
                yield op, partial(root, op)


def early_free(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Frees a value although it is used later."""
    for function in functions(module).values():
        if at.MESH not in function.attributes:
            continue
        calls = [op for op in operations(body_of(function)) if op.name == "func.call"]
        for op in calls:
            for number, value in enumerate(op.operands):
                later = [use.owner.operation for use in value.uses if op.is_before_in_block(use.owner.operation)]
                if later and not isinstance(value.owner, ir.Block) and value.owner.operation.name == "func.call":
                    freed = sorted({*at.integers(op, at.LAST_USE), number})
                    yield op, partial(op.attributes.__setitem__, at.LAST_USE, at.i64s(freed))


def taken_for_equal(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Calls another function of the same type and kind."""
    known = functions(module)
    bodies = {name: bytecode_of(op) for name, op in known.items() if at.KIND in op.attributes}
    for op in calls_of_tasks(module):
        name = callee(op)
        kind, type_ = kind_and_stage(known[name])[0], known[name].attributes["function_type"]
        for other in bodies:
            same = kind_and_stage(known[other])[0] == kind and known[other].attributes["function_type"] == type_
            if same and bodies[other] != bodies[name]:
                yield op, partial(op.attributes.__setitem__, "callee", ir.FlatSymbolRefAttr.get(other))


def other_microbatch(module: ir.Module) -> Iterator[tuple[ir.Operation, Site]]:
    """Reads a residual, or another value, of another microbatch."""

    def read(op: ir.Operation, number: int, value: ir.Value) -> None:
        op.operands[number] = value

    calls = [op for op in calls_of_tasks(module) if at.MICROBATCH in op.attributes]
    for op in calls:
        for number, value in enumerate(op.operands):
            if isinstance(value.owner, ir.Block) or value.owner.operation.name != "func.call":
                continue
            maker = value.owner.operation
            for other in calls:
                same = callee(other) == callee(maker) and other.attributes[at.STAGE] == maker.attributes.get(at.STAGE)
                is_before = other.block == op.block and other.is_before_in_block(op)
                if other != maker and same and is_before and callee(other) != callee(op):
                    yield op, partial(read, op, number, other.results[ir.OpResult(value).result_number])


def is_outermost(op: ir.Operation) -> bool:
    """Whether an operation is in a function or a loop: what a reduction or a sort applies does not name its line."""
    return op.parent is not None and op.parent.operation.name in ("func.func", "stablehlo.while")


def calls_of_tasks(module: ir.Module) -> list[ir.Operation]:
    """Returns the calls of functions that are tasks."""
    return [op for op in nested(module.operation) if op.name == "func.call" and at.STAGE in op.attributes]


KINDS: dict[str, Callable[[ir.Module], Iterator[tuple[ir.Operation, Site]]]] = {
    "a dropped accumulation": dropped,
    "swapped operands": swapped,
    "a wrong constant": wrong_constant,
    "a wrong index": wrong_index,
    "an early free": early_free,
    "a NaN": nan,
    "functions taken for equal": taken_for_equal,
    "a value of another microbatch": other_microbatch,
}


@dataclass(frozen=True)
class Fault(Pass):
    """A broken pass, which makes the fault of a kind at the site of this index."""

    kind: str
    site: int

    def run(self, module: ir.Module) -> None:
        """Makes the fault."""
        list(KINDS[self.kind](module))[self.site][1]()
