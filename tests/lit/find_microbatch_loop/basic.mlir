// RUN: jaxpp-opt %s --split-input-file -p find-microbatch-loop | filecheck %s

// The loop that treduce wrote. It carries the weights and the batch, which no iteration changes; afterwards the body uses
// them from outside. The microbatch index is carried value 0, and counts 0, 1, 2, 3.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32>, %[[W1:.*]]: tensor<f32>, %[[BATCH:.*]]: tensor<4xf32>)
// CHECK-DAG:     %[[FIRST:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK-DAG:     %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %[[FIRST]], %[[SUM:.*]] = %[[ZERO]]) : tensor<i32>, tensor<f32>
// CHECK-SAME:        jaxpp.microbatch_loop = {indices = array<i64: 0>, length = 4 : i64,
// CHECK-SAME:        stages = 2 : i64, starts = array<i64: 0>, steps = array<i64: 1>}
// CHECK:         do {
// CHECK-NEXT:      %[[X:.*]] = stablehlo.dynamic_slice %[[BATCH]], %[[I]], sizes = [1]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.reshape %[[X]]
// CHECK-NEXT:      %[[H:.*]] = stablehlo.multiply %[[R]], %[[W0]]
// CHECK-NEXT:      %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %[[H]]
// CHECK-NEXT:      %[[Y:.*]] = stablehlo.multiply %[[M]], %[[W1]]
// CHECK:         return %[[LOOP]]#1, %[[W0]], %[[BATCH]] : tensor<f32>, tensor<f32>, tensor<4xf32>
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %batch: tensor<4xf32>) -> (tensor<f32>, tensor<f32>, tensor<4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:5 = stablehlo.while(%a = %w0, %x = %batch, %i = %first, %b = %w1, %sum = %zero)
      : tensor<f32>, tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 4 : i64,
          schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2 0F3\0Amesh 1: 1F0 1F1 1F2 1F3"}}
  cond {
    %limit = stablehlo.constant dense<4> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
    %2 = stablehlo.reshape %1 : (tensor<1xf32>) -> tensor<f32>
    %3 = stablehlo.multiply %2, %a : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.multiply %4, %b : tensor<f32>
    %6 = stablehlo.add %sum, %5 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %a, %x, %7, %b, %6 : tensor<f32>, tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#4, %0#0, %0#1 : tensor<f32>, tensor<f32>, tensor<4xf32>
}
