"""What functions tell of operations: which of them have a side effect."""

import pytest
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.ir.functions import body_of, has_side_effect, main_of, operations

CALLBACK = "stablehlo.custom_call @print(%a) {has_side_effect = true} : (tensor<f32>) -> ()"
RANDOM = "stablehlo.rng %a, %a, %n, distribution = NORMAL : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<2xf32>"
LIGHT = "stablehlo.add %a, %a : tensor<f32>"
IF = """"stablehlo.if"(%p) ({{
  {inside}
  stablehlo.return
}}, {{ stablehlo.return }}) : (tensor<i1>) -> ()"""
REDUCE = """%r = "stablehlo.reduce"(%v, %a) ({{
^bb0(%x: tensor<f32>, %y: tensor<f32>):
  {inside}
  stablehlo.return %x : tensor<f32>
}}) {{dimensions = array<i64: 0>}} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALLBACK, True),
        (CALLBACK.replace("true", "false"), False),
        (f"%r = {RANDOM}", True),
        # What is light by its traits has none, whatever its attributes say: it is not asked for them.
        (f"%r = {LIGHT}".replace(" :", " {has_side_effect = true} :"), False),
        # The operations in a region are asked, also where that of the region is light, as a reduce is.
        (IF.format(inside=CALLBACK), True),
        (IF.format(inside=f"%0 = {LIGHT}"), False),
        (REDUCE.format(inside=CALLBACK), True),
        (REDUCE.format(inside=f"%0 = {LIGHT}"), False),
    ],
)
def test_side_effects_are_those_of_callbacks_and_generators(text: str, expected: bool) -> None:
    arguments = "%a: tensor<f32>, %n: tensor<1xi64>, %p: tensor<i1>, %v: tensor<4xf32>"
    with _compat.make_context():
        module = ir.Module.parse(f"func.func @main({arguments}) {{ {text}\nreturn }}")
        assert has_side_effect(operations(body_of(main_of(module)))[0]) == expected
