// RUN: jaxpp-opt %s -p find-microbatch-loop,number-stages | filecheck %s

// A model of two stages is applied to two inputs, and its gradient is taken. The marks of both applications end the same
// stages: a mark's number is how many marks stand before it.

// CHECK-LABEL: func.func public @main(
// CHECK:           jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}
func.func public @main(%w: tensor<f32>, %x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64,
          schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   .   .   0B0 0B1\0Amesh 1: .   1F0 1F1 1B0 1B1"}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.multiply %x, %w : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.multiply %y, %w : tensor<f32>
    %6 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "forward", name = ""}} %5 : tensor<f32>
    %7 = stablehlo.multiply %6, %w : tensor<f32>
    %8 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 3 : i64, phase = "forward", name = ""}} %7 : tensor<f32>
    %9 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 3 : i64, phase = "backward", name = ""}} %4 : tensor<f32>
    %10 = stablehlo.multiply %9, %w : tensor<f32>
    %11 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "backward", name = ""}} %10 : tensor<f32>
    %12 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "backward", name = ""}} %8 : tensor<f32>
    %13 = stablehlo.multiply %12, %w : tensor<f32>
    %14 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %13 : tensor<f32>
    %15 = stablehlo.add %11, %14 : tensor<f32>
    %16 = stablehlo.add %sum, %15 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %17 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %17, %16 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
