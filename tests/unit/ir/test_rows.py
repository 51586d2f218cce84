"""Rows of tensors: a value that is one number everywhere takes any size."""

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.functions import body_of, main_of, operations, terminator
from jaxpp.ir.rows import is_splat, resized, with_size
from jaxpp.ir.tensors import read_constant


@pytest.mark.parametrize(
    ("number", "element"), [("-0.0", "f32"), ("0x7FC1", "bf16"), ("(-0.0, 2.0)", "complex<f32>"), ("-8", "i4")]
)
def test_a_constant_of_equal_elements_is_made_smaller(number: str, element: str) -> None:
    text = f"""
      func.func public @main() -> tensor<3x2x{element}> {{
        %0 = stablehlo.constant dense<{number}> : tensor<3x2x{element}>
        return %0 : tensor<3x2x{element}>
      }}"""
    with make_context():
        module = ir.Module.parse(text)
        body = body_of(main_of(module))
        (whole,) = terminator(body).operands
        assert is_splat(whole)
        with module.operation.location:
            part = resized(whole, with_size(whole.type, 0, 1), ir.InsertionPoint(terminator(body)))
        made = operations(body)[1]
        assert (made.results[0], made.location) == (part, whole.location)
        assert read_constant(made).shape == (1, 2)
        assert read_constant(made).tobytes() == read_constant(operations(body)[0])[:1].tobytes()
