"""`place-reshards`: moves a change of sharding to the side of a mark on which fewer bytes are sent."""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import sharded
from jaxpp.ir.functions import main_of, nested
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import defining_op

Dimensions = Sequence[tuple[str, ...]]

_CONSTRAINT = "sdy.sharding_constraint"


class PlaceReshards(Pass):
    """Makes each value cross a stage mark in the sharding with the fewest bytes per device.

    Between meshes of one size, each device sends its shard to the device at the same position of the next mesh. A value
    that is replicated over an axis is therefore sent once for each device of that axis. Suppose that a stage ends with
    a value in one sharding, and the next begins with a constraint to another. The sender reshards if the receiver wants
    smaller shards. The receiver reshards (gathers) if it wants larger ones.

    Preconditions: `propagate-shardings` ran.

    ```mlir
    %0 = sdy.sharding_constraint %x <@mesh, [{}]>           ==>   %1 = optimization_barrier %x   // in shards
      : tensor<8xf32>            // %x: <@mesh, [{"data"}]>       %2 = sdy.sharding_constraint %1 <@mesh, [{}]>
    %1 = optimization_barrier %0 {jaxpp.boundary = ...}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Moves the constraints next to the marks of `@main`."""
        mesh = MeshAxes.of(module)
        if mesh is None:
            return
        for op in [op for op in nested(main_of(module)) if boundary.is_mark(op)]:
            for number in range(len(op.operands)):
                _place(mesh, op, number)


def _place(mesh: MeshAxes, mark: ir.Operation, number: int) -> None:
    """Chooses the sharding in which operand `number` of `mark` crosses it."""
    value, crossing = mark.operands[number], mark.results[number]
    if not isinstance(value.type, ir.RankedTensorType):
        return
    source, behind = _source(value), mesh.read(crossing)
    users = [(use.owner.operation, use.operand_number) for use in crossing.uses]
    constrained = bool(users) and all(op.name == _CONSTRAINT for op, _ in users)
    choices = [
        mesh.read(value),
        mesh.read(source),
        behind,
        *(mesh.read(op.results[0]) for op, _ in users if constrained),
    ]
    best = min(choices, key=lambda each: mesh.bytes_per_device(value.type, each))
    if best == mesh.read(source):
        mark.operands[number] = source
        if source != value:
            value.owner.erase()
    elif best != mesh.read(value):
        mark.operands[number] = _constraint(mesh, value, best, mark, ir.InsertionPoint(mark))
    if best == behind:
        return
    found = [mesh.attribute(mesh.read(result)) for result in mark.results]
    found[number] = mesh.attribute(best)
    mark.attributes[at.SHARDING] = sdy.TensorShardingPerValueAttr.get(found)
    if not constrained and users:
        wanted = _constraint(mesh, crossing, behind, mark, ir.InsertionPoint.after(mark))
        for user, place in users:
            user.operands[place] = wanted


def _source(value: ir.Value) -> ir.Value:
    """Returns the operand of the constraint that makes `value`, if only the mark uses `value`; otherwise `value`."""
    op = defining_op(value)
    if op is None or op.name != _CONSTRAINT or len(list(value.uses)) > 1:
        return value
    return op.operands[0]


def _constraint(
    mesh: MeshAxes, value: ir.Value, dimensions: Dimensions, mark: ir.Operation, place: ir.InsertionPoint
) -> ir.Value:
    sharding = mesh.attribute(dimensions)
    return sharded(sdy.sharding_constraint(value, sharding, ip=place, loc=mark.location), sharding, value)
