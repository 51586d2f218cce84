"""The table of traits: its names are those of operations, and what it says fits together."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from jaxpp import _compat
from jaxpp.ir import ops
from jaxpp.ir.tensors import DTYPES

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
        ("stablehlo.convert %h : (tensor<4xbf16>) -> tensor<4xf16>", []),
        ("stablehlo.convert %h : (tensor<4xbf16>) -> tensor<4xf32>", [(0,)]),
        ("stablehlo.maximum %a, %a : tensor<4xf32>", []),
        ("stablehlo.bitcast_convert %a : (tensor<4xf32>) -> tensor<4xi32>", []),
    ],
)
def test_linear_where_sums_stay_sums(text: str, groups: list[tuple[int, ...]]) -> None:
    with _compat.make_context():
        module = _parsed(text)
        assert list(ops.linear_in(_first(module))) == groups


def test_a_cast_is_linear_only_where_it_keeps_every_number() -> None:
    names = [name for name in DTYPES if "complex" not in name]
    with _compat.make_context(), np.errstate(all="ignore"):
        for before, after in product(names, names):
            cast = f"stablehlo.convert %a : (tensor<{before}>) -> tensor<{after}>"
            module = ir.Module.parse(f"func.func @f(%a: tensor<{before}>) {{ %0 = {cast}\nreturn }}")
            if ops.linear_in(_first(module)):
                assert before == after or before[0] in "bf", (before, after)
                assert _keeps(DTYPES[before], DTYPES[after]), (before, after)
            elif before[0] == after[0] == "f" and 16 <= DTYPES[before].itemsize * 8 < DTYPES[after].itemsize * 8:
                pytest.fail(f"{before} to {after} is linear")


def _keeps(before: np.dtype[Any], after: np.dtype[Any]) -> bool:
    """Whether all numbers of one type are numbers of the other: wide types are taken at their bounds."""
    if before.itemsize > 2:
        info: Any = np.iinfo(before) if before.kind in "iu" else np.finfo(before)
        values = np.array([info.min, info.max, *(() if before.kind in "iu" else (info.tiny, 1 + info.eps))], before)
    elif before.kind == "b":
        values = np.array([False, True])
    else:
        bits = 16 if "4_" in before.name else 256**before.itemsize
        values = np.arange(bits, dtype=f"u{before.itemsize}").view(before)
    cast = values.astype(after).astype(before)
    return bool(np.all((cast == values) | (values != values)))


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
    arguments = "%a: tensor<4xf32>, %h: tensor<4xbf16>, %i: tensor<4xi32>, %s: tensor<f32>"
    return ir.Module.parse(f"func.func @f({arguments}) {{ %0 = {text}\nreturn }}")


def _first(module: ir.Module) -> ir.Operation:
    """Its operation, for as long as somebody holds the module."""
    return module.body.operations[0].operation.regions[0].blocks[0].operations[0].operation
