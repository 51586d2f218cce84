// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=2},assign-stages,split-stacks" | filecheck %s

// The second mesh has one layer, the first one two: the last row of the second block is padding, which nothing reads.

// CHECK:       module attributes {jaxpp.bytes = {rows_padded = 16 : i64}, jaxpp.meshes = 2 : i64}
// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<4x4xf32> {jaxpp.blocks = array<i64: 0, 1>}
// CHECK-DAG:     %[[W0:.*]] = stablehlo.slice %[[W]] [0:2, 0:4]
// CHECK-DAG:     %[[W1:.*]] = stablehlo.slice %[[W]] [2:4, 0:4]
// CHECK:         stablehlo.while
// CHECK-DAG:       stablehlo.slice %[[W0]] [0:1, 0:4]
// CHECK-DAG:       stablehlo.slice %[[W0]] [1:2, 0:4]
// CHECK-DAG:       stablehlo.slice %[[W1]] [0:1, 0:4]
func.func public @main(%w: tensor<4x4xf32>, %x: tensor<1x4xf32>) -> tensor<1x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %s = %x) : tensor<i32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row0 = stablehlo.slice %w [0:1, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %row1 = stablehlo.slice %w [1:2, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %row0, %x : tensor<1x4xf32>
    %g1 = stablehlo.multiply %row1, %g0 : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g1 : tensor<1x4xf32>
    %row2 = stablehlo.slice %w [2:3, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g2 = stablehlo.multiply %row2, %m0 : tensor<1x4xf32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %g2 : tensor<1x4xf32>
    %t = stablehlo.add %s, %m1 : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<1x4xf32>
  }
  return %0#1 : tensor<1x4xf32>
}
