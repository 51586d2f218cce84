// RUN: jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},assign-stages,split-stacks" | filecheck %s
// RUN: jaxpp-opt %s --split-input-file --pipeline mpmd --schedule gpipe --meshes 2 | filecheck %s --check-prefix=PROGRAM

// The loop reads the stacked weights row by row: each of two meshes has one block of them, of the moments, and of the
// update. Only the sums over the blocks meet.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<2x4xf32> {jaxpp.blocks = array<i64: 0, 1>}, %[[MU:[^ ]*]]: tensor<2x4xf32> {jaxpp.blocks = array<i64: 0, 1>},
// CHECK-SAME:      -> (tensor<2x4xf32> {jaxpp.blocks = array<i64: 0, 1>, jaxpp.feeds = 0 : i64}, tensor<2x4xf32> {jaxpp.blocks = array<i64: 0, 1>, jaxpp.feeds = 1 : i64}, tensor<f32>)
// CHECK-DAG:     %[[W0:.*]] = stablehlo.slice %[[W]] [0:1, 0:4]
// CHECK-DAG:     %[[W1:.*]] = stablehlo.slice %[[W]] [1:2, 0:4]
// CHECK-DAG:     %[[MU0:.*]] = stablehlo.slice %[[MU]] [0:1, 0:4]
// CHECK-DAG:     %[[MU1:.*]] = stablehlo.slice %[[MU]] [1:2, 0:4]
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while
// CHECK:           stablehlo.multiply %[[W0]],
// CHECK:           stablehlo.multiply %[[W1]],
// CHECK:         %[[B0:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<1x4xf32>
// CHECK-NEXT:    %[[D0:.*]] = stablehlo.multiply %[[MU0]], %[[B0]]
// CHECK-NEXT:    %[[B1:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<1x4xf32>
// CHECK-NEXT:    %[[D1:.*]] = stablehlo.multiply %[[MU1]], %[[B1]]
// CHECK-NEXT:    %[[N0:.*]] = stablehlo.add %[[D0]], %[[LOOP]]#1
// CHECK-NEXT:    %[[N1:.*]] = stablehlo.add %[[D1]], %[[LOOP]]#2
// CHECK-NEXT:    %[[V0:.*]] = stablehlo.subtract %[[W0]], %[[N0]]
// CHECK-NEXT:    %[[V1:.*]] = stablehlo.subtract %[[W1]], %[[N1]]
// CHECK:         %[[S0:.*]] = stablehlo.reduce(%[[LOOP]]#1 init: %[[ZERO:.*]]) applies stablehlo.add across dimensions = [0, 1]
// CHECK-NEXT:    %[[S1:.*]] = stablehlo.reduce(%[[LOOP]]#2 init: %[[ZERO]]) applies stablehlo.add across dimensions = [0, 1]
// CHECK-NEXT:    %[[NORM:.*]] = stablehlo.add %[[S0]], %[[S1]]
// CHECK-NEXT:    %[[V:.*]] = stablehlo.concatenate %[[V0]], %[[V1]], dim = 0
// CHECK-NEXT:    %[[N:.*]] = stablehlo.concatenate %[[N0]], %[[N1]], dim = 0
// CHECK-NEXT:    return %[[V]], %[[N]], %[[NORM]]

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM-SAME:      %{{[^ ]*}}: tensor<1x4xf32> {jaxpp.number = array<i64: 0, 0, 2>},
// PROGRAM-SAME:      -> (tensor<1x4xf32> {jaxpp.number = array<i64: 0, 0, 2>},
// PROGRAM:       func.func public @mesh_1(
// PROGRAM-SAME:      tensor<1x4xf32> {jaxpp.number = array<i64: 0, 1, 2>}
// PROGRAM-NOT:   stablehlo.send{{.*}}tensor<1x4xf32>, {{.*}}stablehlo.send
func.func public @main(%w: tensor<2x4xf32>, %mu: tensor<2x4xf32>, %x: tensor<1x4xf32>) -> (tensor<2x4xf32> {jaxpp.feeds = 0 : i64}, tensor<2x4xf32> {jaxpp.feeds = 1 : i64}, tensor<f32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %0:3 = stablehlo.while(%i = %c0, %s0 = %zero, %s1 = %zero) : tensor<i32>, tensor<1x4xf32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row0 = stablehlo.slice %w [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %row0, %x : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xf32>
    %row1 = stablehlo.slice %w [1:2, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %g1 = stablehlo.multiply %row1, %m0 : tensor<1x4xf32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %g1 : tensor<1x4xf32>
    %t0 = stablehlo.add %s0, %g0 : tensor<1x4xf32>
    %t1 = stablehlo.add %s1, %m1 : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t0, %t1 : tensor<i32>, tensor<1x4xf32>, tensor<1x4xf32>
  }
  %g = stablehlo.concatenate %0#1, %0#2, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  %beta = stablehlo.constant dense<0.9> : tensor<f32>
  %betas = stablehlo.broadcast_in_dim %beta, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %decayed = stablehlo.multiply %mu, %betas : tensor<2x4xf32>
  %n = stablehlo.add %decayed, %g : tensor<2x4xf32>
  %v = stablehlo.subtract %w, %n : tensor<2x4xf32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %norm = stablehlo.reduce(%g init: %f0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
  return %v, %n, %norm : tensor<2x4xf32>, tensor<2x4xf32>, tensor<f32>
}
