"""Small programs around the loop, as `infer-placement` takes them, and the fewest bytes that they can move."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from jaxpp._compat import own_copy
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.base import Observer
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.program.infer_placement import InferPlacement
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.placement_graph import SMALL
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, create, main_of, operands_with_captures, operations, terminator
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.read_program import ProgramReader
from jaxpp.ir.values import byte_size, is_used

PASSES = (InferPlacement(), InsertTransfers(), PlanBuffers(), VerifyProgram())


@dataclass(frozen=True)
class Argument:
    """A value that a task of `meshes[0]` makes, or an argument that tasks of `meshes` use."""

    meshes: tuple[int, ...]
    shape: tuple[int, ...]
    made: bool
    dtype: str = "float32"


def made(mesh: int, *shape: int, dtype: str = "float32") -> Argument:
    """A value that a task of `mesh` makes, such as a gradient."""
    return Argument((mesh,), shape, True, dtype)


def given(meshes: tuple[int, ...], *shape: int, dtype: str = "float32") -> Argument:
    """An argument that tasks of `meshes` use; a result of the same name is what it becomes in the next step."""
    return Argument(meshes, shape, False, dtype)


@dataclass(frozen=True)
class Program:
    """A function of `arguments`, by name, that returns results by name.

    A result named like an argument feeds it; one named `mesh k ...` goes to a task of mesh k.
    """

    function: Callable[..., dict[str, Any]]
    meshes: int
    arguments: Mapping[str, Argument]

    def module(self) -> ir.Module:
        """The program with its task calls, in a context of its own."""
        specs = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in self.arguments.items()}
        lowered = jax.jit(self.function, keep_unused=True).lower(**specs)
        names = [path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(lowered.args_info)]
        results = [path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(lowered.out_info)]
        module = own_copy(lowered.compiler_ir())  # pyright: ignore[reportArgumentType]
        run_passes(module, (InlineCalls(),))
        with module.context, ir.Location.unknown():
            for op in reversed(operations(body_of(main_of(module)))[:-1]):
                if not any(map(is_used, op.results)):
                    op.erase()
            self._add_tasks(module, names, results)
        return module

    def _add_tasks(self, module: ir.Module, names: list[str], results: list[str]) -> None:
        main = main_of(module)
        module.operation.attributes[at.MESHES] = at.i64(self.meshes)
        entries: list[dict[str, ir.Attribute]] = [
            {at.FEEDS: at.i64(names.index(r))} if r in names else {} for r in results
        ]
        at.set_tables(main, results=entries)
        values = dict(zip(names, body_of(main).arguments, strict=True))
        first = ir.InsertionPoint(body_of(main).operations[0])
        for mesh in range(self.meshes):
            here = [name for name, argument in self.arguments.items() if mesh in argument.meshes]
            tasks = _task(module, f"forward_{mesh}", [values[n] for n in here], mesh, first)
            for name, result in zip(here, tasks.results, strict=True):
                if self.arguments[name].made:
                    values[name].replace_all_uses_except(result, tasks)
        end = terminator(body_of(main))
        for number, name in enumerate(results):
            if name.startswith("mesh "):
                task = _task(
                    module, f"forward_{number}_{name[5]}", [end.operands[number]], int(name[5]), ir.InsertionPoint(end)
                )
                end.operands[number] = task.results[0]


def _task(module: ir.Module, name: str, operands: list[ir.Value], mesh: int, ip: ir.InsertionPoint) -> ir.Operation:
    """A call, on `mesh`, of a new function that negates its arguments."""
    types = [value.type for value in operands]
    attributes = {at.KIND: ir.StringAttr.get("forward"), at.STAGE: at.i64(mesh)}
    function = create(module, name, types, types, attributes)
    block = body_of(function)
    inner = ir.InsertionPoint(block)
    negated = [ir.Operation.create("stablehlo.negate", [a.type], [a], ip=inner).results[0] for a in block.arguments]
    ir.Operation.create("func.return", operands=negated, ip=inner)
    where = {at.MESH: at.i64(mesh), at.STAGE: at.i64(mesh), at.MICROBATCH: at.i64(0)}
    return call(function, operands, where, ip, ir.Location.unknown())


def bytes_moved(module: ir.Module, *observers: Observer) -> int:
    """Run the passes on `module`, and count the bytes that its program sends."""
    run_passes(module, PASSES, observers)
    with module.context:
        program = ProgramReader(module).program
    return sum(program.registers[hop.source][hop.operand].bytes for hop in program.hops.values())


@dataclass(frozen=True)
class Node:
    """An operation, or an argument that no task uses: it is on one mesh, or, if `repeats`, on one or more."""

    repeats: bool


@dataclass(frozen=True)
class Moved:
    """A value: where it is made, the nodes that use it, and the meshes that have it or need it in any case."""

    size: int
    producer: int | None
    consumers: frozenset[int]
    at: frozenset[int]
    needed: frozenset[int]


@dataclass
class Choices:
    """What can be chosen in an unrolled `@main`: the meshes of each node."""

    meshes: int
    nodes: list[Node]
    values: list[Moved]

    @staticmethod
    def of(module: ir.Module) -> "Choices":
        """Read `@main`. Operations that are cheap or small, and small arguments, may be on several meshes."""
        main = main_of(module)
        block = body_of(main)
        ops = [op for op in operations(block)[:-1] if at.MESH not in op.attributes and op.name != "stablehlo.constant"]
        tasks = [op for op in operations(block) if at.MESH in op.attributes]
        nodes = [Node(is_cheap(op) or _bytes(op) <= SMALL) for op in ops]
        producer: dict[ir.Value, int] = {result: number for number, op in enumerate(ops) for result in op.results}
        fixed: dict[ir.Value, set[int]] = {
            result: {at.integer(op, at.MESH) or 0} for op in tasks for result in op.results
        }
        used: dict[ir.Value, set[int]] = {}
        consumers: dict[ir.Value, set[int]] = {}
        for op in tasks:
            for value in op.operands:
                used.setdefault(value, set()).add(at.integer(op, at.MESH) or 0)
        for number, op in enumerate(ops):
            for value in operands_with_captures(op):
                consumers.setdefault(value, set()).add(number)
        feeds = [_number(entry.get(at.FEEDS)) for entry in at.result_attributes(main)]
        fed = {
            number: value for number, value in zip(feeds, terminator(block).operands, strict=True) if number is not None
        }
        needed = {value: set(meshes) for value, meshes in used.items()}
        everywhere = set(range(int(at.integer(module.operation, at.MESHES) or 1)))
        for number, argument in enumerate(block.arguments):
            fixed[argument] = used.get(argument, set())
            if number in fed and fixed[argument]:
                needed.setdefault(fed[number], set()).update(fixed[argument])
            elif number in fed:
                producer[argument] = len(nodes)
                consumers.setdefault(fed[number], set()).add(len(nodes))
                nodes.append(Node(byte_size(argument.type) <= SMALL))
            elif len(fixed[argument]) != 1:
                fixed[argument] = everywhere
        found = [
            Moved(
                byte_size(value.type),
                producer.get(value),
                frozenset(consumers.get(value, ())),
                frozenset(fixed.get(value, ())),
                frozenset(needed.get(value, ())),
            )
            for value in {**producer, **fixed}
            if consumers.get(value) or needed.get(value)
        ]
        return Choices(len(everywhere), nodes, found)

    def cost(self, chosen: list[set[int]]) -> int:
        """The bytes that move when each node is on the chosen meshes."""
        return sum(
            value.size
            * len(
                value.needed.union(*(chosen[n] for n in value.consumers))
                - (value.at if value.producer is None else chosen[value.producer])
            )
            for value in self.values
        )

    def by_trying_all(self) -> int:
        """The fewest bytes: every choice is tried."""
        return min(map(self.cost, map(list, product(*(self._sets(node) for node in self.nodes)))))

    def _sets(self, node: Node) -> Iterator[set[int]]:
        most = self.meshes if node.repeats else 1
        return map(set, chain.from_iterable(combinations(range(self.meshes), n) for n in range(1, most + 1)))

    def fewest(self) -> int:
        """The fewest bytes, by integer programming: a variable per node and mesh, and one per value and mesh."""
        meshes, first = self.meshes, self.meshes * len(self.nodes)
        count = first + meshes * len(self.values)
        rows: list[dict[int, int]] = []
        lowest: list[int] = []
        highest: list[float] = []

        def constrain(row: dict[int, int], low: int, high: float = np.inf) -> None:
            rows.append(row)
            lowest.append(low)
            highest.append(high)

        for number, node in enumerate(self.nodes):
            constrain({number * meshes + m: 1 for m in range(meshes)}, 1, np.inf if node.repeats else 1)
        for number, value in enumerate(self.values):
            for m in range(meshes):
                have = {first + number * meshes + m: 1}
                if value.producer is not None:
                    have[value.producer * meshes + m] = 1
                if m in value.at:
                    continue
                if m in value.needed:
                    constrain(have, 1)
                for consumer in value.consumers:
                    if consumer != value.producer:
                        constrain(have | {consumer * meshes + m: -1}, 0)
        entries = [(r, c, x) for r, row in enumerate(rows) for c, x in row.items()]
        r, c, x = zip(*entries, strict=True)
        matrix = coo_array((x, (r, c)), shape=(len(rows), count)).tocsr()
        cost = np.concatenate([np.zeros(first), np.repeat([value.size for value in self.values], meshes)])
        found = milp(
            cost,
            constraints=LinearConstraint(matrix, lowest, highest),  # pyright: ignore[reportArgumentType]  # lists too
            integrality=np.arange(count) < first,
            bounds=Bounds(0, 1),
        )
        assert found.success, found.message
        return round(found.fun)


def _bytes(op: ir.Operation) -> int:
    return sum(byte_size(value.type) for value in [*op.operands, *op.results])


def _number(attribute: ir.Attribute | None) -> int | None:
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None
