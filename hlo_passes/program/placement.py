"""On which mesh each operation outside of the microbatch loop runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.attributes import byte_size
from jaxpp.hlo_passes.ir.functions import body_of, operands_with_captures, operations, terminator
from jaxpp.hlo_passes.stages.cheap import is_cheap

# Computing something this small again is cheaper than sending it.
SMALL = 1 << 16


@dataclass
class Placement:
    """Where the operations of an unrolled `@main` run.

    `home` maps each fixed operation (every task call among them) to its mesh. The operations that are not in it
    float: they depend on constants and on arguments of no single mesh, and are computed wherever they are used.
    `arguments` maps each argument to its meshes; `returned` lists the meshes of each result.
    """

    main: ir.Operation
    ops: list[ir.Operation] = field(default_factory=list)
    tasks: list[ir.Operation] = field(default_factory=list)
    home: dict[ir.Operation, int] = field(default_factory=dict)
    operands: dict[ir.Operation, list[ir.Value]] = field(default_factory=dict)
    producers: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    arguments: dict[ir.Value, set[int]] = field(default_factory=dict)
    returned: list[list[int]] = field(default_factory=list)

    def mesh_of(self, value: ir.Value) -> int | None:
        """The one mesh where `value` is; None when it floats or is an argument of several meshes."""
        op = self.producers.get(value)
        if op is not None:
            return self.home.get(op)
        meshes = self.arguments.get(value, set())
        return next(iter(meshes)) if len(meshes) == 1 else None


def place(main: ir.Operation) -> Placement:
    """Decide where the operations of an unrolled `@main` run.

    An operation goes where its operands are; with operands on several meshes, where the fewest bytes move. What
    depends on no mesh is computed where it is used, unless it is big and expensive: then once, where it is used
    first. Arguments are where they are used.
    """
    block = body_of(main)
    placement = Placement(main, arguments={argument: set() for argument in block.arguments})
    for op in operations(block)[:-1]:
        mesh = at.integer(op, at.MESH)
        if mesh is not None:
            placement.tasks.append(op)
            placement.home[op] = mesh
        else:
            placement.ops.append(op)
        placement.producers.update((result, op) for result in op.results)
    placement.operands = {op: operands_with_captures(op) for op in [*placement.ops, *placement.tasks]}
    for op in placement.tasks:
        for value in placement.operands[op]:
            if value in placement.arguments:
                placement.arguments[value].add(placement.home[op])
    returned = list(terminator(block).operands)
    # Twice: the meshes of an argument that no task uses (an optimizer's state) follow from its users' meshes.
    for _ in range(2):
        _fix_forward(placement)
        _pull_arguments(placement)
    _fix_heavy(placement)
    _place_results(placement, returned)
    return placement


def _fix_forward(placement: Placement) -> None:
    """Fix each operation that has an operand on one mesh, in program order."""
    for op in placement.ops:
        if op in placement.home:
            continue
        bytes_at: dict[int, int] = {}
        for value in placement.operands[op]:
            mesh = placement.mesh_of(value)
            if mesh is not None:
                bytes_at[mesh] = bytes_at.get(mesh, 0) + byte_size(value.type)
        if bytes_at:
            placement.home[op] = min(bytes_at, key=lambda mesh: (-bytes_at[mesh], mesh))


def _pulls(placement: Placement) -> dict[ir.Value, set[int]]:
    """For each value that floats or is an argument: the meshes of the fixed operations that it reaches."""
    pulls: dict[ir.Value, set[int]] = {}
    for op in [*placement.tasks, *reversed(placement.ops)]:
        mesh = placement.home.get(op)
        meshes = {mesh} if mesh is not None else set[int]().union(*(pulls.get(r, set()) for r in op.results))
        if meshes:
            for value in placement.operands[op]:
                if value in placement.arguments or placement.producers[value] not in placement.home:
                    pulls.setdefault(value, set()).update(meshes)
    return pulls


def _pull_arguments(placement: Placement) -> None:
    pulls = _pulls(placement)
    for argument, meshes in placement.arguments.items():
        if not meshes:
            meshes.update(pulls.get(argument, set()))


def _fix_heavy(placement: Placement) -> None:
    """Operations that float but are neither cheap nor small run once, and what depends on them follows."""
    for op in placement.ops:
        if op in placement.home or is_cheap(op) or _is_small(op):
            continue
        pulled = set[int]().union(*(_pulls(placement).get(result, set()) for result in op.results))
        placement.home[op] = min(pulled, default=0)
        _fix_forward(placement)


def _is_small(op: ir.Operation) -> bool:
    return sum(byte_size(value.type) for value in [*op.operands, *op.results]) <= SMALL


def _place_results(placement: Placement, returned: Sequence[ir.Value]) -> None:
    """A result is where it is computed, or where the argument is that it becomes in the next step."""
    arguments = list(placement.arguments)
    for number, value in enumerate(returned):
        feeds = at.result_attribute(placement.main, number, at.FEEDS)
        argument = arguments[ir.IntegerAttr(feeds).value] if feeds is not None else None
        op = placement.producers.get(value)
        if value in placement.arguments:
            meshes = placement.arguments[value] or {0}
            placement.arguments[value].update(meshes)
        elif argument is not None and placement.arguments[argument]:
            meshes = placement.arguments[argument]
        else:
            meshes = {placement.home[op]} if op in placement.home else {0}
        if argument is not None:
            placement.arguments[argument].update(meshes)
        placement.returned.append(sorted(meshes))
