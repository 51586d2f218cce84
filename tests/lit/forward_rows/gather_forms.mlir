// RUN: jaxpp-opt %s --split-input-file -p forward-rows | filecheck %s

// Cast, reshaped into the layers of each stage, masked as jnp.take does it, and behind a barrier of jax.checkpoint, which
// parameters pass: rows that follow one another are one slice, others are put together.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<4x2xf32>
// CHECK-NOT:     stablehlo.gather
// CHECK:         %[[LOW:.*]] = stablehlo.convert %[[W]] : (tensor<4x2xf32>) -> tensor<4x2xbf16>
// CHECK:         stablehlo.while
// CHECK:           stablehlo.optimization_barrier %{{[^ ,]*}} : tensor<1x2x2xbf16>
// CHECK:           %[[R0:.*]] = stablehlo.slice %[[LOW]] [2:4, 0:2] : (tensor<4x2xbf16>) -> tensor<2x2xbf16>
// CHECK-NEXT:      %[[S0:.*]] = stablehlo.reshape %[[R0]] : (tensor<2x2xbf16>) -> tensor<1x2x2xbf16>
// CHECK:           stablehlo.multiply %[[S0]],
// CHECK:           %[[A:.*]] = stablehlo.slice %[[W]] [1:2, 0:2]
// CHECK-NEXT:      %[[B:.*]] = stablehlo.slice %[[W]] [0:1, 0:2]
// CHECK-NEXT:      %[[R1:.*]] = stablehlo.concatenate %[[A]], %[[B]], dim = 0
// CHECK-NEXT:      stablehlo.convert %[[R1]]
func.func public @main(%w: tensor<4x2xf32>, %x: tensor<1x2x2xbf16>) -> tensor<1x2x2xbf16> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x2x2xbf16>
  %index = stablehlo.constant dense<[[2], [3], [1], [0]]> : tensor<4x1xi32>
  %least = stablehlo.constant dense<0> : tensor<4x1xi32>
  %p = "stablehlo.gather"(%w, %index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>}> : (tensor<4x2xf32>, tensor<4x1xi32>) -> tensor<4x2xf32>
  %known = stablehlo.compare GE, %index, %least, SIGNED : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi1>
  %true = stablehlo.constant dense<true> : tensor<i1>
  %all = stablehlo.reduce(%known init: %true) applies stablehlo.and across dimensions = [1] : (tensor<4x1xi1>, tensor<i1>) -> tensor<4xi1>
  %mask = stablehlo.broadcast_in_dim %all, dims = [0] : (tensor<4xi1>) -> tensor<4x2xi1>
  %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
  %nans = stablehlo.broadcast_in_dim %nan, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
  %q = stablehlo.select %mask, %p, %nans : tensor<4x2xi1>, tensor<4x2xf32>
  %low = stablehlo.convert %q : (tensor<4x2xf32>) -> tensor<4x2xbf16>
  %stages = stablehlo.reshape %low : (tensor<4x2xbf16>) -> tensor<2x2x2xbf16>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x2x2xbf16>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %again:2 = stablehlo.optimization_barrier %p, %s : tensor<4x2xf32>, tensor<1x2x2xbf16>
    %r0 = stablehlo.slice %stages [0:1, 0:2, 0:2] : (tensor<2x2x2xbf16>) -> tensor<1x2x2xbf16>
    %g0 = stablehlo.multiply %r0, %again#1 : tensor<1x2x2xbf16>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x2x2xbf16>
    %r1 = stablehlo.slice %again#0 [2:4, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
    %l1 = stablehlo.convert %r1 : (tensor<2x2xf32>) -> tensor<2x2xbf16>
    %s1 = stablehlo.reshape %l1 : (tensor<2x2xbf16>) -> tensor<1x2x2xbf16>
    %g1 = stablehlo.multiply %s1, %m0 : tensor<1x2x2xbf16>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %g1 : tensor<i32>, tensor<1x2x2xbf16>
  }
  return %0#1 : tensor<1x2x2xbf16>
}

// -----

// The sums of the rows, put into another order after the loop, are put together in that order.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while
// CHECK-NOT:     stablehlo.gather
// CHECK:         %[[G:.*]] = stablehlo.concatenate %[[LOOP]]#2, %[[LOOP]]#1, dim = 0
// CHECK-NEXT:    return %[[G]]
func.func public @main(%x: tensor<1x4xf32>) -> tensor<2x4xf32> {
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
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x4xf32>
    %t0 = stablehlo.add %s0, %m0 : tensor<1x4xf32>
    %t1 = stablehlo.subtract %s1, %m0 : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t0, %t1 : tensor<i32>, tensor<1x4xf32>, tensor<1x4xf32>
  }
  %g = stablehlo.concatenate %0#1, %0#2, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  %index = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
  %p = "stablehlo.gather"(%g, %index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : (tensor<2x4xf32>, tensor<2xi32>) -> tensor<2x4xf32>
  return %p : tensor<2x4xf32>
}

// -----

// Indices that are known when the step runs only, and windows of several rows: these gathers stay.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while
// CHECK:           %[[P:.*]] = "stablehlo.gather"
// CHECK-NEXT:      %[[Q:.*]] = "stablehlo.gather"
// CHECK-NEXT:      stablehlo.slice %[[P]]
// CHECK:           stablehlo.slice %[[Q]]
func.func public @main(%w: tensor<4x4xf32>, %index: tensor<4xi32>, %x: tensor<1x4xf32>) -> (tensor<1x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %known = stablehlo.constant dense<[0, 2]> : tensor<2xi32>
    %p = "stablehlo.gather"(%w, %index) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : (tensor<4x4xf32>, tensor<4xi32>) -> tensor<4x4xf32>
    %q = "stablehlo.gather"(%w, %known) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 2, 4>}> : (tensor<4x4xf32>, tensor<2xi32>) -> tensor<2x2x4xf32>
    %r0 = stablehlo.slice %p [0:1, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %r0, %x : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xf32>
    %r1 = stablehlo.slice %q [1:2, 0:1, 0:4] : (tensor<2x2x4xf32>) -> tensor<1x1x4xf32>
    %f1 = stablehlo.reshape %r1 : (tensor<1x1x4xf32>) -> tensor<1x4xf32>
    %g1 = stablehlo.multiply %f1, %m0 : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %g1 : tensor<i32>, tensor<1x4xf32>
  }
  return %0#1 : tensor<1x4xf32>
}
