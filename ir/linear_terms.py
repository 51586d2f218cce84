"""Linear terms: a value as a sum of scaled terms, each of which an operation makes that is not linear."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD, SUBTRACT
from jaxpp.ir.boundary import BARRIER
from jaxpp.ir.functions import CONDITIONALS, body_of, reducer, terminator
from jaxpp.ir.ops import element_of, float_width, shape_of, traits
from jaxpp.ir.shardings import MeshAxes, Shardings
from jaxpp.ir.tensors import is_splat_constant, read_constant
from jaxpp.ir.values import defining_op, is_zero, origin, viewed

Axes: TypeAlias = tuple[str, ...]
"""The mesh axes over which devices add their values, in order; an axis occurs twice if they add twice.

`FACTOR` and `APART` also stand among them.
"""

FACTOR, APART = "a value", "taken apart"
"""A factor that is no constant, such as a mask or a clip; an operation that passes take apart, and the sum with it."""

Scales: TypeAlias = dict[Axes, float]
"""The factors of a term, by the axes over which it is summed."""

_AXIS = re.compile(r'axis_ref<name = "([^"]*)">')
"""A whole axis in the text of a mesh's axes, for which jaxlib has no bindings."""

MULTIPLY, DIVIDE, SELECT = "stablehlo.multiply", "stablehlo.divide", "stablehlo.select"

LATER = " after the loop"
"""The end of the name of an axis over which rows are added that `delay-reductions` keeps apart until then."""

TAKEN_APART = (*CONDITIONALS, "stablehlo.while")
"""The operations that hold others. Passes may take them apart, which shows more of a sum."""

_OF_ROWS = [f"stablehlo.{name}" for name in "concatenate dynamic_update_slice gather pad scatter select".split()]
"""The operations that move rows. Passes may follow each row by itself, which has a factor of its own."""

Numbers: TypeAlias = Mapping[ir.Value, float]
NO_NUMBERS: Final[Numbers] = {}


class Part(NamedTuple):
    """A summand of a value: `scale` times another value, summed over the devices along `axes`."""

    value: Hashable
    scale: float = 1.0
    axes: Axes = ()


class WrongSum(NamedTuple):
    """What is wrong with a sum, the operation at which it shows, and what to do."""

    message: str
    location: ir.Location
    hint: str


Parts: TypeAlias = Sequence[Part] | None
"""The summands of a value; None for a value that is a term itself."""


def terms(value: Hashable, parts_of: Callable[[Hashable], Parts]) -> dict[Hashable, Scales]:
    """Returns the terms of a value with their factors, in time linear in the number of values that it is made of."""
    graph, work = dict[Hashable, Parts](), [value]
    while work:
        each = work.pop()
        if each not in graph:
            graph[each] = parts_of(each)
            work += [part.value for part in graph[each] or ()]
    order = TopologicalSorter({each: [part.value for part in parts or ()] for each, parts in graph.items()})
    factors, found = dict[Hashable, Scales]({value: {(): 1.0}}), dict[Hashable, Scales]()
    for each in reversed([*order.static_order()]):
        parts, scales = graph[each], factors[each]
        if parts is None:
            found[each] = scales
        for part in parts or ():
            add_scales(factors.setdefault(part.value, {}), scales, part)
    return found


def add_scales(total: Scales, scales: Scales, part: Part) -> None:
    """Adds to `total` the factors `scales` of a value, times those of a part of it."""
    for axes, factor in scales.items():
        both = tuple(sorted((*axes, *part.axes))) if part.axes else axes
        total[both] = total.get(both, 0.0) + factor * part.scale


def made_by(op: ir.Operation, scales: Scales) -> Scales:
    """Returns the factors of the term that `op` makes: a product or a quotient has one that is no constant."""
    marks = (FACTOR,) if op.name in (MULTIPLY, DIVIDE) else (APART,) if op.name in (*TAKEN_APART, *_OF_ROWS) else ()
    total = Scales()
    add_scales(total, scales, Part(None, 1.0, marks))
    return total


def parts_with(value: Hashable, scales: Scales) -> list[Part]:
    """Returns a term with these factors as summands."""
    return [Part(value, scale, axes) for axes, scale in scales.items()]


