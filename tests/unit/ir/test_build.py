"""Making operations: what they take over, constants of all types, and what is erased."""

import pytest
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.ir.build import constant, erase_dead, remake, replace, sharded, shardings
from jaxpp.ir.functions import body_of, main_of, operations

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


@pytest.mark.parametrize("element", ["f32", "bf16", "f8E4M3FN", "complex<f32>", "i32", "ui8", "i1"])
def test_constants_of_all_types(element: str) -> None:
    with _compat.make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = constant(ir.RankedTensorType.get([2], ir.Type.parse(element)), 0)
        assert str(made.type) == f"tensor<2x{element}>"
        assert module.operation.verify()


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
