"""Values that are compared with what was chosen of them: which of the two may not be kept where the other is remade."""

import pytest
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes.stages.ties import read_together, ties
from jaxpp.ir.functions import functions, operations
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap

MAXIMUM = """
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%h init: %low) applies stablehlo.maximum across dimensions = [1]
      : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
"""
EQUAL = "%c = stablehlo.compare EQ, %h, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>"


def tied(lines: str) -> set[tuple[str, str]]:
    """The pairs, by the names of the operations; cheap ones may be done again."""
    text = f"func.func @f(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) {{\n{lines}\nreturn\n}}"
    with make_context():
        module = ir.Module.parse(text)
        body = Numbered(operations(functions(module)["f"].regions[0].blocks[0])[:-1])
        found = ties(body, range(len(body.ops)), lambda number: is_cheap(body.ops[number]))
        return {(body.ops[kept].name[10:], body.ops[again].name[10:]) for kept, again in found}


@pytest.mark.parametrize(
    "decides",
    [
        EQUAL,
        "%c = stablehlo.compare GE, %h, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>",
        "%d = stablehlo.divide %h, %b : tensor<8x8xf32>\n%c = stablehlo.floor %d : tensor<8x8xf32>",
        "%d = stablehlo.subtract %h, %b : tensor<8x8xf32>\n%c = stablehlo.sign %d : tensor<8x8xf32>",
        "%d = stablehlo.divide %h, %b : tensor<8x8xf32>\n"
        "%c = stablehlo.convert %d : (tensor<8x8xf32>) -> tensor<8x8xi8>",
    ],
)
def test_a_maximum_and_what_it_is_of(decides: str) -> None:
    found = tied(f"%h = stablehlo.multiply %x, %y : tensor<8x8xf32>{MAXIMUM}{decides}")
    assert {("reduce", "multiply"), ("broadcast_in_dim", "multiply")} <= found
    assert all(again == "multiply" for _, again in found)


@pytest.mark.parametrize(
    "lines",
    [
        f"%h = stablehlo.abs %x : tensor<8x8xf32>{MAXIMUM}{EQUAL}",  # rounds nothing: it is made again to the bit
        f"%h = stablehlo.tanh %x : tensor<8x8xf32>{MAXIMUM}{EQUAL}",  # is not done again
        f"%h = stablehlo.multiply %x, %y : tensor<8x8xf32>{MAXIMUM}%d = stablehlo.subtract %h, %b : tensor<8x8xf32>",
        "%h = stablehlo.multiply %x, %y : tensor<8x8xf32>\n"
        "%c = stablehlo.compare GT, %h, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>",
    ],
)
def test_what_has_no_ties(lines: str) -> None:
    assert not tied(lines)


def test_what_a_backward_compares_of_what_its_forward_keeps() -> None:
    """A rule of the user's for gradients compares two residuals; a third one it only multiplies."""
    lines = f"%h = stablehlo.reshape %x : (tensor<8x8xf32>) -> tensor<8x8xf32>{MAXIMUM}"
    lines += "%c = stablehlo.compare EQ, %y, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>\n"
    lines += "%d = stablehlo.multiply %z, %x : tensor<8x8xf32>"
    with make_context():
        three = "%x: tensor<8x8xf32>, %y: tensor<8x8xf32>, %z: tensor<8x8xf32>"
        module = ir.Module.parse(f"func.func @f({three}) {{\n{lines}\nreturn\n}}")
        block = functions(module)["f"].regions[0].blocks[0]
        arguments = list(block.arguments)
        found = list(read_together(Numbered(operations(block)[:-1]), dict(zip(arguments, arguments, strict=True))))
        assert found == [arguments[:2]]
