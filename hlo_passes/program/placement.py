"""On which mesh each operation outside of the microbatch loop runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.cheap import is_cheap
from jaxpp.hlo_passes.ir.functions import (
    body_of,
    has_side_effect,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.hlo_passes.ir.values import byte_size, is_used
from jaxpp.hlo_passes.program.stacks import Stacks

# Computing something this small again is cheaper than sending it.
SMALL = 1 << 16


@dataclass
class Placement:
    """Where the operations of an unrolled `@main` run.

    `ops` are the operations outside of the loop in program order, `tasks` the task calls. `home` maps each fixed
    operation to its mesh. The operations that are not in it float: they are computed wherever they are used, because
    they depend on constants and on arguments of no single mesh, or because they only make something small bigger (the
    broadcast of a norm: `sources` holds what such an operation depends on). `arguments` maps each argument to its
    meshes; `returned` lists the meshes of each result. The slice that takes a block of one of the `stacks` counts as an
    argument of the block's mesh, and is in `made_by_tasks`.
    """

    main: ir.Operation
    stacks: Stacks
    ops: list[ir.Operation] = field(default_factory=list)
    tasks: dict[ir.Operation, int] = field(default_factory=dict)
    home: dict[ir.Operation, int] = field(default_factory=dict)
    sources: dict[ir.Operation, list[ir.Value]] = field(default_factory=dict)
    operands: dict[ir.Operation, list[ir.Value]] = field(default_factory=dict)
    producers: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    made_by_tasks: dict[ir.Value, int] = field(default_factory=dict)
    used_by_tasks: dict[ir.Value, set[int]] = field(default_factory=dict)
    arguments: dict[ir.Value, set[int]] = field(default_factory=dict)
    returned: list[list[int]] = field(default_factory=list)

    def mesh_of(self, value: ir.Value) -> int | None:
        """The one mesh where `value` is; None when it floats or is an argument of several meshes."""
        op = self.producers.get(value)
        if op is not None:
            return self.home.get(op)
        meshes = self.arguments.get(value)
        if meshes is None:
            return self.made_by_tasks[value]
        return next(iter(meshes)) if len(meshes) == 1 else None

    def behind(self, op: ir.Operation) -> list[ir.Value]:
        """The values on one mesh that `op` depends on, directly or through floating operations."""
        values: dict[ir.Value, None] = {}
        for value in self.operands[op]:
            producer = self.producers.get(value)
            if producer is not None and producer not in self.home:
                values.update(dict.fromkeys(self.sources.get(producer, ())))
            elif self.mesh_of(value) is not None:
                values[value] = None
        return list(values)


def place(main: ir.Operation) -> Placement:
    """Decide where the operations of an unrolled `@main` run.

    An operation goes where its operands are; with operands on several meshes, where the fewest bytes move. What
    depends on no mesh is computed where it is used, unless it is big and expensive: then once, where it is used
    first. Arguments are where they are used.
    """
    placement = _read(main)
    _place_blocks(placement)
    # Twice: the meshes of an argument that no task uses (an optimizer's state) follow from its users' meshes.
    for _ in range(2):
        _fix_forward(placement)
        _fix_heavy(placement)
        place_arguments(placement, pulls_of(placement))
    return placement


def _read(main: ir.Operation) -> Placement:
    block = body_of(main)
    stacks = Stacks.of(main)
    placement = Placement(main, stacks, arguments={argument: set() for argument in block.arguments})
    joins = stacks.joins
    for op in operations(block)[:-1]:
        if op in stacks.slices or op in joins:
            continue
        mesh = at.integer(op, at.MESH)
        if mesh is None:
            placement.ops.append(op)
            placement.operands[op] = operands_with_captures(op)
            placement.producers.update((result, op) for result in op.results)
        else:
            placement.tasks[op] = mesh
            placement.made_by_tasks.update((result, mesh) for result in op.results)
            for value in op.operands:
                if value not in placement.made_by_tasks:
                    placement.used_by_tasks.setdefault(value, set()).add(mesh)
    _drop_dead(placement)
    for argument, meshes in placement.arguments.items():
        meshes.update(placement.used_by_tasks.get(argument, ()))
    return placement


def _place_blocks(placement: Placement) -> None:
    for op, block in placement.stacks.slices.items():
        placement.made_by_tasks[op.results[0]] = block.mesh
    for argument, homes in placement.stacks.arguments.items():
        placement.arguments[argument] = set(homes)


def _drop_dead(placement: Placement) -> None:
    for op in reversed(placement.ops):
        if not any(map(is_used, op.results)) and not has_side_effect(op):
            for result in op.results:
                del placement.producers[result]
            del placement.operands[op]
            op.erase()
    placement.ops = list(placement.operands)


def _fix_forward(placement: Placement) -> None:
    """Fix each operation that depends on a value of one mesh, in program order."""
    for op in placement.ops:
        if op not in placement.home:
            _fix(placement, op)


def _fix(placement: Placement, op: ir.Operation) -> None:
    sources = placement.behind(op)
    placement.sources[op] = sources
    bytes_at: dict[int, int] = {}
    for value in sources:
        mesh = placement.mesh_of(value)
        if mesh is not None:
            bytes_at[mesh] = bytes_at.get(mesh, 0) + byte_size(value.type)
    if bytes_at and not (is_cheap(op) and _expands(op)):
        # Of equals the first operand's: a sum of accumulators names the home of its stage first.
        placement.home[op] = max(bytes_at, key=bytes_at.__getitem__)


def _expands(op: ir.Operation) -> bool:
    """Whether `op` makes something bigger of what it gets, and for other operations only."""
    inward = sum(byte_size(value.type) for value in op.operands)
    returned = any(use.owner.operation.name == "func.return" for result in op.results for use in result.uses)
    return not returned and sum(byte_size(result.type) for result in op.results) > inward


def pulls_of(placement: Placement, returned: Mapping[ir.Value, set[int]] | None = None) -> dict[ir.Value, set[int]]:
    """For each value that is no task's: the meshes of the tasks, fixed operations and results that it reaches."""
    pulls = {value: set(meshes) for value, meshes in (returned or {}).items()}
    for value, meshes in placement.used_by_tasks.items():
        pulls.setdefault(value, set()).update(meshes)
    for op in reversed(placement.ops):
        mesh = placement.home.get(op)
        meshes = {mesh} if mesh is not None else set[int]().union(*(pulls.get(r, ()) for r in op.results))
        for value in placement.operands[op]:
            pulls.setdefault(value, set()).update(meshes)
    return pulls


