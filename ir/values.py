"""Values: what defines one, how big it is, whether anyone uses it."""

from jaxlib.mlir import ir

from jaxpp.ir.ops import traits


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The operation whose result `value` is; None for the argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def block_of(value: ir.Value) -> ir.Block:
    """The block in which `value` is made, or whose argument it is."""
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def is_integer_scalar(value: ir.Value) -> bool:
    """Whether a value is one integer, as a count of microbatches is."""
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and not type_.rank and isinstance(type_.element_type, ir.IntegerType)


def is_used(value: ir.Value) -> bool:
    """Whether any operation uses `value`."""
    return next(value.uses, None) is not None


def is_zero(value: ir.Value) -> bool:
    """Whether `value` is a real constant zero, perhaps broadcast or cast."""
    op = defining_op(viewed(value))
    if op is None or op.name != "stablehlo.constant":
        return False
    if isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.ComplexType):
        return False  # jaxlib can't read its attribute
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return False
    splat = attribute.get_splat_value()
    return isinstance(splat, ir.IntegerAttr | ir.FloatAttr) and splat.value == 0


def viewed(value: ir.Value) -> ir.Value:
    """What `value` is a view of, through all views: itself if it is none."""
    while (op := defining_op(value)) is not None and traits(op).view:
        value = op.operands[0]
    return value


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


class ByteSizes(dict[ir.Type, int]):
    """The `byte_size` of each type, found once: to take a type apart takes longer than to look it up."""

    def __missing__(self, type_: ir.Type) -> int:
        """Find it."""
        size = self[type_] = byte_size(type_)
        return size
