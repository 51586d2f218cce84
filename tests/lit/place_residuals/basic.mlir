// RUN: jaxpp-opt %s --split-input-file -p place-residuals | filecheck %s

// What only the backward uses is made of the forward alone, and is smaller where it is summed: both operations move to
// the forward, which keeps four bytes in place of 256.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[Y:.*]] = stablehlo.tanh %[[X:.*]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[N:.*]] = stablehlo.negate %[[Y]] {jaxpp.task = "forward_0"}
// CHECK:           %[[E:.*]] = stablehlo.optimization_barrier {{.*}}jaxpp.task = "backward_0"}
// CHECK-NEXT:      %[[Q:.*]] = stablehlo.exponential %[[N]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[O:.*]] = stablehlo.constant dense<0.0{{.*}}> : tensor<f32>
// CHECK-NEXT:      %[[S:.*]] = stablehlo.reduce(%[[Q]] init: %[[O]]) {{.*}} {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[U:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [] {jaxpp.task = "backward_0"}
// CHECK-NEXT:      %[[G:.*]] = stablehlo.multiply %[[E]], %[[U]] {jaxpp.task = "backward_0"}
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
    %n = stablehlo.negate %y {jaxpp.task = "forward_0"} : tensor<8x8xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, jaxpp.task = "backward_1"} %n : tensor<8x8xf32>
    %d = stablehlo.cosine %m {jaxpp.task = "backward_1"} : tensor<8x8xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}, jaxpp.task = "backward_0"} %d : tensor<8x8xf32>
    %q = stablehlo.exponential %n {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %o = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%q init: %o) applies stablehlo.add across dimensions = [0, 1] {jaxpp.task = "backward_0"} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %u = stablehlo.broadcast_in_dim %s, dims = [] {jaxpp.task = "backward_0"} : (tensor<f32>) -> tensor<8x8xf32>
    %g = stablehlo.multiply %e, %u {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %t = stablehlo.add %sum, %g {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<8x8xf32>
  }
  return %0#1 : tensor<8x8xf32>
}

// -----

// The backward reads two values of the forward, one of which is cheaply made of the other: it gets that one's operation
// too, so that a single value is kept. The forward still has its own.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[Y:.*]] = stablehlo.tanh %[[X:.*]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[N:.*]] = stablehlo.negate %[[Y]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[AGAIN:.*]] = stablehlo.negate %[[Y]] {jaxpp.task = "backward_0"}
// CHECK-NEXT:      %{{.*}} = stablehlo.optimization_barrier {{.*}} %[[N]]
// CHECK:           %[[E:.*]] = stablehlo.optimization_barrier {{.*}}jaxpp.task = "backward_0"}
// CHECK-NEXT:      %[[A:.*]] = stablehlo.multiply %[[E]], %[[Y]] {jaxpp.task = "backward_0"}
// CHECK-NEXT:      %[[G:.*]] = stablehlo.multiply %[[A]], %[[AGAIN]] {jaxpp.task = "backward_0"}
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
    %n = stablehlo.negate %y {jaxpp.task = "forward_0"} : tensor<8x8xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, jaxpp.task = "backward_1"} %n : tensor<8x8xf32>
    %d = stablehlo.cosine %m {jaxpp.task = "backward_1"} : tensor<8x8xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}, jaxpp.task = "backward_0"} %d : tensor<8x8xf32>
    %a = stablehlo.multiply %e, %y {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %g = stablehlo.multiply %a, %n {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %t = stablehlo.add %sum, %g {jaxpp.task = "backward_0"} : tensor<8x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<8x8xf32>
  }
  return %0#1 : tensor<8x8xf32>
}
