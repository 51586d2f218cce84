// RUN: not jaxpp-opt %s --split-input-file -p find-microbatch-loop,number-stages 2>&1 | filecheck %s

// A stage mark on an operation that is no barrier would be overlooked.

// CHECK: attributes_invalid.mlir:[[# @LINE + 12]]:10: error: jaxpp.boundary on a stablehlo.tanh
// CHECK-NEXT: a stage mark is a stablehlo.optimization_barrier
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: 1F0 1F1 1F2"}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.add %sum, %2 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %3 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
