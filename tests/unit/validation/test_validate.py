"""`Validate`: a pass that changes what is computed is caught, one that doesn't is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from jaxlib.mlir import ir
from unit.validation.edits import Edit, becomes, nothing, validate

from jaxpp._compat import make_context
from jaxpp.hlo_passes.base import run_passes
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.ir.functions import functions, nested
from jaxpp.validation import Validate, ValidationError

MAIN = """
module attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%a: tensor<4x3xf32> {tf.aliasing_output = 0 : i32},
                         %b: tensor<4x3xf32> {jax.buffer_donor = true}, %n: tensor<i32>)
      -> (tensor<4x3xf32> {jax.result_info = "['w']"}, tensor<i32>) {
    %0 = stablehlo.subtract %a, %b : tensor<4x3xf32>
    %1 = stablehlo.add %0, %b : tensor<4x3xf32>
    %2 = stablehlo.multiply %1, %0 : tensor<4x3xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %3 = stablehlo.add %n, %one : tensor<i32>
    return %2, %3 : tensor<4x3xf32>, tensor<i32>
  }
}
"""


def find(module: ir.Module, name: str) -> ir.Operation:
    return next(op for op in nested(module.operation) if op.name == name)


def commute_add(module: ir.Module) -> None:
    add = find(module, "stablehlo.add")
    left, right = add.operands
    add.operands[0], add.operands[1] = right, left


def swap_subtract(module: ir.Module) -> None:
    subtract = find(module, "stablehlo.subtract")
    left, right = subtract.operands
    subtract.operands[0], subtract.operands[1] = right, left


def drop_add(module: ir.Module) -> None:
    add = find(module, "stablehlo.add")
    add.results[0].replace_all_uses_with(add.operands[0])
    add.erase()


def scale(by: str) -> Callable[[ir.Module], None]:
    return becomes(
        MAIN.replace("%2 = ", "%4 = ").replace(
            "    %one",
            f"    %by = stablehlo.constant dense<{by}> : tensor<4x3xf32>\n"
            "    %2 = stablehlo.multiply %4, %by : tensor<4x3xf32>\n    %one",
        )
    )


def test_correct_passes_agree() -> None:
    summary = validate(MAIN, nothing, commute_add, scale("1.000001"))
    assert summary.startswith("validated: 2 results agree after each of 3 passes; largest difference ")


@pytest.mark.parametrize("wrong", [swap_subtract, drop_add, scale("1.001"), scale("1.0001")])
def test_wrong_passes_are_caught(wrong: Callable[[ir.Module], None]) -> None:
    with pytest.raises(ValidationError) as error:
        validate(MAIN, commute_add, wrong)
    assert error.value.message.startswith(
        "pass 'edit' changed what the module computes: result 0 (['w']) differs by "
    ), error.value.message
    assert "; allowed " in error.value.message


def test_a_part_of_a_sum_that_is_lost_between_two_homes() -> None:
    path = Path(__file__).parents[2] / "lit" / "unroll_microbatches" / "accumulators.mlir"
    text, *_ = path.read_text(encoding="utf-8").split("// -----")
    with make_context() as context:
        validation = Validate()
        module = ir.Module.parse(text, context)
        run_passes(module, [UnrollMicrobatches()], [validation])
        with pytest.raises(ValidationError, match=r"^error: pass 'edit' changed what the module computes: result 0 "):
            run_passes(module, [Edit(drop_add)], [validation])


def test_integers_agree_exactly() -> None:
    with pytest.raises(ValidationError, match=r"result 1 differs in 1 of 1 numbers, \d before and \d after$"):
        validate(MAIN, becomes(MAIN.replace("dense<1>", "dense<2>")))


def test_nans_stand_at_the_same_places() -> None:
    text = MAIN.replace("stablehlo.add %0, %b", "stablehlo.divide %0, %0")
    wrong = text.replace("%2, %3 :", "%4, %3 :").replace("%one", "%4 = stablehlo.sqrt %2 : tensor<4x3xf32>\n %one", 1)
    with pytest.raises(
        ValidationError, match=r"result 0 \(\['w'\]\) is NaN or infinite at other places, .* and nan after"
    ):
        validate(text, becomes(wrong))


def test_a_lost_result_and_a_changed_type() -> None:
    other = """
    func.func public @main(%a: tensor<4x3xf32>, %b: tensor<4x3xf32>, %n: tensor<i32>)
        -> (tensor<4x3xf32>, tensor<i64>) {
      %0 = stablehlo.convert %n : (tensor<i32>) -> tensor<i64>
      return %a, %0 : tensor<4x3xf32>, tensor<i64>
    }"""
    with pytest.raises(ValidationError, match=r"^error: pass 'edit' changed result 1 from tensor<i32> to tensor<i64>$"):
        validate(MAIN, becomes(other))
    lost = """
    func.func public @main(%a: tensor<4x3xf32>, %b: tensor<4x3xf32>, %n: tensor<i32>) -> tensor<4x3xf32> {
      return %a : tensor<4x3xf32>
    }"""
    with pytest.raises(ValidationError, match=r"pass 'edit' lost result 1$"):
        validate(MAIN, becomes(lost))


def test_a_gradient_that_is_zero_but_for_rounding() -> None:
    """The result is noise: what XLA makes of it in another order is no error; a wrong result of any size is."""
    text = """
    func.func private @sum(%a: tensor<64xf32>) -> tensor<f32> {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
          : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
      return %s : tensor<f32>
    }
    func.func public @main(%a: tensor<64xf32>) -> tensor<f32> {
      %n = stablehlo.constant dense<64.0> : tensor<f32>
      %s = call @sum(%a) : (tensor<64xf32>) -> tensor<f32>
      %m = stablehlo.divide %s, %n : tensor<f32>
      %b = stablehlo.broadcast_in_dim %m, dims = [] : (tensor<f32>) -> tensor<64xf32>
      %c = stablehlo.subtract %a, %b : tensor<64xf32>
      %r = call @sum(%c) : (tensor<64xf32>) -> tensor<f32>
      return %r : tensor<f32>
    }"""
    zero = text.replace("return %r", "%zero = stablehlo.subtract %r, %r : tensor<f32>\n return %zero")
    assert validate(text, becomes(zero)).splitlines() == [
        "validated: 0 results agree after each of 1 passes; largest difference 0.0e+00 of an array's largest value",
        "warning: result 0 moves by 4e-06 where the inputs change in their last bit: not compared",
    ]
    with pytest.raises(ValidationError, match="result 0 differs by"):
        validate(text, becomes(text.replace("dense<64.0>", "dense<63.99>")))


ROOT = """
func.func public @main(%m: tensor<f32>, %v: tensor<1xf32>) -> tensor<1xf32> {
  %r = stablehlo.sqrt %v : tensor<1xf32>
  return %r : tensor<1xf32>
}"""


def test_results_that_are_not_finite_are_tried_with_positive_inputs() -> None:
    doubled = ROOT.replace("return %r", "%d = stablehlo.add %r, %r : tensor<1xf32>\n return %d")
    for seed in range(4):
        assert "warning" not in validate(ROOT, nothing, seed=seed)
        with pytest.raises(ValidationError, match="result 0"):
            validate(ROOT, becomes(doubled), seed=seed)


def test_results_that_are_never_finite_are_told() -> None:
    never = ROOT.replace("sqrt %v", "log %w").replace(
        "  %r", "  %w = stablehlo.constant dense<-1.0> : tensor<1xf32>\n  %r"
    )
    assert validate(never, nothing).splitlines()[1:] == ["warning: result 0 is nowhere finite on these inputs"]


def test_a_gradient_shows_whole_in_fresh_optimizer_state() -> None:
    """Beside a momentum of size 1 a small gradient would be lost in the tolerance."""
    text = """
    func.func private @task(%w: tensor<4xf32>) -> tensor<4xf32> {
      %small = stablehlo.constant dense<1.0e-3> : tensor<4xf32>
      %0 = stablehlo.multiply %w, %small : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    func.func private @update(%m: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.add %m, %g : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    func.func public @main(%m: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
      %g = call @task(%w) {jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
      %0 = call @update(%m, %g) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    wrong = text.replace("dense<1.0e-3>", "dense<1.001e-3>")
    validate(text.replace("jaxpp.stage", "other"), becomes(wrong.replace("jaxpp.stage", "other")))
    with pytest.raises(ValidationError, match="result 0 differs by"):
        validate(text, becomes(wrong))
    looped = text.replace("{jaxpp.stage = 0 : i64}", "").replace(
        "%small =",
        "%x = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64}} %w : tensor<4xf32>\n%small =",
    )
    with pytest.raises(ValidationError, match="result 0 differs by"):
        validate(looped, becomes(looped.replace("dense<1.0e-3>", "dense<1.001e-3>")))


def test_all_types_of_numbers() -> None:
    for type_ in ("f64", "bf16", "f16", "f8E4M3FN", "i1", "ui8", "i64", "i4", "complex<f32>"):
        text = """
        func.func public @main(%a: tensor<64xTYPE>, %b: tensor<64xTYPE>, %e: tensor<0x2xTYPE>)
            -> (tensor<64xTYPE>, tensor<0x2xTYPE>) {
          %0 = stablehlo.add %a, %b : tensor<64xTYPE>
          return %0, %e : tensor<64xTYPE>, tensor<0x2xTYPE>
        }""".replace("TYPE", type_)
        assert "2 results agree" in validate(text, commute_add)
        with pytest.raises(ValidationError, match=r"result 0"):
            validate(text, drop_add)


SHARDED = """
module attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>,
                                              tf.aliasing_output = 0 : i32})
      -> (tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %c = sdy.constant dense<2.0> : tensor<4x2xf32>
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{"data"}, {}]>]
        manual_axes={"data"} (%y: tensor<2x2xf32>) {
      %p = "stablehlo.partition_id"() : () -> tensor<ui32>
      %q = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
      %b = stablehlo.broadcast_in_dim %q, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %s = stablehlo.add %y, %b : tensor<2x2xf32>
      sdy.return %s : tensor<2x2xf32>
    } : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %1 = stablehlo.multiply %0, %c : tensor<4x2xf32>
    %2 = sdy.reshard %1 <@mesh, [{}, {"data"}]> : tensor<4x2xf32>
    return %2 : tensor<4x2xf32>
  }
}
"""


def test_modules_for_several_devices_run_on_several() -> None:
    assert "1 results agree" in validate(SHARDED, commute_add)
    with pytest.raises(ValidationError, match="result 0"):
        validate(SHARDED, drop_add)


SEVERAL = """
module attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>) {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4x2xf32>
    %0:4 = stablehlo.while(%i = %c0, %a = %zero, %b = %zero, %y = %x)
        : tensor<i32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>
        attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, ROWS, ROWS, ROWS]>}
      cond {
        %go = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      } do {
        %j = stablehlo.add %i, %c1 : tensor<i32>
        %a1 = stablehlo.add %a, %x : tensor<4x2xf32>
        %b1 = stablehlo.add %b, %x : tensor<4x2xf32>
        %y1 = stablehlo.multiply %y, %y : tensor<4x2xf32>
        stablehlo.return %j, %a1, %b1, %y1 : tensor<i32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>
      }
    %all = stablehlo.slice %0#3 [0:4, 0:2] {sdy.sharding = #sdy.sharding_per_value<[ROWS]>}
        : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %sum = stablehlo.add %all, %x : tensor<4x2xf32>
    return %0#1, %0#2, %sum : tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>
  }
}
""".replace("ROWS", '<@mesh, [{"data"}, {}]>')


def test_a_sharded_loop_with_equal_accumulators_and_a_slice_of_all_of_a_result() -> None:
    """XLA merges the accumulators and drops the slice, and loses count of the shardings of the loop."""
    assert "3 results agree" in validate(SEVERAL, nothing)


def test_modules_that_do_not_run() -> None:
    with pytest.raises(
        ValidationError, match="validate what becomes of it: it has neither a public function @main nor mesh"
    ):
        validate("func.func private @f() { return }", nothing)
    unknown = MAIN.replace("stablehlo.multiply %1, %0", "stablehlo.custom_call @nobody(%1, %0)").replace(
        "@nobody(%1, %0) : tensor<4x3xf32>", "@nobody(%1, %0) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>"
    )
    with pytest.raises(ValidationError, match=r"the module can't be run to validate what becomes of it: .*nobody"):
        validate(unknown, nothing)
    with pytest.raises(ValidationError, match=r"what pass 'edit' made does not run: .*nobody"):
        validate(MAIN, becomes(unknown))
    with pytest.raises(ValidationError, match="a value of type tensor<\\?xf32> can't be made"):
        validate("func.func public @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }", nothing)


def test_the_module_stays_as_it_is() -> None:
    with make_context() as context:
        module = ir.Module.parse(SHARDED, context)
        before = str(module)
        run_passes(module, [Edit(nothing), Edit(commute_add), Edit(commute_add)], [Validate()])
        assert str(module) == before
        assert list(functions(module)) == ["main"]


def test_a_fault_that_rounding_hides_shows_in_float32() -> None:
    """A step without an optimizer's state, whose update is far below what bfloat16 shows of the weights."""
    text = """
    func.func public @main(%w: tensor<64xbf16>, %x: tensor<64xbf16>) -> tensor<64xbf16> {
      %rate = stablehlo.constant dense<0.001> : tensor<64xbf16>
      %2 = stablehlo.multiply %x, %x : tensor<64xbf16>
      %3 = stablehlo.multiply %2, %x : tensor<64xbf16>
      %4 = stablehlo.multiply %3, %rate : tensor<64xbf16>
      %5 = stablehlo.subtract %w, %4 : tensor<64xbf16>
      return %5 : tensor<64xbf16>
    }"""
    with pytest.raises(ValidationError, match="result 0 in float32 differs by"):
        validate(text, becomes(text.replace("multiply %3, %rate", "multiply %2, %rate")))


@pytest.mark.parametrize("seed", range(8))
def test_a_wrong_predicate_that_is_often_right_by_chance(seed: int) -> None:
    """Both predicates are true, or false, on more than half of the inputs."""
    text = """
    func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %half = stablehlo.constant dense<0.5> : tensor<f32>
      %0 = stablehlo.slice %x [0:1] : (tensor<2xf32>) -> tensor<1xf32>
      %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
      %2 = stablehlo.compare LT, %1, %half : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %3 = "stablehlo.if"(%2) ({
        stablehlo.return %x : tensor<2xf32>
      }, {
        %4 = stablehlo.negate %x : tensor<2xf32>
        stablehlo.return %4 : tensor<2xf32>
      }) : (tensor<i1>) -> tensor<2xf32>
      return %3 : tensor<2xf32>
    }"""
    with pytest.raises(ValidationError, match="result 0 differs by"):
        validate(text, becomes(text.replace("%x [0:1]", "%x [1:2]")), seed=seed)
