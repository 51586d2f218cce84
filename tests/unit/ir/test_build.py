"""Making operations: what they take over, constants of all types, and what is erased."""

import numpy as np
import pytest
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.ir.build import constant, erase_dead, remake, replace, rewire, sharded, shardings
from jaxpp.ir.functions import body_of, main_of, operands_with_captures, operations
from jaxpp.ir.tensors import DTYPES, read_constant

TEXT = """
module {
  sdy.mesh @mesh = <["data"=2]>
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.negate %a {kept, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}]>]>} : tensor<4xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}]> : tensor<4xf32>
    %2 = stablehlo.sine %1 : tensor<4xf32>
    %3 = stablehlo.cosine %2 : tensor<4xf32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward"}} %1 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
"""


@pytest.mark.parametrize("element", DTYPES)
def test_constants_of_all_types(element: str) -> None:
    with _compat.make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = constant(ir.RankedTensorType.get([2], ir.Type.parse(element)), 1)
        assert str(made.type) == f"tensor<2x{element}>"
        assert module.operation.verify()
        assert read_constant(ir.OpResult(made).owner.operation).tolist() == np.ones(2, DTYPES[element]).tolist()


def test_the_largest_constants() -> None:
    with _compat.make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for element, number in (("ui64", 2**64 - 1), ("ui64", 2**63), ("i64", -(2**63)), ("i8", -128), ("i1", 1)):
                made = constant(ir.RankedTensorType.get([], ir.Type.parse(element)), number)
                assert int(read_constant(ir.OpResult(made).owner.operation)) == number


def test_a_region_may_capture_what_is_an_operand_too() -> None:
    """As a loop inside of a loop does that begins with a value of the outer one, and reads it."""
    text = """
      func.func public @main(%i: tensor<i32>, %x: tensor<i32>) -> tensor<i32> {
        %0 = "stablehlo.case"(%i) ({
          %1 = stablehlo.add %i, %x : tensor<i32>
          stablehlo.return %1 : tensor<i32>
        }, {
          %2:2 = stablehlo.while(%j = %i, %y = %x) : tensor<i32>, tensor<i32>
          cond {
            %t = stablehlo.compare LT, %j, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %t : tensor<i1>
          } do {
            %3 = stablehlo.add %j, %x : tensor<i32>
            stablehlo.return %3, %i : tensor<i32>, tensor<i32>
          }
          stablehlo.return %2#1 : tensor<i32>
        }) : (tensor<i32>) -> tensor<i32>
        return %0 : tensor<i32>
      }
    """
    with _compat.make_context():
        module = ir.Module.parse(text)
        main = main_of(module)
        case, (i, x) = operations(body_of(main))[0], body_of(main).arguments
        rewire(case, {i: x}, uses=operands_with_captures(case))
        assert "%arg0" not in str(case.get_asm(use_local_scope=True)).partition("\n")[2]
        assert next(i.uses, None) is None


def test_what_stands_for_an_operation_has_its_attributes() -> None:
    with _compat.make_context():
        module = ir.Module.parse(TEXT)
        negate = operations(body_of(main_of(module)))[0]
        made = remake(negate, name="stablehlo.abs", changed={"more": ir.UnitAttr.get()})
        replace(negate, made.results)
        kept = 'kept, more, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}]>]>'
        assert str(made) == f"%0 = stablehlo.abs %arg0 {{{kept}}} : tensor<4xf32>"
        assert module.operation.verify()


def test_a_sharding_is_written_where_the_operation_keeps_it() -> None:
    with _compat.make_context():
        module = ir.Module.parse(TEXT)
        negate, constraint, sine, *_ = operations(body_of(main_of(module)))
        sharding = ir.Attribute.parse('#sdy.sharding<@mesh, [{"data"}]>')
        assert sharded(constraint.results[0], sharding) == constraint.results[0]
        assert str(constraint.attributes["sharding"]) == str(sharding)
        sharded(sine.results[0], sharding)
        assert sine.attributes["sdy.sharding"] == negate.attributes["sdy.sharding"]
        sharded(sine.results[0], None)
        assert sine.attributes["sdy.sharding"] == negate.attributes["sdy.sharding"]
        assert not shardings([sharding, None])


def test_what_nobody_uses_is_erased_but_for_marks() -> None:
    with _compat.make_context():
        module = ir.Module.parse(TEXT)
        block = body_of(main_of(module))
        erase_dead(block)
        names = [op.name.partition(".")[2] for op in operations(block)]
        assert names == ["negate", "sharding_constraint", "optimization_barrier", "return"]
