"""The FLOPs of operations, counted in the module: XLA counts a loop's body once, and some backends count nothing."""

import math
from collections.abc import Callable, Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp import _compat
from jaxpp.ir.attributes import SHARD_MAP
from jaxpp.ir.counted import trips
from jaxpp.ir.functions import callee, main_of, name_of, nested
from jaxpp.ir.ops import shape_of, traits
from jaxpp.ir.shardings import MeshAxes, shard_count
from jaxpp.ir.tensors import SubAxis


def matrix_flops(bytecode: bytes) -> int:
    """Returns the FLOPs of the matrix products and convolutions of `@main`, on all devices of the mesh together.

    A loop counts as often as it runs, or once if that is not known when it is compiled. A conditional counts as its
    branch with the most FLOPs.
    """
    with _compat.make_context():
        module = ir.Module.parse(bytecode)
        counter = FlopCounter(module, products_only=True)
        return counter.inside(main_of(module))


def products_of(module: ir.Module, *, loops_once: bool = False, per_device: bool = False) -> dict[str, int]:
    """Returns the FLOPs of `matrix_flops` by the element type of the multiplied values, as MLIR spells it.

    loops_once: counts the body of a loop once, as XLA's cost analysis does.
    per_device: counts the FLOPs of one device: all FLOPs of a product whose values are replicated.
    """
    products = ("stablehlo.dot_general", "stablehlo.convolution")
    elements = sorted({_element(op) for op in nested(module.operation) if op.name in products})
    how = {"products_only": True, "loops_once": loops_once, "per_device": per_device}
    return {element: FlopCounter(module, element=element, **how).inside(main_of(module)) for element in elements}


class FlopCounter:
    """Counts the FLOPs of operations of a module, on all devices of the mesh together.

    A matrix product takes two FLOPs for each multiplication. Any other operation, such as an elementwise one, a
    reduction or a sort, takes one for each element of its largest operand or result, and none with `products_only`.
    Operations that only move or name elements (reshapes, slices, broadcasts, constants) take none.

    element: counts only products of this element type, if it is not empty.
    loops_once: counts a loop as if it ran once.
    per_device: counts the share of a product that each device computes, by the shardings of operands and result.
    """

    def __init__(
        self,
        module: ir.Module,
        *,
        products_only: bool = False,
        element: str = "",
        loops_once: bool = False,
        per_device: bool = False,
    ) -> None:
        self._tops = {name_of(op): op.operation for op in module.body.operations if "sym_name" in op.attributes}
        self._products_only, self._per_device = products_only, per_device
        self._mesh = MeshAxes.written_for(module)
        self._known: dict[str, int] = {}

        def product(op: ir.Operation, flops: Callable[[ir.Operation], int]) -> int:
            return flops(op) // self._shares(op) if element in ("", _element(op)) else 0

        self._counters: Mapping[str, Callable[[ir.Operation], int]] = {
            "stablehlo.dot_general": lambda op: product(op, _dot),
            "stablehlo.convolution": lambda op: product(op, _convolution),
            "stablehlo.while": lambda op: (1 if loops_once else _trips(op)) * self._region(op.regions[1]),
            "stablehlo.case": lambda op: max(map(self._region, op.regions)),
            "stablehlo.if": lambda op: max(map(self._region, op.regions)),
            "func.call": lambda op: self._function(callee(op)),
            SHARD_MAP: lambda op: self._devices(op) * self.inside(op),
        }

    def of(self, op: ir.Operation) -> int:
        """Returns the FLOPs of an operation."""
        return self._counters.get(op.name, self._other)(op)

    def inside(self, op: ir.Operation) -> int:
        """Returns the FLOPs of all regions of an operation."""
        return sum(map(self._region, op.regions))

    def _other(self, op: ir.Operation) -> int:
        if self._products_only:
            return self.inside(op)
        if _only_moves(op):
            return 0
        return max((_elements(value) for value in (*op.operands, *op.results)), default=0)

    def _region(self, region: ir.Region) -> int:
        return sum(self.of(op.operation) for block in region for op in block.operations)

    def _function(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = self.inside(self._tops[name])
        return self._known[name]

    def _devices(self, op: ir.Operation) -> int:
        """Returns how many devices run the body of a shard_map on shards of their own; 1 where one device counts."""
        return 1 if self._per_device else shard_count(op, self._mesh.sizes)

    def _shares(self, op: ir.Operation) -> int:
        """Returns the number of shares into which the devices split a product.

        Devices along an axis that shards none of its values all compute the same share.
        """
        if not self._per_device:
            return 1
        axes = {axis for value in (*op.operands, *op.results) for axis in self._mesh.split_by(value)}
        whole = {axis for axis in axes if isinstance(axis, str)}
        parts = math.prod(axis.size for axis in axes if isinstance(axis, SubAxis) and axis.name not in whole)
        return self._mesh.count(whole) * parts


def _only_moves(op: ir.Operation) -> bool:
    """Whether `op` only moves elements of its operands, or makes elements from nothing, without computing."""
    known = traits(op)
    return known.view or (known.cheap and not known.elementwise) or op.name in _NAMING


_NAMING = ("stablehlo.optimization_barrier", "stablehlo.return", "func.return", "sdy.return")


def _elements(value: ir.Value) -> int:
    type_ = value.type
    return math.prod(type_.shape) if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape else 0


def _element(op: ir.Operation) -> str:
    return str(ir.RankedTensorType(op.operands[0].type).element_type)


def _dot(op: ir.Operation) -> int:
    if not _is_static(op):
        return 0
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lhs = shape_of(op.operands[0])
    return 2 * math.prod(shape_of(op.results[0])) * math.prod(lhs[axis] for axis in numbers.lhs_contracting_dimensions)


def _is_static(op: ir.Operation) -> bool:
    """Whether the shapes of all operands and results are known; the FLOPs of other operations are not."""
    return all(ir.RankedTensorType(each.type).has_static_shape for each in (*op.operands, *op.results))


def _convolution(op: ir.Operation) -> int:
    if not _is_static(op):
        return 0
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = shape_of(op.operands[1])
    return 2 * math.prod(shape_of(op.results[0])) * math.prod(kernel) // kernel[numbers.kernel_output_feature_dimension]


def _trips(loop: ir.Operation) -> int:
    """Returns how often a loop runs, or 1 if that is not known."""
    known = trips(loop)
    return 1 if known is None else known
