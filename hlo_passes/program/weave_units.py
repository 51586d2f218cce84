"""`weave-units`: interleaves a forward and a backward in one task: one computes while the other communicates."""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import replace, rewire, shardings
from jaxpp.ir.functions import body_of, functions, is_product, nested, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import traits
from jaxpp.ir.program_form import check_parts
from jaxpp.ir.shardings import MeshAxes, Shardings
from jaxpp.ir.steps import MainLine, handed, leave


class WeaveUnits(Pass):
    """Interleaves the units of fused tasks: collectives of one task run beside products of the other.

    A unit of a stage ends at a mark (`mark_unit_end`), usually with a collective. The collective sums partial products
    over the devices (tensor parallelism), or is an all-to-all (experts). Two tasks of different microbatches are
    independent, so one can compute while the other communicates (STP, arXiv 2510.27257; the fused tasks of DualPipe).
    XLA chooses the order within a function, and may run one task entirely before the other. Here barriers fix the
    order, and the units of the tasks alternate. A unit starts when the preceding unit, of the other task, has reached
    its last collective. That collective, and the product whose parts it sums, then run beside the unit.

    - Collectives at the beginning of a unit belong to the preceding unit. The gradient of an all-to-all begins with
      one.
    - A value belongs to the unit after the most marks on which it depends. A weight gradient thus belongs to the unit
      that makes the output gradient. Nothing waits for it, so it may be computed later.
    - If two tasks have different numbers of units, the units of the shorter task are spread evenly over the longer one.
    - Tasks that share operations, for example because one reads results of the other, are left unchanged.
    - In a unit without a collective, the last products take its place. Tasks without any collective are left unchanged.

    Then all functions lose their marks: XLA may fuse across the ends of units in all other places.

    Preconditions: `unroll-microbatches` ran.

    ```mlir
    // of the forward, then of the backward               ==>   %a = stablehlo.tanh %x
    %a = stablehlo.tanh %x                                      %b = stablehlo.multiply %dy, %r
    %y = stablehlo.dot_general %a, %w   // all-reduced          %y = stablehlo.dot_general %a, %w
    %m = stablehlo.optimization_barrier %y {jaxpp.boundary}     %m, %c = stablehlo.optimization_barrier %y, %b
    %z = stablehlo.tanh %m                                      %z = stablehlo.tanh %m
    %b = stablehlo.multiply %dy, %r                             %d = stablehlo.dot_general %c, %v
    %d = stablehlo.dot_general %b, %v   // all-reduced
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Interleaves the tasks of fused functions, and erases the marks of units in all functions."""
        line = handed(module, MainLine)
        mesh = MeshAxes.of(module)
        for function in functions(module).values():
            if at.KIND not in function.attributes:
                continue
            ops = operations(body_of(function))[:-1]
            marks = [op for op in ops if boundary.is_unit_mark(op)]
            if marks and mesh is not None and at.STAGE not in function.attributes:
                check_parts(function)
                marks += _move_behind_collectives(mesh, marks)
                _weave(function, _Units(module, mesh, function, operations(body_of(function))[:-1]))
            for mark in marks:
                replace(mark, mark.operands)
        if line is not None:
            leave(module, line)


class _Unit(NamedTuple):
    """Unit `number` of one of the tasks."""

    task: int
    number: int


class _Units(Numbered):
    """The operations of several tasks, and the unit of each.

    Attributes:
        tasks: the results of each task, in the order in which the tasks alternate: forwards first.
        unit: the unit of each operation that a task needs; empty if the tasks share operations.
        marks: the marks at which each unit begins.
        shardings: the shardings of all values.
    """

    def __init__(self, module: ir.Module, mesh: MeshAxes, function: ir.Operation, ops: Sequence[ir.Operation]) -> None:
        super().__init__(ops)
        self._mesh = mesh
        self.shardings = Shardings(module)
        kinds = ir.StringAttr(function.attributes[at.KIND]).value.split("+")
        results: dict[int, list[ir.Value]] = {}
        for entry, value in zip(at.result_attributes(function), terminator(body_of(function)).operands, strict=True):
            results.setdefault(ir.IntegerAttr(entry[at.TASK]).value, []).append(value)
        parts = sorted(results, key=lambda part: (kinds[part] != "forward", part))
        self.tasks = [results[part] for part in parts]
        self.unit: dict[int, _Unit] = {}
        self.marks: dict[_Unit, list[ir.Operation]] = {}
        needed = [self.behind(values) for values in self.tasks]
        if len({number for numbers in needed for number in numbers}) == sum(map(len, needed)):
            for task, numbers in enumerate(needed):
                self._divide(task, numbers)

    def _divide(self, task: int, numbers: Sequence[int]) -> None:
        """Divides the operations of a task, in program order, into units that have a product each."""
        marks: dict[int, int] = {}
        for number in numbers:
            before = (self.producers.get(value) for value in self.operands[number])
            behind = max((marks[each] for each in before if each is not None), default=0)
            marks[number] = behind + boundary.is_unit_mark(self.ops[number])
        begins = sorted({marks[number] for number in numbers if is_product(self.ops[number])})[1:]
        for number in numbers:
            unit = self.unit[number] = _Unit(task, bisect(begins, marks[number]))
            if boundary.is_unit_mark(self.ops[number]) and marks[number] in begins:
                self.marks.setdefault(unit, []).append(self.ops[number])

    def order(self) -> list[_Unit]:
        """Returns the units in the order in which they alternate."""
        count = Counter(task for task, _ in set(self.unit.values()))
        return sorted(
            set(self.unit.values()), key=lambda unit: (Fraction(2 * unit.number + 1, count[unit.task]), unit.task)
        )

    def last(self, unit: _Unit) -> list[int]:
        """Returns the last collectives of a unit, or the last products of a unit without collectives."""
        return self._last(unit, self.communicates) or self._last(unit, is_product)

    def communicates(self, op: ir.Operation) -> bool:
        """Returns whether devices communicate to compute `op`."""
        return _communicates(self._mesh, op)

    def _last(self, unit: _Unit, is_one: Callable[[ir.Operation], bool]) -> list[int]:
        """Returns the operations in a unit for which `is_one` is true, and on which no other such operation depends."""
        following = self.marks.get(_Unit(unit.task, unit.number + 1))
        work = [mark.operands[0] for mark in following] if following else list(self.tasks[unit.task])
        reached = self.behind(work, lambda number: self.unit[number] == unit)
        found = [number for number in reached if is_one(self.ops[number])]
        last: list[int] = []
        earlier = set[int]()
        for number in reversed(found):
            if number not in earlier:
                last.append(number)
                earlier.update(self.behind(self.operands[number], lambda each: self.unit[each] == unit))
        return last

    def made_in(self, unit: _Unit, numbers: Iterable[int]) -> list[ir.Value]:
        """Returns the operands of these operations that operations or initial marks of the unit make."""
        values = dict.fromkeys(value for number in numbers for value in self.operands[number])
        return [value for value in values if self.unit.get(self.producers.get(value, -1)) == unit]


