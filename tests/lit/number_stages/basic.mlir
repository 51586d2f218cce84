// RUN: jaxpp-opt %s --split-input-file -p find-microbatch-loop,number-stages | filecheck %s

// A layer that is traced once and called three times leaves the same number on three stages. Afterwards the forward marks
// are 0, 1, 2 in program order, and each backward mark has the number of the forward mark that it belongs to.

// CHECK-LABEL: func.func public @main(
// CHECK:         do {
// CHECK:           jaxpp.boundary = {name = "layer", phase = "forward", stage = 0 : i64}
// CHECK:           jaxpp.boundary = {name = "layer", phase = "forward", stage = 1 : i64}
// CHECK:           jaxpp.boundary = {name = "layer", phase = "forward", stage = 2 : i64}
// CHECK:           jaxpp.boundary = {name = "layer", phase = "backward", stage = 2 : i64}
// CHECK:           jaxpp.boundary = {name = "layer", phase = "backward", stage = 1 : i64}
// CHECK:           jaxpp.boundary = {name = "layer", phase = "backward", stage = 0 : i64}
func.func public @main(%w: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 1 : i64,
          schedule = "schedule: gpipe\0Aplacement: 0 1 2\0Amesh 0: 0F0 0B0\0Amesh 1: 1F0 1B0\0Amesh 2: 2F0 2B0"}}
  cond {
    %limit = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = "layer"}} %w : tensor<f32>
    %1 = stablehlo.sine %f0 : tensor<f32>
    %f1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = "layer"}} %1 : tensor<f32>
    %2 = stablehlo.sine %f1 : tensor<f32>
    %f2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = "layer"}} %2 : tensor<f32>
    %b2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = "layer"}} %f2 : tensor<f32>
    %3 = stablehlo.multiply %b2, %2 : tensor<f32>
    %b1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = "layer"}} %3 : tensor<f32>
    %4 = stablehlo.multiply %b1, %1 : tensor<f32>
    %b0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = "layer"}} %4 : tensor<f32>
    %5 = stablehlo.add %sum, %b0 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %6, %5 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// Where only the gradient is used, JAX drops the forward mark of the last stage and keeps its backward mark: there are
// two stages, and the backward mark that comes first is that of stage 1.

// CHECK-LABEL: func.func public @main(
// CHECK:         stages = 2 : i64
// CHECK:           jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}
// CHECK:           jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}
func.func public @main(%w: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 1 : i64,
          schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0B0\0Amesh 1: 1F0 1B0"}}
  cond {
    %limit = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.sine %w : tensor<f32>
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 3 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %2 = stablehlo.cosine %f0 : tensor<f32>
    %b1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 4 : i64, phase = "backward", name = ""}} %2 : tensor<f32>
    %3 = stablehlo.multiply %b1, %f0 : tensor<f32>
    %b0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 3 : i64, phase = "backward", name = ""}} %3 : tensor<f32>
    %4 = stablehlo.add %sum, %b0 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %4 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