def _fix_heavy(placement: Placement) -> None:
    """Operations that float but are neither cheap nor small, or have a side effect, run once.

    What depends on them follows.
    """
    pulls = pulls_of(placement)
    for op in placement.ops:
        if op in placement.home:
            continue
        once = has_side_effect(op) or not (is_cheap(op) or is_small(op))
        if once:
            placement.home[op] = min(set[int]().union(*(pulls.get(r, ()) for r in op.results)), default=0)
        elif placement.behind(op):
            _fix(placement, op)


def is_small(op: ir.Operation) -> bool:
    """Whether `op` reads and writes so little that computing it again is cheaper than sending its result."""
    return sum(byte_size(value.type) for value in [*op.operands, *op.results]) <= SMALL


def place_results(placement: Placement) -> None:
    """A result is where it is computed, or where the argument is that it becomes in the next step."""
    arguments = list(placement.arguments)
    table = at.result_attributes(placement.main)
    pulls: dict[ir.Value, set[int]] = {}
    for number, value in enumerate(terminator(body_of(placement.main)).operands):
        feeds = table[number].get(at.FEEDS)
        fed = feeds.value if isinstance(feeds, ir.IntegerAttr) else -1
        argument = arguments[fed] if 0 <= fed < len(arguments) else None
        if number in placement.stacks.results:
            join = placement.stacks.results[number]
            for block, mesh in join.blocks():
                pulls.setdefault(block, set()).add(mesh)
            placement.returned.append(join.homes)
            continue
        if argument is not None and placement.arguments[argument]:
            meshes = placement.arguments[argument]
        elif value in placement.arguments:
            meshes = placement.arguments[value] or {0}
        else:
            mesh = placement.mesh_of(value)
            meshes = {mesh} if mesh is not None else _shared_by_arguments(placement, value)
        if argument is not None and not placement.arguments[argument]:
            placement.arguments[argument].update(meshes)
        pulls.setdefault(value, set()).update(meshes)
        placement.returned.append(sorted(meshes))
    # What only results need is where they are.
    place_arguments(placement, pulls_of(placement, pulls))


def place_arguments(placement: Placement, pulls: Mapping[ir.Value, set[int]]) -> None:
    """Put the arguments that are on no mesh, or on several, wherever they are used; from one mesh a value is sent."""
    for argument, meshes in placement.arguments.items():
        if len(meshes) != 1:
            meshes.update(pulls.get(argument, ()))


def _shared_by_arguments(placement: Placement, value: ir.Value) -> set[int]:
    """One mesh that has all the arguments that a floating value depends on; mesh 0 when there is none."""
    seen, work = {value}, [value]
    shared: set[int] | None = None
    while work:
        current = work.pop()
        meshes = placement.arguments.get(current)
        if meshes:
            shared = set(meshes) if shared is None else shared & meshes
        producer = placement.producers.get(current)
        fresh = [v for v in placement.operands.get(producer, ()) if v not in seen] if producer is not None else []
        seen.update(fresh)
        work.extend(fresh)
    return {min(shared)} if shared else {0}