def _communicates(mesh: MeshAxes, op: ir.Operation) -> bool:
    """Returns whether devices communicate for `op`: it sums over a sharded dimension, reshards, or is a collective."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        axes = mesh.read(op.operands[0])
        return any(axes[dimension] for dimension in numbers.lhs_contracting_dimensions)
    if op.name == "stablehlo.reduce":
        axes = mesh.read(op.operands[0])
        return any(axes[dimension] for dimension in at.numbers(op.attributes["dimensions"]))
    if op.name == "sdy.sharding_constraint":
        both = zip(mesh.read(op.operands[0]), mesh.read(op.results[0]), strict=True)
        return any(not set(before) <= set(after) for before, after in both)
    return traits(op).collective or any(_communicates(mesh, each) for each in nested(op))


def _move_behind_collectives(mesh: MeshAxes, marks: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Moves marks after collectives that begin a unit, so that these join the preceding unit; returns the new marks.

    For example the gradient of an all-to-all begins with a collective.
    """
    made: list[ir.Operation] = []
    for mark in marks:
        for use in list(mark.results[0].uses):
            op = use.owner.operation
            while _is_light(op) and not _communicates(mesh, op) and len(users := list(op.results[0].uses)) == 1:
                op = users[0].owner.operation
            if op.block == mark.block and _communicates(mesh, op) and not is_product(op):
                use.owner.operands[use.operand_number] = mark.operands[0]
                for result in op.results:
                    behind = boundary.unit_mark(result, ir.InsertionPoint.after(op))
                    made.append(ir.OpResult(behind).owner.operation)
                    result.replace_all_uses_except(behind, made[-1])
    return made


def _is_light(op: ir.Operation) -> bool:
    """Returns whether `op` is light, or a `shard_map` of light operations."""
    inside = [each for each in nested(op) if each.name != "sdy.return"] if op.name == at.SHARD_MAP else [op]
    return all(traits(each).light for each in inside)


def _weave(function: ir.Operation, units: _Units) -> None:
    """Makes each unit wait until the preceding unit, of another task, has reached its last collective."""
    if not any(units.communicates(units.ops[number]) for number in units.unit):
        return
    order = units.order()
    turn = {unit: number for number, unit in enumerate(order)}
    place = {result: turn[unit] for number, unit in units.unit.items() for result in units.results[number]}
    for before, unit in pairwise(order):
        marks = units.marks.get(unit, [])
        last = units.last(before) if marks and before.task != unit.task else []
        awaited = units.made_in(before, last)
        if awaited:
            made = _wait(units, marks, awaited, [units.ops[number] for number in last])
            place.update(dict.fromkeys(made, turn[unit]))
    _sort(body_of(function), place)


def _wait(
    units: _Units, marks: Sequence[ir.Operation], awaited: Sequence[ir.Value], users: Sequence[ir.Operation]
) -> Sequence[ir.Value]:
    """Makes a barrier of the marked and the awaited values; returns its results.

    The marks, and `users` of the awaited values, then use these results.
    """
    values = [*(mark.operands[0] for mark in marks), *awaited]
    ip, location = ir.InsertionPoint(marks[0]), marks[0].location
    barrier = stablehlo.OptimizationBarrierOp(values, ip=ip, loc=location).operation
    for name, sharding in shardings([units.shardings.of(value) for value in values]).items():
        barrier.attributes[name] = sharding
    results = list(barrier.results)
    for mark, value in zip(marks, results, strict=False):
        mark.operands[0] = value
    for op in users:
        rewire(op, dict(zip(awaited, results[len(marks) :], strict=True)))
    return results


def _sort(block: ir.Block, place: Mapping[ir.Value, int]) -> None:
    """Sorts the operations of a block by the `place` of their results, each after the operations that it needs."""
    *ops, end = operations(block)
    body = Numbered(ops)
    places = [place.get(results[0], 0) if results else 0 for results in body.results]
    waiting = [len(set(makers)) for makers in body.makers]
    ready = [(places[number], number) for number in range(len(ops)) if not waiting[number]]
    heapify(ready)
    while ready:
        _, number = heappop(ready)
        block.append(ops[number])
        for user in body.users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (places[user], user))
    block.append(end)
