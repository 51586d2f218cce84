"""`multiply-by-reciprocal`, a pass in a package of its own."""

import math
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes import Pass, PassError
from jaxpp.ir.build import remake, replace
from jaxpp.ir.functions import nested_by_name
from jaxpp.ir.tensors import is_splat_constant, read_constant
from jaxpp.ir.values import defining_op, viewed


@dataclass(frozen=True)
class MultiplyByReciprocal(Pass):
    """Multiplies by the reciprocal of a constant instead of dividing by it.

    Preconditions: no divisor is the constant 0.

    Options:
        inexact: also for divisors that are no powers of two, where the last bit may change.

    ```mlir
    %1 = stablehlo.divide %0, %c4        ==>   %1 = stablehlo.multiply %0, %c0.25
    ```
    """

    inexact: bool = False

    def run(self, module: ir.Module) -> None:
        """Replaces the divisions of `module`. Raises PassError for a division by 0."""
        for op in nested_by_name(module.operation)["stablehlo.divide"]:
            value, divisor = op.operands
            constant = defining_op(viewed(divisor))
            element = ir.RankedTensorType(divisor.type).element_type
            if constant is None or not is_splat_constant(constant) or not isinstance(element, ir.F32Type):
                continue
            number = float(read_constant(constant).flat[0])
            if number == 0:
                raise PassError("division by the constant 0", location=op.location, hint="divide by another number")
            mantissa, exponent = math.frexp(number)
            if self.inexact or (abs(mantissa) == 0.5 and abs(exponent) < 100):
                with ir.InsertionPoint(op), op.location:
                    splat = ir.DenseElementsAttr.get_splat(divisor.type, ir.FloatAttr.get(element, 1 / number))
                    product = remake(op, [value, stablehlo.constant(splat)], name="stablehlo.multiply")
                replace(op, product.results)
