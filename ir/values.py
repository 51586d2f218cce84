"""Values: their definitions, sizes and uses."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from jaxlib.mlir import ir

from jaxpp.ir.ops import traits
from jaxpp.ir.tensors import is_splat_constant, read_constant

_Each = TypeVar("_Each")


def defining_op(value: ir.Value) -> ir.Operation | None:
    """Returns the operation that makes `value`; None for the argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def block_of(value: ir.Value) -> ir.Block:
    """Returns the block in which `value` is made, or whose argument it is."""
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def is_integer_scalar(value: ir.Value) -> bool:
    """Whether a value is one integer, as a microbatch count is."""
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and not type_.rank and isinstance(type_.element_type, ir.IntegerType)


def is_used(value: ir.Value) -> bool:
    """Whether any operation uses `value`."""
    return next(value.uses, None) is not None


def is_zero(value: ir.Value) -> bool:
    """Whether all bits of `value` are zero: a constant 0, not -0.0, perhaps broadcast, cast or bitcast."""
    found = value
    while str(ir.RankedTensorType(found.type).element_type) != "f8E8M0FNU":  # it has no zero: casting one makes a NaN
        op = defining_op(found)
        if op is None or not traits(op).view:
            return op is not None and is_splat_constant(op) and not any(read_constant(op).flat[:1].tobytes())
        found = op.operands[0]
    return False


def only_use(value: ir.Value) -> ir.OpOperand | None:
    """Returns the use of `value`, if it has exactly one."""
    uses = list(value.uses)
    return uses[0] if len(uses) == 1 else None


def viewed(value: ir.Value) -> ir.Value:
    """Returns the value that `value` is a view of, through all views; `value` itself if it is no view."""
    return origin(value, lambda op: traits(op).view)


def origin(value: ir.Value, passes: Callable[[ir.Operation], bool]) -> ir.Value:
    """Goes from `value` to the first operand of its defining op while the op `passes`; returns the last value."""
    while (op := defining_op(value)) is not None and passes(op):
        value = op.operands[0]
    return value


def closure(roots: Iterable[_Each], following: Callable[[_Each], Iterable[_Each]]) -> dict[_Each, None]:
    """Returns `roots` and all that `following` reaches from them, each once; without recursion, as chains are long."""
    found = dict.fromkeys(roots)
    work = list(found)
    while work:
        for each in following(work.pop()):
            if each not in found:
                found[each] = None
                work.append(each)
    return found


def byte_size(type_: ir.Type) -> int:
    """Returns the bytes of a ranked tensor of static shape (at least one byte per element); 0 for anything else."""
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
    """The `byte_size` of each type, computed once: taking a type apart takes longer than a look-up."""

    def __missing__(self, type_: ir.Type) -> int:
        """Computes the size of a new type."""
        size = self[type_] = byte_size(type_)
        return size
