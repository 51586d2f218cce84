"""Weights that are sharded over the axis of the batch (FSDP), so that each use gathers them."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.ir.accumulators import ADD, CONSTRAINT, SUBTRACT, carried_updates
from jaxpp.ir.build import sharded
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import nested, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import traits
from jaxpp.ir.shardings import MeshAxes, without
from jaxpp.ir.tasks import op_of
from jaxpp.ir.values import block_of, defining_op

_DOT = "stablehlo.dot_general"


@dataclass(frozen=True, eq=False)
class Gather:
    """A weight from outside of the loop, the axes over which its users gather it, and its views in the loop's body."""

    value: ir.Value
    axes: frozenset[str]
    views: list[ir.Value]

    def extra_bytes(self, mesh: MeshAxes) -> int:
        """Returns the bytes per device of the gathered value, which the loop keeps in addition to the shards."""
        return mesh.bytes_per_device(self.value.type, without(mesh.read(self.value), self.axes))


def find_gathers(mesh: MeshAxes, loop: MicrobatchLoop, *, rows: bool = False) -> list[Gather]:
    """Returns the weights that the tasks gather, each once, in the order of their first use.

    Args:
        mesh: the axes of the mesh.
        loop: the microbatch loop.
        rows: for stacked layers, return the rows that a stage reads (a slice in the body) instead of the whole stack.
    """
    found: dict[ir.Value, tuple[set[str], dict[ir.Value, None]]] = {}
    for op in operations(loop.body):
        if op.name != _DOT:
            continue
        for number in (0, 1):
            axes = {axis for names in mesh.read(op.operands[number]) for axis in names}
            if axes:
                axes &= _axes_of_others(mesh, op, number)
            if not axes:
                continue
            root, views = _root(op.operands[number], loop.body, rows)
            if block_of(root) == loop.body and not _is_rows(root, loop.body):
                continue
            axes.intersection_update(axis for names in mesh.read(root) for axis in names)
            if axes:
                entry = found.setdefault(root, (set(), {}))
                entry[0].update(axes)
                entry[1].update(dict.fromkeys(views))
    return [Gather(value, frozenset(axes), list(views)) for value, (axes, views) in found.items()]


def gather(mesh: MeshAxes, loop: MicrobatchLoop, weight: Gather) -> list[ir.Operation]:
    """Gathers a weight before the loop, for all of its microbatches; returns the operations that do it."""
    uses = [(use.owner.operation, use.operand_number) for use in weight.value.uses]
    uses = [(op, number) for op, number in uses if op != loop.op and op_of(loop.op.block, op) == loop.op]
    source, ip = weight.value, ir.InsertionPoint(loop.op)
    rows = [ir.OpResult(source).owner.operation.clone(ip).operation] if _is_rows(source, loop.body) else []
    source = rows[0].results[0] if rows else source
    whole = mesh.attribute(without(mesh.read(weight.value), weight.axes))
    made = sdy.sharding_constraint(source, whole, ip=ip, loc=loop.op.location)
    for op, number in uses:
        op.operands[number] = made
    for view in weight.views:
        sharded(view, mesh.attribute(without(mesh.read(view), weight.axes)))
    return [*rows, ir.OpResult(made).owner.operation]


def no_gather(mesh: MeshAxes, loop: MicrobatchLoop, chosen: str) -> PassError:
    """Returns the error that no product gathers a weight, with the reason.

    No weight is sharded, the products are in an inner loop, or the activations are not sharded.
    """
    found = [
        (op, axes) for op in nested(loop.op) if op.name == _DOT and (axes := _axes_of_weights(mesh, op, loop.body))
    ]
    outside = [(op, axes) for op, axes in found if op.block == loop.body]
    op, axes = (outside or found or [(loop.op, [])])[0]
    return _refusal(f"gather_weights is {chosen!r}, but no product of a stage gathers a weight", loop, op, axes)


