"""Cheap values that depend only on what the loop reads: cloned into every task that uses them."""

from collections.abc import Callable, Container, Mapping

from jaxlib.mlir import ir

# How many operations at most are computed again to make one value, rather than kept or sent; one that is needed twice
# counts twice. JAX's masks, positions and casts take 2 to 20; a threefry generator, which is not worth it, hundreds.
MOST_RECOMPUTED = 48

_CHEAP = frozenset(
    "stablehlo." + name
    for name in (
        "abs add and bitcast_convert broadcast broadcast_in_dim ceil clamp compare complex concatenate constant "
        "convert divide dynamic_slice dynamic_update_slice floor imag iota is_finite maximum minimum multiply negate "
        "not or pad real remainder reshape reverse round_nearest_even select shift_left shift_right_arithmetic "
        "shift_right_logical sign slice subtract transpose xor"
    ).split()
) | {"sdy.sharding_constraint"}


def is_cheap(op: ir.Operation) -> bool:
    """Whether computing `op` again costs no more than reading its result."""
    return op.name in _CHEAP


def cheap_operations(
    operands: Mapping[ir.Operation, list[ir.Value]],
    producers: Mapping[ir.Value, ir.Operation],
    is_invariant: Callable[[ir.Value], bool],
    claimed: Container[ir.Operation],
) -> set[ir.Operation]:
    """The operations that depend only on loop invariants and the microbatch index, through few cheap ones.

    Constants, masks, iotas, casts of weights, the slices of the batch: JAX's helpers and any cse share them between
    stages. Without cloning they would cross between meshes, or be kept from the forward to the backward. A `claimed`
    operation, whose result the user marked, is no such value (the user sends it), unless it is made of constants.

    `operands` holds the operations of the loop body in program order, `producers` maps each result to its operation.
    """
    length: dict[ir.Operation, int] = {}
    constant: set[ir.Operation] = set()
    for op, values in operands.items():
        if not is_cheap(op):
            continue
        if all(producers.get(value) in constant for value in values):
            constant.add(op)
        elif op in claimed:
            continue
        if all(is_invariant(value) or producers.get(value) in length for value in values):
            total = 1 + sum(length[producers[value]] for value in values if value in producers)
            if total <= MOST_RECOMPUTED:
                length[op] = total
    return set(length)
