"""Accumulators: values carried by the loop that microbatches may update in any order, on several meshes at once."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.boundary import BARRIER
from jaxpp.ir.build import combine, constant, sharded
from jaxpp.ir.counted import affine, constant_integer
from jaxpp.ir.functions import body_of, callee, kind_and_stage, loop_body, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import shape_of
from jaxpp.ir.values import defining_op, is_used, only_use

ADD, SUBTRACT = "stablehlo.add", "stablehlo.subtract"
MAXIMUM, INSERT = "stablehlo.maximum", "stablehlo.dynamic_update_slice"
UPDATES = (ADD, SUBTRACT, MAXIMUM, INSERT)
CONSTRAINT = "sdy.sharding_constraint"


class Updates(NamedTuple):
    """The operations by which a block updates one of its arguments, where no other operation reads the value.

    uses: the updated operand of each operation, in order.
    result: the position of the final value among the block's results.
    """

    uses: list[ir.OpOperand]
    result: int


def updates(body: ir.Block, number: int, names: Collection[str]) -> Updates | None:
    """Follows an argument of `body` through operations of these names to the terminator.

    Returns None where the argument, or an updated value, has another use, such as a read or a second return. A
    subtraction updates its first operand, a `dynamic_update_slice` the array into which it writes.
    """
    end, uses = terminator(body), list[ir.OpOperand]()
    value: ir.Value = body.arguments[number]
    while (use := only_use(value)) is not None and use.owner.operation.block == body:
        op, position = use.owner.operation, use.operand_number
        if op == end:
            return Updates(uses, position)
        if op.name not in names or (op.name in (INSERT, SUBTRACT) and position):
            break
        uses.append(use)
        value = op.results[position if op.name == BARRIER else 0]
    return None


def carried_updates(loop: ir.Operation, position: int, names: Collection[str]) -> list[ir.OpOperand]:
    """Returns the uses by which `loop` updates the value that it carries at `position`; none if it has other uses."""
    found = updates(loop_body(loop), position, names)
    is_tested = is_used(loop.regions[0].blocks[0].arguments[position])
    return found.uses if found is not None and found.result == position and not is_tested else []


Part: TypeAlias = tuple[int, int | None]
"""A partial result: its mesh, and its stage where each stage of the mesh has one of its own (None otherwise)."""


class MicrobatchRows(NamedTuple):
    """The row of each microbatch: microbatch m writes row `start + step * m` along `dimension`."""

    dimension: int
    start: int
    step: int


@dataclass(eq=False)
class Accumulator:
    """A carried value that is a sum or a maximum over the microbatches, or has a row for each.

    Attributes:
        operator: the operation that combines it with the value of a microbatch.
        rows: the row that each microbatch writes, where it has rows.
        values: its values in the loop body: the argument, and the result of each task that updates it.
        stages: the stages of the tasks that update it, in their order.
        parts: the latest value of each `Part` in the unrolled program.
        microbatches: the microbatches that each part contains.
    """

    initial: ir.Value
    sharding: ir.Attribute | None
    operator: str = ""
    rows: MicrobatchRows | None = None
    values: list[ir.Value] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)
    parts: dict[Part, ir.Value] = field(default_factory=dict)
    microbatches: dict[Part, list[int]] = field(default_factory=dict)

    def start(self, part: Part, ip: ir.InsertionPoint) -> ir.Operation | None:
        """Begins `part` with the initial value, or with zeros if it is a later part of a sum.

        Returns the operation that makes the zeros; None if it made none.
        """
        zeros = None
        if self.parts and self.operator == ADD:
            zeros = sharded(constant(self.initial.type, 0, ip=ip, loc=ir.Location.unknown()), self.sharding)
        self.parts[part] = self.initial if zeros is None else zeros
        return None if zeros is None else defining_op(zeros)

    def update(self, part: Part, microbatch: int, value: ir.Value) -> None:
        """Records that a task of `microbatch` has updated `part` to `value`."""
        self.parts[part] = value
        self.microbatches.setdefault(part, []).append(microbatch)

    def total(self, homes: Sequence[Sequence[int]], ip: ir.InsertionPoint) -> ir.Value:
        """Combines all parts, first those on the home meshes of the last stage that updates the accumulator."""
        places = [(mesh, of) for stage in reversed(self.stages) for mesh in homes[stage] for of in (stage, None)]
        order = dict.fromkeys(part for part in [*places, *self.parts] if part in self.parts)
        if not order:  # the schedule leaves out all tasks that would add to it
            return self.initial
        first, *others = order
        total = self.parts[first]
        written = list(self.microbatches[first])
        for part in others:
            with ip, ir.Location.unknown():
                if self.rows is None:
                    made = combine(self.operator, [total, self.parts[part]], ip, ir.Location.unknown())
                else:
                    made = stablehlo.select(self._mask(self.rows, written), total, self.parts[part])
                    written += self.microbatches[part]
            total = sharded(made, self.sharding)
        return total

    def _mask(self, rows: MicrobatchRows, microbatches: Sequence[int]) -> ir.Value:
        """Returns a mask that is true in the rows of `microbatches`."""
        shape = shape_of(self.initial)
        size = shape[rows.dimension]
        written = {rows.start + rows.step * microbatch for microbatch in microbatches}
        flags = ", ".join("true" if row in written else "false" for row in range(size))
        line = stablehlo.constant(ir.Attribute.parse(f"dense<[{flags}]> : tensor<{size}xi1>"))
        mask = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(1))
        return sharded(stablehlo.broadcast_in_dim(mask, line, [rows.dimension]), self.sharding)


def find_accumulators(loop: MicrobatchLoop, functions: Mapping[str, ir.Operation]) -> dict[int, Accumulator]:
    """Returns the accumulators of an outlined loop, by their positions among the carried values."""
    found: dict[int, Accumulator] = {}
    shardings: dict[ir.Attribute, list[ir.Attribute]] = {}
    for position, initial in enumerate(loop.op.operands):
        if position not in loop.indices:
            argument = loop.body.arguments[position]
            sharding = at.value_sharding(loop.op.results[position], shardings)
            accumulator = Accumulator(initial, sharding, values=[argument])
            if _follow(loop, functions, position, accumulator):
                found[position] = accumulator
    return found


def _follow(
    loop: MicrobatchLoop, functions: Mapping[str, ir.Operation], position: int, accumulator: Accumulator
) -> bool:
    """Follows the accumulator through the tasks; returns whether all only update it and the loop carries the result."""
    while (use := only_use(accumulator.values[-1])) is not None:
        op = use.owner.operation
        if op.name != "func.call":
            return op == terminator(loop.body) and use.operand_number == position and bool(accumulator.operator)
        function = functions[callee(op)]
        result = _through(loop, op, body_of(function), use.operand_number, accumulator)
        if result is None:
            return False
        accumulator.values.append(op.results[result])
        accumulator.stages.append(kind_and_stage(function)[1])
    return False


def _through(
    loop: MicrobatchLoop, call: ir.Operation, body: ir.Block, number: int, accumulator: Accumulator
) -> int | None:
    """Returns the result of a task that is its updated argument `number`; None if the task does more than update it."""
    found = updates(body, number, (*UPDATES, CONSTRAINT))
    if found is None:
        return None
    for op in (use.owner.operation for use in found.uses if use.owner.operation.name != CONSTRAINT):
        operator = ADD if op.name == SUBTRACT else op.name
        # Two writes may be of the same row: then their order matters.
        if (accumulator.operator or operator) != operator or accumulator.rows:
            return None
        accumulator.operator = operator
        if op.name == INSERT:
            accumulator.rows = _rows(loop, call, body, op)
            if accumulator.rows is None:
                return None
    return found.result


def _rows(loop: MicrobatchLoop, call: ir.Operation, body: ir.Block, op: ir.Operation) -> MicrobatchRows | None:
    """Returns the row of each microbatch; None unless `op` writes one whole row, a different one in each microbatch."""
    base, row, *starts = op.operands
    whole, written = shape_of(base), shape_of(row)
    moving = [i for i, start in enumerate(starts) if constant_integer(start) != 0]
    if len(moving) != 1 or written != [*whole[: moving[0]], 1, *whole[moving[0] + 1 :]]:
        return None
    counts = loop.counts
    given = zip(body.arguments, call.operands, strict=True)
    line = affine(
        starts[moving[0]], {argument: counts[value] for argument, value in given if value in counts}, loop.length
    )
    if line is None:
        return None
    rows = MicrobatchRows(moving[0], *line)
    ends = (rows.start, rows.start + rows.step * (loop.length - 1))
    return rows if rows.step and min(ends) >= 0 and max(ends) < whole[rows.dimension] else None
