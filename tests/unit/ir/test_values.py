"""What is known of values."""

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.functions import body_of, main_of, terminator
from jaxpp.ir.values import is_zero


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%0 = stablehlo.constant dense<0.0> : tensor<4xf32>", True),
        ("%0 = stablehlo.constant dense<-0.0> : tensor<4xf32>", False),
        ("%0 = stablehlo.constant dense<0> : tensor<4xi32>", True),
        ("%0 = stablehlo.constant dense<false> : tensor<4xi1>", True),
        ("%0 = stablehlo.constant dense<[0.0, 1.0]> : tensor<2xf32>", False),
        ("%0 = stablehlo.constant dense<(0.0, 0.0)> : tensor<4xcomplex<f32>>", True),
        ("%0 = stablehlo.constant dense<(0.0, -0.0)> : tensor<4xcomplex<f32>>", False),
        ("%0 = stablehlo.constant dense<0.0> : tensor<4xf8E5M2>", True),
        ("%0 = stablehlo.constant dense<-0.0> : tensor<4xbf16>", False),
        ("%0 = stablehlo.constant dense<0> : tensor<4xui4>", True),
        (
            "%z = stablehlo.constant dense<0> : tensor<i32>\n%0 = stablehlo.convert %z : (tensor<i32>) -> tensor<bf16>",
            True,
        ),
        (
            "%z = stablehlo.constant dense<-0.0> : tensor<f32>\n"
            "%0 = stablehlo.bitcast_convert %z : (tensor<f32>) -> tensor<i32>",
            False,
        ),
        (
            "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%0 = stablehlo.bitcast_convert %z : (tensor<f32>) -> tensor<i32>",
            True,
        ),
        (
            "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%0 = stablehlo.convert %z : (tensor<f32>) -> tensor<f8E8M0FNU>",
            False,
        ),
        (
            "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%0 = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<3xf32>",
            True,
        ),
    ],
)
def test_zero_has_no_bit_set(text: str, expected: bool) -> None:
    with make_context():
        type_ = text.rsplit("-> " if "->" in text else ": ", 1)[1]
        module = ir.Module.parse(f"func.func public @main() -> {type_} {{\n{text}\nreturn %0 : {type_}\n}}")
        assert is_zero(terminator(body_of(main_of(module))).operands[0]) == expected
