"""The FLOPs of a stage program, counted in its module: XLA counts a loop once, and not every backend counts at all."""

import math
from collections.abc import Callable, Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp import _compat
from jaxpp.ir.counted import trips


def matrix_flops(bytecode: bytes) -> int:
    """The FLOPs of the matrix products and convolutions of `@main`, on all devices of the mesh together.

    A loop counts as often as it runs, or once if that is not known when it is compiled. A conditional counts as its
    branch with the most FLOPs.
    """
    with _compat.make_context():
        module = ir.Module.parse(bytecode)
        tops = {ir.StringAttr(op.attributes["sym_name"]).value: op.operation for op in module.body.operations}
        return _Counter(tops).of(tops["main"])


class _Counter:
    """Counts the functions of a module, each once."""

    def __init__(self, tops: Mapping[str, ir.Operation]) -> None:
        self._tops = tops
        self._known: dict[str, int] = {}
        self._counters: Mapping[str, Callable[[ir.Operation], int]] = {
            "stablehlo.dot_general": _dot,
            "stablehlo.convolution": _convolution,
            "stablehlo.while": lambda op: _trips(op) * self._region(op.regions[1]),
            "stablehlo.case": lambda op: max(map(self._region, op.regions)),
            "stablehlo.if": lambda op: max(map(self._region, op.regions)),
            "func.call": lambda op: self._function(ir.FlatSymbolRefAttr(op.attributes["callee"]).value),
            "sdy.manual_computation": lambda op: self._devices(op) * self.of(op),
        }

    def of(self, op: ir.Operation) -> int:
        """The FLOPs of all regions of an operation."""
        return sum(map(self._region, op.regions))

    def _region(self, region: ir.Region) -> int:
        inner = (op.operation for block in region for op in block.operations)
        return sum(self._counters.get(op.name, self.of)(op) for op in inner)

    def _function(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = self.of(self._tops[name])
        return self._known[name]

    def _devices(self, op: ir.Operation) -> int:
        """How many devices run the body of a shard_map on shards of their own.

        Along an axis that shards nothing all devices do the same, which counts once.
        """
        meshes = [top for top in self._tops.values() if top.name == "sdy.mesh"]
        sizes = {
            axis.name: axis.size for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(meshes[0].attributes["mesh"]).axes)
        }
        used = f"{op.attributes['in_shardings']} {op.attributes['out_shardings']}"
        manual = sdy.ManualAxesAttr(op.attributes["manual_axes"])
        axes = (manual[number] for number in range(len(manual)))
        return math.prod(sizes[axis] for axis in axes if f'"{axis}"' in used)


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _dot(op: ir.Operation) -> int:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lhs = _shape(op.operands[0])
    return 2 * math.prod(_shape(op.results[0])) * math.prod(lhs[axis] for axis in numbers.lhs_contracting_dimensions)


def _convolution(op: ir.Operation) -> int:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = _shape(op.operands[1])
    return 2 * math.prod(_shape(op.results[0])) * math.prod(kernel) // kernel[numbers.kernel_output_feature_dimension]


def _trips(loop: ir.Operation) -> int:
    """How often a loop runs, or 1 if that is not known."""
    known = trips(loop)
    return 1 if known is None else known
