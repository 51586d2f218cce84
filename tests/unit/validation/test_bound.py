"""Loops without an end, and functions: validation ends, and says why."""

import pytest
from unit.validation.edits import becomes, nothing, validate

from jaxpp.validation import ValidationError

ENDLESS = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %step = stablehlo.constant dense<STEP> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %a = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %j = stablehlo.add %i, %step : tensor<i32>
      %b = stablehlo.tanh %a : tensor<4xf32>
      stablehlo.return NEXT, %b : tensor<i32>, tensor<4xf32>
    }
  return %0#1 : tensor<4xf32>
}
"""


@pytest.mark.parametrize(("step", "following"), [("0", "%j"), ("-1", "%j"), ("1", "%i")])
def test_a_loop_without_an_end_is_not_run(step: str, following: str) -> None:
    text = ENDLESS.replace("STEP", step).replace("NEXT", following)
    with pytest.raises(ValidationError, match=r"the loop at -:6:10 never ends: it does not come to its limit"):
        validate(text, nothing)


def test_a_loop_that_runs_too_long_is_ended() -> None:
    text = ENDLESS.replace("STEP", "1").replace("NEXT", "%j").replace("dense<4>", "dense<2000000000>")
    with pytest.raises(ValidationError, match=r"the loop at -:6:10 did not end within 100000 trips: look at what it"):
        validate(text, nothing)


def test_a_loop_that_carries_nothing_is_ended() -> None:
    text = """
    func.func public @main(%x: tensor<f32>) -> tensor<f32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %goes = stablehlo.compare EQ, %x, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
      "stablehlo.while"() ({
        stablehlo.return %goes : tensor<i1>
      }, {
        stablehlo.return
      }) : () -> ()
      return %x : tensor<f32>
    }"""
    with pytest.raises(ValidationError, match="the loop at -:5:7 did not end within 100 trips"):
        validate(text, nothing, most_trips=100)


def test_a_function_that_calls_itself_is_not_run() -> None:
    text = """
    func.func public @main(%x: tensor<f32>) -> tensor<f32> {
      %0 = func.call @f(%x) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }
    func.func private @f(%x: tensor<f32>) -> tensor<f32> {
      %0 = func.call @f(%x) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    with pytest.raises(ValidationError, match="to validate what becomes of it: @f calls itself"):
        validate(text, nothing)


NEWTON = """
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["data"=2]>
  func.func public @main(%x: tensor<4xf32>, %p: tensor<i32>) -> tensor<4xf32> {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %c3 = stablehlo.constant dense<3> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c0, %a = %x) : tensor<i32>, tensor<4xf32>
        attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"data"}]>]>}
      cond {
        %go = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      } do {
        %b = "stablehlo.case"(%p) ({
          stablehlo.return %a : tensor<4xf32>
        }, {
          %f = func.call @solve(%a) : (tensor<4xf32>) -> tensor<4xf32>
          stablehlo.return %f : tensor<4xf32>
        }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}]>]>} : (tensor<i32>) -> tensor<4xf32>
        %j = stablehlo.add %i, %c1 : tensor<i32>
        stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
      }
    return %0#1 : tensor<4xf32>
  }
  func.func private @solve(%x: tensor<4xf32>) -> tensor<4xf32> {
    %limit = stablehlo.constant dense<LIMIT> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %0:2 = stablehlo.while(%n = %zero, %a = %x) : tensor<f32>, tensor<4xf32>
      cond {
        %go = stablehlo.compare LT, %n, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      } do {
        %m = stablehlo.add %n, %one : tensor<f32>
        %b = stablehlo.tanh %a : tensor<4xf32>
        stablehlo.return %m, %b : tensor<f32>, tensor<4xf32>
      }
    return %0#1 : tensor<4xf32>
  }
}
"""


def test_a_loop_that_data_never_ends() -> None:
    text = NEWTON.replace("LIMIT", "0x7F800000")  # infinity
    with pytest.raises(ValidationError) as error:
        validate(text, nothing, most_trips=50)
    assert error.value.message == (
        "the module can't be run to validate what becomes of it: the loop at -:29:12 did not end within 50 trips: "
        "look at what it waits for, or allow more with --validate-trips"
    )


def test_a_loop_that_a_pass_made_endless() -> None:
    ends, endless = NEWTON.replace("LIMIT", "50.0"), NEWTON.replace("LIMIT", "51.0")
    assert "1 results agree" in validate(ends, nothing, most_trips=50)
    with pytest.raises(ValidationError, match=r"what pass 'edit' made does not run: the loop at -:29:12 did not end"):
        validate(ends, becomes(endless), most_trips=50)


def test_a_loop_that_ends_is_compared_whole() -> None:
    text = NEWTON.replace("LIMIT", "9.0")
    with pytest.raises(ValidationError, match="result 0 differs by"):
        validate(text, becomes(text.replace("9.0", "8.0")))
