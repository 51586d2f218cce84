"""Values: what defines one, how big it is, whether anyone uses it."""

from jaxlib.mlir import ir


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The operation whose result `value` is; None for the argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def is_used(value: ir.Value) -> bool:
    """Whether any operation uses `value`."""
    return any(True for _ in value.uses)


def is_zero(value: ir.Value) -> bool:
    """Whether `value` is a real constant zero, perhaps broadcast."""
    op = defining_op(value)
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "sdy.sharding_constraint", "stablehlo.reshape"):
        op = defining_op(op.operands[0])
    if op is None or op.name != "stablehlo.constant":
        return False
    if isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.ComplexType):
        return False  # jaxlib can't read its attribute
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return False
    splat = attribute.get_splat_value()
    return isinstance(splat, ir.IntegerAttr | ir.FloatAttr) and splat.value == 0


def zeros_of(type_: ir.Type) -> ir.Operation:
    """A constant of zeros, in no block yet."""
    element = ir.RankedTensorType(type_).element_type
    real = "0.0" if isinstance(element, ir.FloatType) else "0"
    zero = "(0.0, 0.0)" if isinstance(element, ir.ComplexType) else real
    return ir.Operation.parse(f"%0 = stablehlo.constant dense<{zero}> : {type_}").operation


def byte_size(type_: ir.Type) -> int:
    """Bytes of a ranked tensor of static shape (a sub-byte element counts as one byte); 0 for anything else."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0
    element: ir.Type = type_.element_type
    parts = 1
    if isinstance(element, ir.ComplexType):
        element, parts = element.element_type, 2
    width: int = getattr(element, "width", 8)
    count = 1
    for size in type_.shape:
        count *= size
    return count * parts * max(1, width // 8)
