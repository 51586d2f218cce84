"""The table of traits: its names are those of operations, and what it says fits together."""

import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from jaxpp import _compat
from jaxpp.ir import ops

_NEWER = {"stablehlo.collective_reduce"}
"""Operations that only a newer jaxlib than the oldest has."""


def test_each_name_is_that_of_an_operation_and_stands_once() -> None:
    names = [name for _, row in ops._ROWS for name in row.split()]
    assert len(names) == len(set(names)) == len(ops._TRAITS)
    classes = (getattr(dialect, name) for dialect in (stablehlo, chlo, sdy) for name in dir(dialect))
    known = {each.OPERATION_NAME for each in classes if hasattr(each, "OPERATION_NAME")}
    assert ops._TRAITS.keys() - known <= _NEWER


def test_what_is_cheap_is_light_and_no_product_is() -> None:
    for name, row in ops._TRAITS.items():
        assert row.light >= row.cheap, name
        assert not (row.light and (row.product or row.effect or row.collective)), name
        assert row.cheap >= row.view, name


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("stablehlo.subtract %a, %a : tensor<4xf32>", [(0, 1)]),
        ("stablehlo.multiply %a, %a : tensor<4xf32>", [(0,), (1,)]),
        ("stablehlo.divide %a, %a : tensor<4xf32>", [(0,)]),
        ("stablehlo.divide %i, %i : tensor<4xi32>", []),
        ("stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xf64>", [(0,)]),
        ("stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xbf16>", []),
        ("stablehlo.convert %i : (tensor<4xi32>) -> tensor<4xf32>", []),
        ("stablehlo.maximum %a, %a : tensor<4xf32>", []),
        ("stablehlo.bitcast_convert %a : (tensor<4xf32>) -> tensor<4xi32>", []),
    ],
)
def test_linear_where_sums_stay_sums(text: str, groups: list[tuple[int, ...]]) -> None:
    with _compat.make_context():
        module = _parsed(text)
        assert list(ops.linear_in(_first(module))) == groups


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stablehlo.clamp %s, %a, %s : (tensor<f32>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>", True),
        ("chlo.erf %a : tensor<4xf32> -> tensor<4xf32>", True),
        ("stablehlo.bitcast_convert %a : (tensor<4xf32>) -> tensor<4x2xi16>", False),
        ("stablehlo.reverse %a, dims = [0] : tensor<4xf32>", False),
    ],
)
def test_elementwise_where_the_shapes_say_so(text: str, expected: bool) -> None:
    with _compat.make_context():
        module = _parsed(text)
        assert ops.is_elementwise(_first(module)) == expected


def _parsed(text: str) -> ir.Module:
    """A function of this one operation, with arguments of several types."""
    arguments = "%a: tensor<4xf32>, %i: tensor<4xi32>, %s: tensor<f32>"
    return ir.Module.parse(f"func.func @f({arguments}) {{ %0 = {text}\nreturn }}")


def _first(module: ir.Module) -> ir.Operation:
    """Its operation, for as long as somebody holds the module."""
    return module.body.operations[0].operation.regions[0].blocks[0].operations[0].operation
