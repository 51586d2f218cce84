"""Unrolls loops over slices of the sequence, so that all slices of a stage are one program in the end."""

from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp import schedules
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.accumulators import ADD, INSERT, carried_updates
from jaxpp.ir.build import clone, constant, recarried, replace
from jaxpp.ir.constant_arrays import Constants
from jaxpp.ir.counted import counters, line, trips
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import (
    has_side_effect,
    loop_body,
    nested,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.values import block_of, closure, defining_op, is_integer_scalar, is_used, is_zero


def unroll_slices(found: MicrobatchLoop) -> None:
    """Unrolls the loops over slices of the sequence; does nothing for a schedule without slices.

    Values that differ from slice to slice become operands, so that all slices of a stage are one program in the end:

    - The index of a slice is a count of the microbatch loop that never advances, one for each slice. Rows that one loop
      over slices stacks for another are read at constants, so that `forward-rows` finds them.
    - The first keys and values (zeros), and their first gradients, come from outside of the microbatch loop, each from
      its own operation. `jaxpp.apart` keeps Shardy from merging equal ones.

    A sum over the slices that starts from zero, such as the gradient of a weight, starts from its first summand.

    Raises:
        PassError: the number of slices of the schedule does not fit the model.
    """
    loop, slices = found.op, found.slices
    if slices == 1:
        return
    marked = [op for op in operations(loop_body(loop)) if any(map(boundary.is_mark, (op, *nested(op))))]
    if marked and all(at.SLICE in op.attributes for op in marked):
        _label_slices(loop, marked, found.plan)
        return
    _check(marked, slices, found.plan.name, loop)
    loop, numbers = _with_numbers(loop, slices)
    made: set[ir.Value] = set()
    last: list[tuple[ir.Value, ir.Value]] = []
    first: list[ir.Operation] = []
    for inner in marked:
        unrolling = _Unrolling(inner, loop, numbers, made)
        unrolling.run()
        made |= unrolling.new
        last += unrolling.last
        first += unrolling.first
    for number, op in enumerate(first):
        op.attributes[at.APART] = at.i64(number)
    new = recarried(loop, [first for first, _ in last])
    end = terminator(loop_body(new))
    for position, (_, value) in enumerate(last, len(end.operands) - len(last)):
        end.operands[position] = value


def _label_slices(loop: ir.Operation, marked: Sequence[ir.Operation], schedule: schedules.Schedule) -> None:
    """Writes `jaxpp.slice` on the operations of each slice's forward, in a model without a loop over slices.

    Cheap values made only of the microbatch and constants, such as the targets of all slices, belong to no slice.

    Raises:
        PassError: the marks are of another number of slices than the schedule has.
    """
    numbers = {at.integer(op, at.SLICE) for op in marked}
    if len(numbers) != schedule.slices:
        raise PassError(
            f"the schedule {schedule.name} has {schedule.slices} slices, scan_slices has cuts of {len(numbers)}",
            location=marked[0].location,
            hint=f"give the lengths of {schedule.slices} slices, or take a schedule of {len(numbers)}",
        )
    last = max(number for number, op in enumerate(marked) if boundary.read(op).phase == "forward")
    forward = iter(marked[: last + 1])
    mark = next(forward)
    shared = set[ir.Value](loop_body(loop).arguments)
    for op in operations(loop_body(loop)):
        if is_cheap(op) and all(value in shared or block_of(value) != op.block for value in op.operands):
            shared.update(op.results)
            continue
        for each in (op, *nested(op)):
            each.attributes[at.SLICE] = mark.attributes[at.SLICE]
        if op == mark:
            following = next(forward, None)
            if following is None:
                return
            mark = following


def _check(marked: Sequence[ir.Operation], slices: int, name: str, loop: ir.Operation) -> None:
    """Raises PassError unless all marks of the microbatch loop are in loops over this number of slices."""
    scan = "scan over the slices of the sequence with the stage marks in the body: jaxpp.models.scan_slices"
    if not marked:
        raise PassError(
            f"the schedule {name} has {slices} slices, the loop no stage mark", location=loop.location, hint=scan
        )
    for op in marked:
        if op.name != "stablehlo.while":
            raise PassError(
                f"the schedule {name} has {slices} slices, this stage mark is in no loop over slices",
                location=op.location,
                hint=f"{scan}; or take a schedule without slices",
            )
        if trips(op) != slices:
            times = trips(op) or "an unknown number of"
            raise PassError(
                f"the schedule {name} has {slices} slices, the loop over slices runs {times} times",
                location=op.location,
                hint=f"cut the sequence into {slices} slices, or take a schedule of as many as the loop has",
            )


def _with_numbers(loop: ir.Operation, slices: int) -> tuple[ir.Operation, list[ir.Value]]:
    """Makes the microbatch loop carry the index of each slice as a count that never advances.

    Returns the new loop and the arguments of its body with these indices.
    """
    type_ = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    with loop.location, ir.InsertionPoint(loop):
        new = recarried(loop, [constant(type_, number) for number in range(slices)])
    end = terminator(loop_body(new))
    arguments: Sequence[ir.Value] = list(loop_body(new).arguments)
    numbers = list(arguments[-slices:])
    with new.location, ir.InsertionPoint(end):
        for position, number in enumerate(numbers, len(end.operands) - slices):
            end.operands[position] = stablehlo.add(number, constant(type_, 0))
    return new, numbers


class _Unrolling:
    """The unrolling of one loop over slices.

    Attributes:
        new: the values that its slices make.
        last: (initial value, value of the last slice) for each value that only slices use.
        first: the operations that make initial values outside of the microbatch loop.
    """

    def __init__(
        self, loop: ir.Operation, microbatches: ir.Operation, numbers: Sequence[ir.Value], made: set[ir.Value]
    ) -> None:
        self._loop, self._outer, self._numbers = loop, microbatches, numbers
        self.new: set[ir.Value] = set()
        self.last: list[tuple[ir.Value, ir.Value]] = []
        self.first: list[ir.Operation] = []
        body = loop_body(loop)
        self._arguments, self._ops = list(body.arguments), operations(body)[:-1]
        self._yielded = list(terminator(body).operands)
        phases = {boundary.read(op).phase for op in nested(loop) if boundary.is_mark(op)}
        self._is_backward = "backward" in phases
        self._counts: dict[ir.Value, tuple[int, int]] = {
            self._arguments[position]: (start, step) for position, start, step in counters(loop)
        }
        self._counted = self._find_counted()
        self._indexed = {self._stacked(position) for position in range(len(self._arguments))} - {None}
        self._indexed |= {op.results[0] for op in self._ops if self._reads_stack(op, made)}
        self._sums = self._find_sums()

    def run(self) -> None:
        """Replaces the loop by its slices."""
        carried = first = [self._first(position, value) for position, value in enumerate(self._loop.operands)]
        count = len(self._numbers)
        for trip in range(count):
            values = self._slice(trip, count - 1 - trip if self._is_backward else trip, carried)
            carried = [values.get(value, value) for value in self._yielded]
            self.new |= {values[result] for op in self._ops for result in op.results}
        for position, (result, value) in enumerate(zip(self._loop.results, carried, strict=True)):
            if not is_used(result) and self._is_handed_on(position) and block_of(first[position]) != self._loop.block:
                self.last.append((first[position], value))
        replace(self._loop, carried)

    def _slice(self, trip: int, number: int, carried: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
        """Clones the body for one slice; returns a map from its values to their clones."""
        ip = ir.InsertionPoint(self._loop)
        values: dict[ir.Value, ir.Value] = dict(zip(self._arguments, carried, strict=True))
        begun = {op.results[0]: self._summand(position) for position, op in self._sums.items()} if trip == 0 else {}
        counts = self._counts | self._counted
        numbers = Constants({value: start + step * trip for value, (start, step) in counts.items()})
        for value, (start, step) in counts.items():
            values[value] = self._count(value.type, start, step, number)
        for op in self._ops:
            if not begun.keys().isdisjoint(op.results):
                summand = begun[op.results[0]]
                values[op.results[0]] = values.get(summand, summand)
                continue
            if any(result in self._counted for result in op.results):
                continue
            copy = clone(op, values, ip)
            for each in (copy, *nested(copy)):
                each.attributes[at.SLICE] = at.i64(number)
            if not self._indexed.isdisjoint(op.results):
                for position, value in enumerate(op.operands):
                    index = numbers.scalar(value) if is_integer_scalar(value) else None
                    if index is not None:
                        copy.operands[position] = constant(
                            value.type, index, ip=ir.InsertionPoint(copy), loc=op.location
                        )
        return values

    def _find_counted(self) -> dict[ir.Value, tuple[int, int]]:
        """Returns (start, step) of each integer that is a difference with a count.

        JAX counts down in the gradient of a scan. Such an integer is computed from the index of the slice, as in the
        forward. Otherwise the marks that `jax.checkpoint` rematerialises would differ from the forward marks.
        """
        found: dict[ir.Value, tuple[int, int]] = {}
        for op in self._ops:
            if op.name == "stablehlo.subtract" and is_integer_scalar(op.results[0]):
                count = line(op.results[0], self._counts, [op.name])
                if count is not None and count[1]:
                    found[op.results[0]] = count
        return found

    def _count(self, type_: ir.Type, start: int, step: int, number: int) -> ir.Value:
        """Returns a count of the loop in slice `number`, computed from the index that the microbatch loop carries."""
        if self._is_backward:  # trip t does slice n - 1 - t
            start, step = start + step * (len(self._numbers) - 1), -step

        def made(value: ir.Value) -> ir.Value:
            ir.OpResult(value).owner.attributes[at.SLICE] = at.i64(number)
            return value

        with self._loop.location, ir.InsertionPoint(self._loop):
            value = self._numbers[number]
            if value.type != type_:
                value = made(stablehlo.convert(type_, value))
            if step != 1:
                value = made(stablehlo.multiply(value, made(constant(type_, step))))
            return made(stablehlo.add(value, made(constant(type_, start)))) if start else value

    def _stacked(self, position: int) -> ir.Value | None:
        """Returns the stack that the carried value becomes with one more row, if nothing else uses the two."""
        uses = carried_updates(self._loop, position, (INSERT,))
        return self._yielded[position] if len(uses) == 1 else None

    def _find_sums(self) -> dict[int, ir.Operation]:
        """Returns the first addition to each carried value that starts from zero and to which the body only adds."""
        found: dict[int, ir.Operation] = {}
        for position, first in enumerate(self._loop.operands if self._is_backward else ()):
            uses = carried_updates(self._loop, position, (ADD,))
            if uses and is_zero(first):
                found[position] = uses[0].owner.operation
        return found

    def _summand(self, position: int) -> ir.Value:
        """Returns the first summand of a sum."""
        left, right = self._sums[position].operands
        return right if left == self._arguments[position] else left

    def _reads_stack(self, op: ir.Operation, made: set[ir.Value]) -> bool:
        """Whether `op` takes a row of a stack that an earlier loop over slices made, of the values `made`."""
        if op.name != "stablehlo.dynamic_slice":
            return False

        def operands(value: ir.Value) -> Iterable[ir.Value]:
            source = defining_op(value)
            return source.operands if source is not None and source.block == self._loop.block else ()

        return not made.isdisjoint(closure([op.operands[0]], operands))

    def _is_handed_on(self, position: int) -> bool:
        """Whether a slice uses the carried value of the slice before it: it is no count, no stack, and no sum."""
        argument = self._arguments[position]
        if argument in self._counts or self._stacked(position) is not None or not is_used(argument):
            return False
        return position not in self._sums

    def _first(self, position: int, value: ir.Value) -> ir.Value:
        """Returns the initial value of a carried value, made outside of the microbatch loop if possible."""
        if not self._is_handed_on(position):
            return value
        body = loop_body(self._outer)

        makers: dict[ir.Value, ir.Operation] = {}

        def uses(each: ir.Value) -> Sequence[ir.Value]:
            op = defining_op(each)
            if op is None or not (op.block == body or is_cheap(op)):
                return ()
            makers[each] = op
            return operands_with_captures(op)

        made_of = closure([value], uses)
        if not made_of.keys().isdisjoint(body.arguments) or any(map(has_side_effect, makers.values())):
            return value
        values: dict[ir.Value, ir.Value] = {}
        for op in (*operations(self._outer.block), *operations(body)) if makers else ():
            if not makers.keys().isdisjoint(op.results):
                self.first.append(clone(op, values, ir.InsertionPoint(self._outer)))
        return values.get(value, value)
