// RUN: jaxpp-opt %s --split-input-file -p forward-rows | filecheck %s
// RUN: jaxpp-opt %s --split-input-file --pipeline mpmd --schedule hanayo --meshes 2 | filecheck %s --check-prefix=PROGRAM

// V-shaped, mesh 0 has the first and the last of four layers, which are the rows 0 and 1 of the weights: read in the order
// 0, 2, 3, 1 the layers are slices of the weights themselves, and no row is sent.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<4x4xf32>
// CHECK-NOT:     stablehlo.gather
// CHECK:         stablehlo.while
// CHECK:           %[[R0:.*]] = stablehlo.slice %[[W]] [0:1, 0:4]
// CHECK-NEXT:      stablehlo.multiply %[[R0]],
// CHECK:           %[[R1:.*]] = stablehlo.slice %[[W]] [2:3, 0:4]
// CHECK-NEXT:      stablehlo.multiply %[[R1]],
// CHECK:           %[[R2:.*]] = stablehlo.slice %[[W]] [3:4, 0:4]
// CHECK-NEXT:      stablehlo.multiply %[[R2]],
// CHECK:           %[[R3:.*]] = stablehlo.slice %[[W]] [1:2, 0:4]
// CHECK-NEXT:      stablehlo.multiply %[[R3]],

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM-SAME:      tensor<2x4xf32> {jaxpp.number = array<i64: 0, 0, 2>}
// PROGRAM-NOT:   stablehlo.send{{.*}}tensor<{{.*}}>{{.*}}"before
func.func public @main(%w: tensor<4x4xf32>, %x: tensor<1x4xf32>) -> (tensor<1x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %rows = stablehlo.constant dense<[[0], [-2], [3], [-3]]> : tensor<4x1xi32>
  %four = stablehlo.constant dense<4> : tensor<4x1xi32>
  %none = stablehlo.constant dense<0> : tensor<4x1xi32>
  %negative = stablehlo.compare LT, %rows, %none, SIGNED : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi1>
  %wrapped = stablehlo.add %rows, %four : tensor<4x1xi32>
  %index = stablehlo.select %negative, %wrapped, %rows : tensor<4x1xi1>, tensor<4x1xi32>
  %p = "stablehlo.gather"(%w, %index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : (tensor<4x4xf32>, tensor<4x1xi32>) -> tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r0 = stablehlo.slice %p [0:1, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %r0, %x : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xf32>
    %r1 = stablehlo.slice %p [1:2, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g1 = stablehlo.multiply %r1, %m0 : tensor<1x4xf32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %g1 : tensor<1x4xf32>
    %r2 = stablehlo.slice %p [2:3, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g2 = stablehlo.multiply %r2, %m1 : tensor<1x4xf32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "forward", name = ""}} %g2 : tensor<1x4xf32>
    %r3 = stablehlo.slice %p [3:4, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g3 = stablehlo.multiply %r3, %m2 : tensor<1x4xf32>
    %last = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 3 : i64, phase = "forward", name = ""}} %g3 : tensor<1x4xf32>
    %t = stablehlo.add %s, %last : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<1x4xf32>
  }
  return %0#1 : tensor<1x4xf32>
}
