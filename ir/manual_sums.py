"""Sums in the body of a `shard_map` that leave it on each device for itself, as if all devices had added theirs."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, nested_by_name, operations, terminator
from jaxpp.ir.linear_terms import Axes, Linear, Parts, WrongSum, is_sum, terms
from jaxpp.ir.ops import is_elementwise, shape_of, traits
from jaxpp.ir.shardings import MeshAxes, manual_axes
from jaxpp.ir.values import block_of, defining_op

Dimensions: TypeAlias = Sequence[frozenset[str]]
"""For each dimension of a value the manual axes that are known to shard it."""

_NO_AXES = frozenset[str]()
_ADDING = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")


def unreduced(module: ir.Module) -> Iterator[WrongSum]:
    """Yields the results of `shard_map`s that are sums over a sharded dimension which no collective completes.

    Such a result is not sharded over the axis, so every device should have the same value. The location is that of the
    operation that sums each device's own rows. A sum that devices exchange in another way is not judged.
    """
    mesh, linear = MeshAxes.of(module), Linear(module)
    for op in nested_by_name(module.operation)[at.SHARD_MAP] if mesh is not None else ():
        assert mesh is not None
        yield from _unreduced(op, mesh, linear)


def _unreduced(shard_map: ir.Operation, mesh: MeshAxes, linear: Linear) -> Iterator[WrongSum]:
    body, known = body_of(shard_map), _dimensions(shard_map, mesh)
    manual, shardings = frozenset(manual_axes(shard_map)), _shardings(shard_map, "out_shardings", mesh)

    def parts(value: Hashable) -> Parts:
        assert isinstance(value, ir.Value)
        op = defining_op(value)
        if op is None or block_of(value) != body or _is_exchanged(value):
            return None
        return linear.in_task(value)

    for number, value in enumerate(terminator(body).operands):
        named = frozenset(axis for axes in shardings[number] for axis in axes)
        found = terms(value, parts)
        if any(isinstance(term, ir.Value) and _is_exchanged(term) for term in found):
            continue
        for term, scales in found.items():
            assert isinstance(term, ir.Value)
            op = defining_op(term)
            summed = _NO_AXES if op is None else _summed(op, known) & manual
            for axes in scales:
                for axis in sorted(summed - named - set(axes)):
                    assert op is not None
                    what = f"result {number} of a shard_map is each device's own sum along axis '{axis}'"
                    hint = f"add jax.lax.psum(x, '{axis}'), or name the axis in out_specs"
                    yield WrongSum(f"{what}, expected the sum of all devices", op.location, hint)


def _is_exchanged(value: ir.Value) -> bool:
    """Whether devices exchange a value in another way than by adding."""
    op = defining_op(value)
    return op is not None and traits(op).collective and op.name not in _ADDING


def _shardings(shard_map: ir.Operation, name: str, mesh: MeshAxes) -> list[Sequence[Axes]]:
    return [mesh.axes(each) for each in sdy.TensorShardingPerValueAttr(shard_map.attributes[name]).shardings]


def _dimensions(shard_map: ir.Operation, mesh: MeshAxes) -> Mapping[ir.Value, Dimensions]:
    """Returns the manual axes that shard the dimensions of the values in the body of a `shard_map`."""
    body, manual = body_of(shard_map), frozenset(manual_axes(shard_map))
    known = dict[ir.Value, Dimensions]()
    for argument, axes in zip(body.arguments, _shardings(shard_map, "in_shardings", mesh), strict=True):
        known[argument] = [manual.intersection(each) for each in axes]
    for op in operations(body)[:-1]:
        operands = [known.get(value, ()) for value in op.operands]
        if any(operands) and len(op.results) == 1 and (made := _through(op, operands)):
            known[op.results[0]] = made
    return known


def _through(op: ir.Operation, operands: Sequence[Dimensions]) -> Dimensions:
    """Returns the axes that shard the dimensions of a result; none for an operation of another kind."""
    if is_elementwise(op):
        return [_NO_AXES.union(*each) for each in zip(*filter(None, operands), strict=True)]
    name, first = op.name.removeprefix("stablehlo."), operands[0]
    if name == "transpose":
        return [first[number] for number in at.integers(op, "permutation")] if first else ()
    if name == "broadcast_in_dim":
        into = dict(zip(at.integers(op, "broadcast_dimensions"), first, strict=False))
        return [into.get(number, _NO_AXES) for number in range(len(shape_of(op.results[0])))]
    if name == "reduce":
        gone = at.integers(op, "dimensions")
        return [axes for number, axes in enumerate(first) if number not in gone]
    if name == "dot_general":
        return _of_product(op, operands)
    return ()


def _of_product(op: ir.Operation, operands: Sequence[Dimensions]) -> Dimensions:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    ranks = [len(shape_of(value)) for value in op.operands]
    left, right = (each or [_NO_AXES] * rank for each, rank in zip(operands, ranks, strict=True))
    pairs = zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True)
    found = [left[one] | right[other] for one, other in pairs]
    sides = (
        (left, (*numbers.lhs_batching_dimensions, *numbers.lhs_contracting_dimensions)),
        (right, (*numbers.rhs_batching_dimensions, *numbers.rhs_contracting_dimensions)),
    )
    return found + [axes for each, gone in sides for number, axes in enumerate(each) if number not in gone]


def _summed(op: ir.Operation, known: Mapping[ir.Value, Dimensions]) -> frozenset[str]:
    """Returns the axes of which an operation sums each device's own rows."""
    if op.name == "stablehlo.reduce" and is_sum(op):
        pairs = [(op.operands[0], number) for number in at.integers(op, "dimensions")]
    elif op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        pairs = [(op.operands[0], number) for number in numbers.lhs_contracting_dimensions]
        pairs += [(op.operands[1], number) for number in numbers.rhs_contracting_dimensions]
    else:
        pairs = []
    return _NO_AXES.union(*(known[value][number] for value, number in pairs if known.get(value)))
