"""The graph of an unrolled `@main` outside of its tasks.

The graph is read once, because hashing an MLIR object takes longer than using it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from jaxlib.mlir import ir

from jaxpp.hlo_passes.program.stacks import Stacks
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, has_side_effect, operands_with_captures, terminator
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.steps import Step
from jaxpp.ir.values import ByteSizes, defining_op

# In bytes: up to this size, computing a value again is cheaper than sending it.
SMALL = 1 << 16

# A set of meshes: bit k stands for mesh k.
Meshes: TypeAlias = int


def each_of(meshes: Meshes) -> Iterator[Meshes]:
    """Yields each of these meshes as a set of its own, in ascending order."""
    while meshes:
        yield (mesh := meshes & -meshes)
        meshes ^= mesh


def numbers(meshes: Meshes) -> list[int]:
    """Returns the indices of these meshes, in ascending order."""
    return [mesh.bit_length() - 1 for mesh in each_of(meshes)]


def is_one(meshes: Meshes) -> bool:
    """Returns whether the set has exactly one mesh."""
    return meshes.bit_count() == 1


@dataclass(eq=False, slots=True)
class Node:
    """An operation, or another source of values: an argument, a block of a stack or a task (then `op` is None).

    Attributes:
        op: the operation.
        meshes: the meshes where it is.
        fixed: whether it is on exactly one mesh. Otherwise an operation is rematerialised wherever it is used, and an
            argument is on several meshes, or on none yet.
        movable: whether its meshes can be chosen. For an argument they can if no task uses it, and a result becomes it
            in the next step. That result is its operand.
        repeats: whether it may be on several meshes.
        free: whether any mesh can have it at no cost: a constant, or an argument that is not fixed and that no result
            becomes.
        expands: whether it is cheap and makes a larger value for other operations, such as the broadcast of a norm.
    """

    op: ir.Operation | None = None
    meshes: Meshes = 0
    fixed: bool = False
    movable: bool = False
    repeats: bool = False
    free: bool = False
    expands: bool = False
    # Calling `list["PlacedValue"]` takes seven times as long as calling a lambda.
    operands: list["PlacedValue"] = field(default_factory=lambda: [])
    results: list["PlacedValue"] = field(default_factory=lambda: [])


@dataclass(eq=False, slots=True)
class PlacedValue:
    """A value that an operation outside of the tasks defines or uses.

    Attributes:
        ssa: the MLIR value.
        size: its size in bytes.
        node: the node that defines it.
        consumers: the nodes that use it.
        sinks: the meshes whose tasks use it, or that keep it for the next step.
        demand: the meshes that use it, including its uses by rematerialised operations (`PlacementGraph.find_demand`).
    """

    ssa: ir.Value
    size: int
    node: Node
    consumers: list[Node] = field(default_factory=lambda: [])
    sinks: Meshes = 0
    demand: Meshes = 0


@dataclass(frozen=True, slots=True)
class TaskUse:
    """The use of `value`, computed outside of the tasks, as operand `number` of `task`, a call on `mesh`."""

    task: Step
    mesh: int
    number: int
    value: PlacedValue


class PlacementGraph:
    """The operations of `@main` outside of the tasks, without the slices and concatenations of stacks' blocks.

    Attributes:
        main: `@main`.
        borders: the attributes of its arguments, and of its results.
        stacks: its stacks.
        ops: the operations that are used, in program order; the others are erased.
        values: the values that they define or use.
        arguments: the arguments of `@main`.
        returned: the results of `@main` that are not stacks, by index.
        feeds: by index of such a result, the argument that it becomes in the next step.
        tasks: the calls of tasks.
        task_uses: the operands of tasks that `ops` define.
    """

    def __init__(self, main: ir.Operation, steps: Iterable[Step]) -> None:
        self.main = main
        self.borders = at.argument_attributes(main), at.result_attributes(main)
        self.stacks = Stacks.of(main)
        self.ops: list[Node] = []
        self.values: dict[ir.Value, PlacedValue] = {}
        self.returned: dict[int, PlacedValue] = {}
        self.feeds: dict[int, PlacedValue] = {}
        self.tasks: list[Step] = []
        self.task_uses: list[TaskUse] = []
        self._sizes = ByteSizes()
        self.arguments = [self._define(argument, Node()) for argument in body_of(main).arguments]
        for block in self.stacks.blocks:
            self._define(block, Node(meshes=1 << self.stacks.home_of(block), fixed=True))
        self._read_steps(steps)
        self._read_results()
        self._drop_dead()
        self._read_arguments()

    def find_demand(self) -> None:
        """Finds the `demand` of each value, and the `meshes` of each rematerialised operation."""
        for value in self.values.values():
            value.demand = value.sinks
        for argument in self.arguments:
            for value in argument.node.operands:
                value.demand |= argument.node.meshes
        for node in reversed(self.ops):
            if not node.fixed:
                node.meshes = 0
                for value in node.results:
                    node.meshes |= value.demand
            for value in node.operands:
                value.demand |= node.meshes

    def _define(self, ssa: ir.Value, node: Node) -> PlacedValue:
        value = self.values[ssa] = PlacedValue(ssa, self._sizes[ssa.type], node)
        node.results.append(value)
        return value

    def _value(self, ssa: ir.Value) -> PlacedValue:
        """Returns the graph's value for `ssa`; an unknown `ssa` is the result of a task and is added."""
        value = self.values.get(ssa)
        if value is None:
            task = defining_op(ssa)
            mesh = at.integer(task, at.MESH) if task is not None else None
            value = self._define(ssa, Node(meshes=1 << (mesh or 0), fixed=True))
        return value

    def _read_steps(self, steps: Iterable[Step]) -> None:
        whole = self.stacks.whole
        has_stacks = bool(whole or self.stacks.blocks)
        for step in steps:
            if step.function is not None:
                self._read_task(step, step.meshes[0])
            elif not has_stacks or not any(value in whole or value in self.values for value in step.results):
                self._read_operation(step)

    def _read_task(self, task: Step, mesh: int) -> None:
        self.tasks.append(task)
        for number, value in enumerate(map(self.values.get, task.operands)):
            if value is not None:
                value.sinks |= 1 << mesh
                if value.node.op is not None:
                    self.task_uses.append(TaskUse(task, mesh, number, value))

    def _read_operation(self, step: Step) -> None:
        op = step.op
        is_constant, cheap = step.name == "stablehlo.constant", is_cheap(op)
        node = Node(op, movable=not is_constant, free=is_constant)
        operands = [self._value(operand) for operand in step.operands]
        inward = sum([value.size for value in operands])
        outward = sum([self._define(result, node).size for result in step.results])
        if len(op.regions):
            operands = [self._value(operand) for operand in operands_with_captures(op)]
        node.operands.extend(dict.fromkeys(operands))
        node.repeats = cheap or (inward + outward <= SMALL and not has_side_effect(op))
        node.expands = cheap and outward > inward
        self.ops.append(node)

    def _read_results(self) -> None:
        operands = terminator(body_of(self.main)).operands
        for number, entry in enumerate(self.borders[1]):
            if number in self.stacks.results:
                for block, mesh in self.stacks.results[number].blocks():
                    self._value(block).sinks |= 1 << mesh
                continue
            value = self.returned[number] = self._value(operands[number])
            value.node.expands = False
            feeds = entry.get(at.FEEDS)
            if isinstance(feeds, ir.IntegerAttr) and 0 <= feeds.value < len(self.arguments):
                self.feeds[number] = self.arguments[feeds.value]

    def _drop_dead(self) -> None:
        used = {*self.returned.values(), *(value for value in self.values.values() if value.sinks)}
        kept: list[Node] = []
        for node in reversed(self.ops):
            assert node.op is not None
            if not used.isdisjoint(node.results) or has_side_effect(node.op):
                kept.append(node)
                used.update(node.operands)
                continue
            for value in node.results:
                del self.values[value.ssa]
            node.op.erase()
        self.ops = kept[::-1]
        for node in self.ops:
            for value in node.operands:
                value.consumers.append(node)

    def _read_arguments(self) -> None:
        for argument in self.arguments:
            node = argument.node
            node.meshes, node.fixed = argument.sinks, is_one(argument.sinks)
            node.free = not node.fixed
        for number, argument in self.feeds.items():
            value, node = self.returned[number], argument.node
            node.free = False
            value.sinks |= argument.sinks
            if not argument.sinks:
                node.movable, node.repeats = True, argument.size <= SMALL
                node.operands.append(value)
                value.consumers.append(node)
