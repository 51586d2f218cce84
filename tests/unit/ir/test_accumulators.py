"""Chains of updates, and the sums of meshes that are put together after the loop."""

from pathlib import Path

import pytest
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.ir.accumulators import ADD, BARRIER, CONSTRAINT, INSERT, SUBTRACT, Accumulator, find_accumulators, updates
from jaxpp.ir.functions import body_of, functions, main_of, operations
from jaxpp.ir.loop import MicrobatchLoop

NAMES = ADD, SUBTRACT, INSERT, CONSTRAINT, BARRIER


def _module(text: str) -> ir.Module:
    arguments = "%s: tensor<4xf32>, %g: tensor<4xf32>, %r: tensor<1xf32>, %i: tensor<i32>"
    return ir.Module.parse(f"func.func @main({arguments}) -> (tensor<4xf32>, tensor<4xf32>) {{ {text} }}")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("%0 = stablehlo.add %s, %g : {t}\nreturn %g, %0 : {t}, {t}", [ADD]),
        (
            "%0 = stablehlo.add %g, %s : {t}\n%1 = stablehlo.subtract %0, %g : {t}\nreturn %g, %1 : {t}, {t}",
            [ADD, SUBTRACT],
        ),
        ("%0:2 = stablehlo.optimization_barrier %g, %s : {t}, {t}\nreturn %0#0, %0#1 : {t}, {t}", [BARRIER]),
        (
            "%0 = stablehlo.dynamic_update_slice %s, %r, %i : ({t}, {row}, tensor<i32>) -> {t}\n"
            "return %g, %0 : {t}, {t}",
            [INSERT],
        ),
        # Handed on twice, read, subtracted, written into another value, changed by an operation of another name.
        ("%0 = stablehlo.add %s, %g : {t}\nreturn %0, %0 : {t}, {t}", None),
        ("%0 = stablehlo.add %s, %g : {t}\n%1 = stablehlo.tanh %0 : {t}\nreturn %1, %0 : {t}, {t}", None),
        ("%0 = stablehlo.add %s, %s : {t}\nreturn %g, %0 : {t}, {t}", None),
        ("%0 = stablehlo.subtract %g, %s : {t}\nreturn %g, %0 : {t}, {t}", None),
        (
            "%0 = stablehlo.dynamic_update_slice %g, %s, %i : ({t}, {t}, tensor<i32>) -> {t}\nreturn %g, %0 : {t}, {t}",
            None,
        ),
        ("%0 = stablehlo.negate %s : {t}\nreturn %g, %0 : {t}, {t}", None),
    ],
)
def test_nobody_else_reads_what_is_updated(text: str, names: list[str] | None) -> None:
    with _compat.make_context():
        module = _module(text.format(t="tensor<4xf32>", row="tensor<1xf32>"))
        found = updates(body_of(main_of(module)), 0, NAMES)
        if names is None:
            assert found is None
        else:
            assert found is not None
            assert [use.owner.operation.name for use in found.uses] == names
            assert found.result == 1


def test_a_sum_has_the_part_of_a_mesh_that_is_no_home_of_its_stage() -> None:
    with _compat.make_context():
        module = _module("return %s, %g : tensor<4xf32>, tensor<4xf32>")
        body = body_of(main_of(module))
        end = operations(body)[-1]
        total = Accumulator(body.arguments[0], None, ADD, stages=[0])
        for mesh, value in enumerate(list(body.arguments)[:2]):
            total.update((mesh, None), mesh, value)
        end.operands[0] = total.total([[0]], ir.InsertionPoint(end))
        assert "%0 = stablehlo.add %arg0, %arg1" in str(module)


@pytest.mark.parametrize(("is_sum", "positions"), [(True, [1, 2, 3]), (False, [2, 3])])
def test_what_tasks_hand_on_unchanged_is_no_sum(is_sum: bool, positions: list[int]) -> None:
    """Parts of it on several meshes were combined by an operation without a name."""
    basic = Path(__file__).parents[2] / "lit" / "unroll_microbatches" / "basic.mlir"
    text = basic.read_text(encoding="utf-8").partition("// -----")[0]
    if not is_sum:
        text = text.replace("%1 = stablehlo.add %loss, %0 : tensor<f32>", "")
        text = text.replace("return %w, %1, %2", "return %w, %loss, %2")
    with _compat.make_context() as context:
        module = ir.Module.parse(text, context)
        assert sorted(find_accumulators(MicrobatchLoop.of(module), functions(module))) == positions
