// RUN: not jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages 2>&1 | filecheck %s

// A function of the user's has the name that a task needs.

// CHECK: name_invalid.mlir: error: the module already has a function @forward_0
// CHECK-NEXT: rename it: jaxpp needs the name
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %4 = stablehlo.add %sum, %3 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %4 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
