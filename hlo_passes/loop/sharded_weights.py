"""Weights that are sharded over the axis that also shards the batch (FSDP): each use of one gathers it."""

from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import nested, operations
from jaxpp.hlo_passes.ir.loop import MicrobatchLoop
from jaxpp.hlo_passes.ir.shardings import MeshAxes, without
from jaxpp.hlo_passes.ir.values import defining_op

_VIEWS = ("stablehlo.transpose", "stablehlo.reshape", "stablehlo.convert")


@dataclass(frozen=True, eq=False)
class Gather:
    """A value from outside of the loop, the axes over which its users gather it, and views of it in the body."""

    value: ir.Value
    axes: frozenset[str]
    views: list[ir.Value]

    def extra_bytes(self, mesh: MeshAxes) -> int:
        """Bytes per device that the gathered value takes, and that the loop keeps besides the shards."""
        return mesh.bytes_per_device(self.value.type, without(mesh.read(self.value), self.axes))


def find_gathers(mesh: MeshAxes, loop: MicrobatchLoop) -> list[Gather]:
    """The weights that the tasks gather, each once, in the order of their first use."""
    inside = set[ir.Value](loop.body.arguments) | {r for op in operations(loop.body) for r in op.results}
    found: dict[ir.Value, tuple[set[str], dict[ir.Value, None]]] = {}
    for op in operations(loop.body):
        if op.name != "stablehlo.dot_general":
            continue
        for number in (0, 1):
            axes = {axis for names in mesh.read(op.operands[number]) for axis in names}
            axes &= _axes_of_others(mesh, op, number)
            root, views = _root(op.operands[number], loop.body)
            if axes and root not in inside:
                entry = found.setdefault(root, (set(), {}))
                entry[0].update(axes)
                entry[1].update(dict.fromkeys(views))
    return [Gather(value, frozenset(axes), list(views)) for value, (axes, views) in found.items()]


def gather(mesh: MeshAxes, loop: MicrobatchLoop, weight: Gather) -> None:
    """Gather a weight before the loop, for all of its microbatches."""
    inside = set(nested(loop.op))
    uses = [(use.owner.operation, use.operand_number) for use in weight.value.uses if use.owner.operation in inside]
    whole = mesh.attribute(without(mesh.read(weight.value), weight.axes))
    made = ir.Operation.create(
        "sdy.sharding_constraint",
        results=[weight.value.type],
        operands=[weight.value],
        attributes={"sharding": whole},
        ip=ir.InsertionPoint(loop.op),
        loc=loop.op.location,
    )
    for op, number in uses:
        op.operands[number] = made.results[0]
    for view in weight.views:
        op = defining_op(view)
        if op is not None:
            attribute = mesh.attribute(without(mesh.read(view), weight.axes))
            op.attributes[at.SHARDING] = sdy.TensorShardingPerValueAttr.get([attribute])


def _axes_of_others(mesh: MeshAxes, op: ir.Operation, number: int) -> set[str]:
    """The axes that the result of a product has on the dimensions of its operand other than `number`."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = len(numbers.lhs_batching_dimensions)
    left = ir.RankedTensorType(op.operands[0].type).rank - len(numbers.lhs_contracting_dimensions)
    axes = mesh.read(op.results[0])
    return {axis for names in (axes[left:] if number == 0 else axes[batch:left]) for axis in names}


def _root(value: ir.Value, body: ir.Block) -> tuple[ir.Value, list[ir.Value]]:
    """What `value` is a view of in `body`, and the views on the way."""
    views: list[ir.Value] = []
    while (op := defining_op(value)) is not None and op.name in _VIEWS and op.block == body:
        views.append(value)
        value = op.operands[0]
    return value, views
