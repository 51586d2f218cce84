"""`jaxpp-opt` says which kinds of tasks and which stages of a schedule the module has no work for."""

import pytest
import runline

from jaxpp.tools import opt

FORWARD = """
func.func public @main(%w: tensor<4xf32>, %xs: tensor<2x4xf32>) -> tensor<4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %xs, %i, %first, sizes = [1, 4]
        : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
    %3 = stablehlo.multiply %2, %w : tensor<4xf32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3
        : tensor<4xf32>
    %5 = stablehlo.tanh %4 : tensor<4xf32>
    %6 = stablehlo.add %sum, %5 : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %6 : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
"""


def warnings(schedule: str) -> list[str]:
    argv = ["-", "--pipeline", "mpmd", "--schedule", schedule, "--meshes", "2"]
    code, _, err = runline.call(opt.main, *argv, stdin=FORWARD).texts
    assert code == 0, err
    return err.splitlines()


@pytest.mark.parametrize(("schedule", "kinds"), [("1f1b", ["backward"]), ("zb-h1", ["input_grad", "weight_grad"])])
def test_kinds_without_work(schedule: str, kinds: list[str]) -> None:
    assert sorted(warnings(schedule)) == [
        f"<stdin>:5:10: warning: the schedule has tasks of the kind {kind}, the module has no work for it"
        for kind in kinds
    ]


def test_a_schedule_of_forwards() -> None:
    text = "schedule: mine\nplacement: 0 1\nmesh 0: 0F0 0F1 .\nmesh 1: .   1F0 1F1"
    assert warnings(text) == []
