"""The traits of operations, in one table with a row for each combination of traits.

A new operation is entered here; no pass has such a table of its own. How a pass treats an operation (how it cuts it
into rows, how it evaluates it) stands in the pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir


@dataclass(frozen=True)
class Traits:
    """The traits of an operation. An operation without a row has none: passes take nothing for granted.

    Attributes:
        cheap: computing it again costs no more than reading its result.
        light: it takes about as long as reading its operands, or less.
        elementwise: each element of the result depends on the operands' elements at its place; see `is_elementwise`.
        view: the result has elements of operand 0 only: in other places, several times, or cast.
        linear: groups of operands in which the operation is linear together, while the others stay fixed: for (0, 1),
            `op(a + b, c + d) == op(a, c) + op(b, d)`; see `linear_in`.
        product: a matrix product, a convolution, or an operation that may take as long. Such operations make the
            gradients of weights.
        effect: running it once differs from running it twice, or not at all.
        collective: devices exchange values, by the devices' numbers.
        rounds: the last bit of its result may depend on what XLA fuses it with; see `rounds`.
        jumps: a change in the last bit of an operand may change the result by much; see `jumps`.
    """

    cheap: bool = False
    light: bool = False
    elementwise: bool = False
    view: bool = False
    linear: tuple[tuple[int, ...], ...] = ()
    product: bool = False
    effect: bool = False
    collective: bool = False
    rounds: bool = False
    jumps: bool = False


_LIGHT = Traits(light=True)
_CHEAP = Traits(cheap=True, light=True)
_VIEW = replace(_CHEAP, view=True, linear=((0,),))
_SIMPLE = replace(_CHEAP, elementwise=True)
_ARITHMETIC = replace(_SIMPLE, rounds=True)
_FUNCTION = replace(_LIGHT, elementwise=True, rounds=True)

_ROWS = (
    (_CHEAP, "broadcast concatenate constant dynamic_slice dynamic_update_slice iota pad sdy.constant"),
    (_VIEW, "broadcast_in_dim reshape reverse slice transpose"),
    (replace(_VIEW, elementwise=True), "convert sdy.sharding_constraint"),
    (replace(_VIEW, elementwise=True, linear=()), "bitcast_convert"),
    (replace(_ARITHMETIC, linear=((0, 1),)), "add subtract"),
    (replace(_ARITHMETIC, linear=((0,), (1,))), "multiply"),
    (replace(_ARITHMETIC, linear=((0,),)), "divide"),
    (_ARITHMETIC, "reduce_precision chlo.square"),
    (replace(_SIMPLE, linear=((0,),)), "negate"),
    (_SIMPLE, "abs clamp complex imag maximum minimum real select chlo.conj"),
    (_SIMPLE, "and count_leading_zeros not or popcnt shift_left shift_right_arithmetic shift_right_logical xor"),
    (replace(_SIMPLE, jumps=True), "ceil compare floor is_finite round_nearest_afz round_nearest_even sign"),
    (replace(_SIMPLE, jumps=True), "chlo.is_inf chlo.is_neg_inf chlo.is_pos_inf"),
    (replace(_ARITHMETIC, jumps=True), "remainder"),
    (_FUNCTION, "atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic power rsqrt sine sqrt"),
    (_FUNCTION, "tan tanh chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.bessel_i1e chlo.cosh"),
    (_FUNCTION, "chlo.digamma chlo.erf chlo.erf_inv chlo.erfc chlo.lgamma chlo.mulhi chlo.next_after chlo.polygamma"),
    (_FUNCTION, "chlo.sinh chlo.tan chlo.zeta"),
    (_LIGHT, "gather reduce"),
    (Traits(product=True), "convolution custom_call dot dot_general scatter chlo.ragged_dot"),
    (Traits(effect=True), "infeed outfeed recv rng send"),
    (Traits(collective=True), "all_gather all_reduce all_to_all collective_broadcast collective_permute"),
    (Traits(collective=True), "collective_reduce reduce_scatter"),
)

COMMUTATIVE = frozenset(f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor"))
"""Operations whose two operands may be exchanged."""

IDEMPOTENT = frozenset(f"stablehlo.{name}" for name in ("and", "maximum", "minimum", "or"))
"""Operations whose result for two equal operands is that operand: they choose, and don't round."""

_UNKNOWN = Traits()
_TRAITS = {name if "." in name else f"stablehlo.{name}": row for row, names in _ROWS for name in names.split()}


def traits(op: ir.Operation) -> Traits:
    """Returns the traits of `op`, by its name."""
    return _TRAITS.get(op.name, _UNKNOWN)


def traits_of(name: str) -> Traits:
    """Returns the traits of the operations of this name."""
    return _TRAITS.get(name, _UNKNOWN)


# The most operations that are computed again to make one value, rather than keeping or sending it. An operation that is
# needed twice counts twice. JAX's masks, positions and casts take 2 to 20. A threefry generator takes hundreds, which
# is not worth it.
MOST_RECOMPUTED = 48


def is_cheap(op: ir.Operation) -> bool:
    """Whether computing `op` again costs no more than reading its result."""
    return traits(op).cheap


def is_elementwise(op: ir.Operation) -> bool:
    """Whether each element of `op`'s one result depends on the operands' elements at its place, and on scalars."""
    if not traits(op).elementwise:
        return False
    shape = shape_of(op.results[0])
    scalars = op.name in ("stablehlo.select", "stablehlo.clamp")
    return all((found := shape_of(value)) == shape or (scalars and not found) for value in op.operands)


def linear_in(op: ir.Operation) -> Sequence[tuple[int, ...]]:
    """Returns the groups of operands in which `op` is linear: none for a cast that rounds, or for integer factors."""
    if op.name == "stablehlo.convert":
        return traits(op).linear if _keeps_floats(op.operands[0], op.results[0]) else ()
    if op.name in ("stablehlo.multiply", "stablehlo.divide") and not float_width(op.results[0]):
        return ()
    return traits(op).linear


def rounds(op: ir.Operation) -> bool:
    """Whether XLA may round `op` differently elsewhere, for equal operands: it fuses sums of products, and casts."""
    if op.name == "stablehlo.convert":
        are_floats = float_width(op.operands[0]) and float_width(op.results[0])
        return bool(are_floats) and not _keeps_floats(op.operands[0], op.results[0])
    return traits(op).rounds


def jumps(op: ir.Operation) -> bool:
    """Whether a change in the last bit of a floating point operand may change the result of `op` by much."""
    if op.name == "stablehlo.convert":
        return not float_width(op.results[0]) and float_width(op.operands[0]) > 0
    return traits(op).jumps and float_width(op.operands[0]) > 0


def _keeps_floats(before: ir.Value, after: ir.Value) -> bool:
    """Whether a cast keeps all floating point numbers. Two types of one width differ in range or precision."""
    widths = float_width(before), float_width(after)
    has_no_zero = any(str(element_of(value)) == "f8E8M0FNU" for value in (before, after))
    return before.type == after.type or (0 < 2 * widths[0] <= widths[1] and not has_no_zero)


def float_width(value: ir.Value) -> int:
    """Returns the bits of a floating point number; 0 for other types."""
    element = element_of(value)
    return element.width if isinstance(element, ir.FloatType) else 0


def element_of(value: ir.Value) -> ir.Type:
    """Returns the element type of a ranked tensor."""
    return ir.RankedTensorType(value.type).element_type


def shape_of(value: ir.Value) -> list[int]:
    """Returns the shape of a ranked tensor."""
    return list(ir.RankedTensorType(value.type).shape)