def no_scatter(mesh: MeshAxes, loop: MicrobatchLoop) -> PassError:
    """Returns the error that no sum over the microbatches also sums over the axis that shards it, with the reason."""
    message = "scatter_gradients is 'chunk', but no gradient of a stage is scattered"
    found: list[tuple[ir.Operation, list[str]]] = []
    read: ir.Operation | None = None
    for number, result in enumerate(loop.op.results):
        axes = [axis for names in mesh.read(result) for axis in names]
        uses = [use for use in loop.body.arguments[number].uses if use.owner.operation.name == ADD]
        for use in uses if axes else ():
            added, _ = _root(use.owner.operation.operands[1 - use.operand_number], loop.body, False)
            found.append((defining_op(added) or loop.op, axes))
        if uses and axes and not carried_updates(loop.op, number, (ADD, SUBTRACT, CONSTRAINT)):
            read = read or uses[0].owner.operation
    outside = [(op, axes) for op, axes in found if op.name != "stablehlo.while"]
    if read is not None:
        hint = (
            "something besides this addition reads the sum, which is then complete in each microbatch: leave this out"
        )
        return PassError(message, location=read.location, hint=hint)
    op, axes = (outside or found or [(loop.op, [])])[0]
    return _refusal(message, loop, op, axes)


def _refusal(message: str, loop: MicrobatchLoop, op: ir.Operation, axes: Sequence[str]) -> PassError:
    """Returns the error for `op`, which reads a weight sharded over `axes`, or makes the gradient of such a weight."""
    if not axes:
        hint = "shard weights over the axis of the batch, or leave this out"
    elif op.block != loop.body or op.name == "stablehlo.while":
        hint = (
            "in a loop over the layers of a stage they are gathered layer by layer, and their gradients scattered: "
            "write the layers one after the other, or leave this out"
        )
    else:
        hint = (
            f"the weight is sharded over {axes[0]!r}, but not the examples of the activations that it meets: say so of "
            f"these, as jax.lax.with_sharding_constraint(x, NamedSharding(mesh.jax_mesh, PartitionSpec({axes[0]!r})))"
        )
    return PassError(message, location=op.location, hint=hint)


def _axes_of_weights(mesh: MeshAxes, op: ir.Operation, body: ir.Block) -> list[str]:
    """Returns the axes that shard the operands of a product that come from outside of the loop.

    For a product in an inner loop, returns the axes of all its operands.
    """
    roots = [_root(value, op.block, False)[0] for value in op.operands]
    weights = [root for root in roots if block_of(root) not in (op.block, body) or op.block != body]
    return [axis for root in weights for names in mesh.read(root) for axis in names]


def _axes_of_others(mesh: MeshAxes, op: ir.Operation, number: int) -> set[str]:
    """Returns the axes that shard the dimensions of a product's result that come from operands other than `number`."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = len(numbers.lhs_batching_dimensions)
    left = ir.RankedTensorType(op.operands[0].type).rank - len(numbers.lhs_contracting_dimensions)
    axes = mesh.read(op.results[0])
    return {axis for names in (axes[left:] if number == 0 else axes[batch:left]) for axis in names}


def _is_rows(value: ir.Value, body: ir.Block) -> bool:
    """Whether `value` is a slice, made in `body`, of rows of a value from outside."""
    op = defining_op(value)
    if op is None or op.name != "stablehlo.slice" or op.block != body or block_of(op.operands[0]) == body:
        return False
    (_, *before), (_, *after) = (ir.RankedTensorType(each.type).shape for each in (op.operands[0], value))
    return before == after


def _root(value: ir.Value, body: ir.Block, rows: bool) -> tuple[ir.Value, list[ir.Value]]:
    """Returns the value of which `value` is a view in `body`, and the views between them.

    Args:
        value: the value.
        body: the body of the loop.
        rows: as in `find_gathers`.
    """
    views: list[ir.Value] = []
    while (op := defining_op(value)) is not None and traits(op).view and op.block == body:
        if rows and _is_rows(value, body):
            break
        views.append(value)
        value = op.operands[0]
    return value, views
