// RUN: jaxpp-opt %s -p place-residuals | filecheck %s

// The backward looks for the largest element of each row, of products that are cheap to make again. Made again they may
// round otherwise, so that none is the largest: they are kept, as their maximum is.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[H:.*]] = stablehlo.multiply %[[Y:.*]], %[[X:.*]] {jaxpp.task = "forward_0"}
// CHECK:           %[[M:.*]] = stablehlo.reduce(%[[H]]
// CHECK:           %[[E:.*]] = stablehlo.optimization_barrier {{.*}}jaxpp.task = "backward_0"}
// CHECK-NEXT:      %[[B:.*]] = stablehlo.broadcast_in_dim %[[M]], dims = [0] {jaxpp.task = "backward_0"}
// CHECK-NEXT:      %[[C:.*]] = stablehlo.compare EQ, %[[H]], %[[B]] {{.*}}"backward_0"}
// CHECK-NEXT:      %{{.*}} = stablehlo.multiply %[[E]], %[[H]] {jaxpp.task = "backward_0"}
func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<8x8xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %y = stablehlo.tanh %x {jaxpp.task = "forward_0"} : tensor<8x8xf32>
    %h = stablehlo.multiply %y, %x {jaxpp.task = "forward_0"} : tensor<8x8xf32>
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %max = stablehlo.reduce(%h init: %low) applies stablehlo.maximum across dimensions = [1] {jaxpp.task = "forward_0"} : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %z = stablehlo.broadcast_in_dim %max, dims = [0] {jaxpp.task = "forward_0"} : (tensor<8xf32>) -> tensor<8x8xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, jaxpp.task = "backward_1"} %z : tensor<8x8xf32>
    %d = stablehlo.cosine %m {jaxpp.task = "backward_1"} : tensor<8x8xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}, jaxpp.task = "backward_0"} %d : tensor<8x8xf32>
    %b = stablehlo.broadcast_in_dim %max, dims = [0] {jaxpp.task = "backward_0"} : (tensor<8xf32>) -> tensor<8x8xf32>
    %c = stablehlo.compare EQ, %h, %b {jaxpp.task = "backward_0"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>
    %a = stablehlo.multiply %e, %h {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %g = stablehlo.multiply %a, %y {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %s = stablehlo.select %c, %g, %e {jaxpp.task = "backward_0"} : tensor<8x8xi1>, tensor<8x8xf32>
    %t = stablehlo.add %sum, %s {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<8x8xf32>
  }
  return %0#1 : tensor<8x8xf32>
}