class Linear:
    """Finds the summands of values of one module."""

    def __init__(self, module: ir.Module) -> None:
        self._mesh, self._shardings = MeshAxes.of(module), Shardings(module)

    def in_task(self, value: Hashable, numbers: Numbers = NO_NUMBERS) -> Parts:
        """Returns the summands of a value in a task, or in the loop; None for a term.

        What adds up or moves rows makes a term there, as a product does: these are gradients of weights.

        numbers: those of the task's arguments.
        """
        return self._parts(value, numbers) if isinstance(value, ir.Value) else None

    def around(self, value: ir.Value, has_terms: Callable[[ir.Value], bool]) -> Parts:
        """Returns the summands of a value around the loop, where sums over dimensions are linear too.

        So is a product of a sum and another value. has_terms: whether an operand is a sum over microbatches.
        """
        parts, op = self._parts(value, NO_NUMBERS), defining_op(value)
        return self._moved(op, has_terms) if parts is None and op is not None else parts

    def _parts(self, value: ir.Value, numbers: Numbers) -> Parts:
        op = defining_op(value)
        if op is None:
            argument = ir.BlockArgument(value)
            parent = argument.owner.owner.operation
            return [Part(parent.operands[argument.arg_number])] if parent.name == at.SHARD_MAP else None
        number, name = ir.OpResult(value).result_number, op.name
        if name == at.SHARD_MAP:
            return [Part(terminator(body_of(op)).operands[number])]
        if name == BARRIER:
            return [Part(op.operands[number])]
        if name in (ADD, SUBTRACT):
            return [Part(op.operands[0]), Part(op.operands[1], 1.0 if name == ADD else -1.0)]
        if name == "stablehlo.negate":
            return [Part(op.operands[0], -1.0)]
        if name in (MULTIPLY, DIVIDE):
            return _scaled(op, numbers)
        if traits(op).collective:
            return self._collective(op, number)
        if _is_linear_view(op):
            keeps_fractions = float_width(op.results[0]) or not float_width(op.operands[0])
            return [Part(op.operands[0])] if keeps_fractions else None
        return None

    def _moved(self, op: ir.Operation, has_terms: Callable[[ir.Value], bool]) -> Parts:
        """Returns the summands of a value that moves, joins or adds up rows, or scales them."""
        operands, name = op.operands, op.name.removeprefix("stablehlo.")
        if op.name in (MULTIPLY, DIVIDE, SELECT):
            return [Part(each, 1.0, (FACTOR,)) for each in _scaled_by_value(op, has_terms)] or None
        if name == "reduce":
            return [Part(operands[0], 1.0, self._axes_of_rows(op))] if is_sum(op) else None
        if name == "pad":
            return [Part(operands[0])] if is_zero(operands[1]) else None
        rows = {"concatenate": len(operands), "dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}.get(name, 0)
        return [Part(operands[number]) for number in range(rows)] or None

    def _axes_of_rows(self, reduce: ir.Operation) -> Axes:
        sharding = self._shardings.of(reduce.operands[0])
        if self._mesh is None or sharding is None:
            return ()
        axes = self._mesh.axes(sharding)
        return tuple(sorted(axis + LATER for number in at.integers(reduce, "dimensions") for axis in axes[number]))

    def _collective(self, op: ir.Operation, number: int) -> Parts:
        """Returns the summand of a value that devices exchange, with the axes over which they add it."""
        name = op.name.removeprefix("stablehlo.")
        if name in ("all_reduce", "reduce_scatter"):
            return [Part(op.operands[number], 1.0, self._axes_of_groups(op))] if reducer(op) == ADD else None
        return [Part(op.operands[number])] if name in ("all_gather", "all_to_all", "collective_permute") else None

    def _axes_of_groups(self, op: ir.Operation) -> Axes:
        """Returns the axes of the mesh along which the groups of a collective lie; `devices` for other groups."""
        groups = op.attributes["replica_groups"]
        if str(groups).startswith("#stablehlo.replica_group_mesh_axes"):  # as JAX 0.12 writes them
            return tuple(sorted(_AXIS.findall(str(groups)))) or ("devices",)
        if self._mesh is None or not isinstance(groups, ir.DenseIntElementsAttr):
            return ("devices",)
        named = [(name, size) for name, size in self._mesh.named if size > 1]
        devices = np.arange(self._mesh.count(name for name, _ in named)).reshape([size for _, size in named])
        wanted = {frozenset(row) for row in np.asarray(groups).tolist()}
        for chosen in (each for count in range(len(named) + 1) for each in combinations(range(len(named)), count)):
            size = self._mesh.count(named[each][0] for each in chosen)
            lines = np.moveaxis(devices, chosen, range(len(chosen))).reshape(size, -1).T
            if {frozenset(row) for row in lines.tolist()} == wanted:
                return tuple(sorted(named[each][0] for each in chosen))
        return ("devices",)


def is_sum(reduce: ir.Operation) -> bool:
    """Whether a `stablehlo.reduce` adds up the elements of one array, from zero on."""
    return reducer(reduce) == ADD and len(reduce.operands) == 2 and is_zero(reduce.operands[1])


def number_of(value: ir.Value, numbers: Numbers = NO_NUMBERS) -> float | None:
    """Returns the number that all elements of a value are: a constant, or a product or quotient of two constants."""
    op = defining_op(origin(value, _is_linear_view))
    if op is None or op.name not in (MULTIPLY, DIVIDE):
        return _constant(value, numbers)
    one, other = (_constant(each, numbers) for each in op.operands)
    if one is None or other is None or (op.name == DIVIDE and not other):
        return None
    return one * other if op.name == MULTIPLY else one / other


def _is_linear_view(op: ir.Operation) -> bool:
    return traits(op).view and bool(traits(op).linear)


def _constant(value: ir.Value, numbers: Numbers) -> float | None:
    value = origin(value, _is_linear_view)
    op = defining_op(value)
    if op is None or not is_splat_constant(op) or isinstance(element_of(value), ir.ComplexType):
        return numbers.get(value)
    return next(map(float, read_constant(op).flat[:1]), None)


def _scaled(op: ir.Operation, numbers: Numbers) -> Parts:
    """Returns the summand of a product with a number, or of a quotient by one; None where neither operand is one."""
    one, other = op.operands
    factor = number_of(other, numbers)
    if op.name == DIVIDE:
        return [Part(one, 1 / factor)] if factor else None
    if factor is not None:
        return [Part(one, factor)]
    factor = number_of(one, numbers)
    return None if factor is None else [Part(other, factor)]


def _scaled_by_value(op: ir.Operation, has_terms: Callable[[ir.Value], bool]) -> Sequence[ir.Value]:
    """Returns the sum that a product, a quotient or a choice multiplies by a value; none if that is a sum, too."""
    operands = op.operands[1:] if op.name == SELECT else op.operands[:1] if op.name == DIVIDE else op.operands
    found = list(filter(has_terms, operands))
    if op.name == MULTIPLY and len(found) > 1:
        found = [each for each in found if shape_of(viewed(each))]
    return found if len(found) == 1 else ()
