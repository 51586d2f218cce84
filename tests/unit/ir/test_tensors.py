"""What constants of all element types are, bit by bit."""

import numpy as np
import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, main_of, operations
from jaxpp.ir.tensors import DTYPES, read_constant

BITS = {
    "i1": ("[true, false]", [1, 0]),
    "i2": ("[1, -2]", [1, 0b10]),
    "ui2": ("[1, 3]", [1, 3]),
    "i4": ("[7, -8]", [7, 0b1000]),
    "ui4": ("[7, 15]", [7, 15]),
    "i8": ("[-128, 1]", [0x80, 1]),
    "ui16": ("[65535, 1]", [0xFFFF, 1]),
    "ui64": ("[18446744073709551615, 9223372036854775808]", [2**64 - 1, 2**63]),
    "i64": ("[-9223372036854775808, -1]", [2**63, 2**64 - 1]),
    "f4E2M1FN": ("[-0.0, 6.0]", [8, 7]),
    "f8E4M3FN": ("[-0.0, 0x7F]", [0x80, 0x7F]),
    "f8E5M2": ("[-0.0, 0x7D]", [0x80, 0x7D]),
    "f8E8M0FNU": ("[1.0, 0xFF]", [127, 0xFF]),
    "f16": ("[-0.0, 0x7E01]", [0x8000, 0x7E01]),
    "bf16": ("[-0.0, 0x7FC1]", [0x8000, 0x7FC1]),
    "f32": ("[-0.0, 0x7FC00001]", [2**31, 0x7FC00001]),
    "f64": ("[-0.0, 0x7FF8000000000001]", [2**63, 0x7FF8000000000001]),
}


@pytest.mark.parametrize("element", BITS)
def test_real_constants(element: str) -> None:
    text, bits = BITS[element]
    with make_context():
        found = read_constant(
            ir.Operation.parse(f"%0 = stablehlo.constant dense<{text}> : tensor<2x{element}>").operation
        )
    assert found.dtype == DTYPES[element]
    assert found.view(f"u{found.itemsize}").tolist() == bits


def test_complex_constants_keep_signs_of_zeros_and_infinities() -> None:
    text = "%0 = stablehlo.constant {kept} dense<[(-0.0, 0x7F800000), (0x7FC00001, -0.0)]> : tensor<2xcomplex<f32>>"
    with make_context():
        found = read_constant(ir.Operation.parse(text).operation)
    assert found.view("u4").tolist() == [2**31, 0x7F800000, 0x7FC00001, 2**31]


@pytest.mark.parametrize("element", DTYPES)
def test_splats_and_scalars(element: str) -> None:
    number = {"i1": "true"}.get(element, "1" if "i" in element else "(1.0, 0.0)" if "c" in element else "1.0")
    for shape in ("", "2x3x", "0x"):
        with make_context():
            op = ir.Operation.parse(f"%0 = stablehlo.constant dense<{number}> : tensor<{shape}{element}>").operation
            found = read_constant(op)
        sizes = tuple(int(size) for size in shape.split("x")[:-1])
        assert (found.shape, found.dtype) == (sizes, DTYPES[element])
        assert np.all(found == np.ones(sizes, DTYPES[element]))


def test_elements_that_stand_elsewhere_are_refused() -> None:
    text = """
      func.func public @main() -> tensor<2xf32> {
        %0 = stablehlo.constant dense_resource<weights> : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
      {-# dialect_resources: {builtin: {weights: "0x040000000000803F00000040"}} #-}
    """
    with make_context():
        module = ir.Module.parse(text)
        op = operations(body_of(main_of(module)))[0]
        with pytest.raises(
            ProgramError, match=r"a constant is dense_resource<weights> : tensor<2xf32>, expected dense"
        ):
            read_constant(op)


def test_reading_a_constant_adds_nothing_to_the_module() -> None:
    text = """
      func.func public @main() -> tensor<2xbf16> {
        %0 = stablehlo.constant dense<1.0> : tensor<2xbf16>
        return %0 : tensor<2xbf16>
      }
    """
    with make_context():
        module = ir.Module.parse(text)
        op, end = operations(body_of(main_of(module)))
        with ir.InsertionPoint(end), op.location:
            assert read_constant(op).tolist() == [1, 1]
        assert len(operations(body_of(main_of(module)))) == 2
