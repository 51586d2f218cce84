// RUN: jaxpp-opt %s --split-input-file -p split-backward | filecheck %s

// The schedule splits one of two stages, and that one for one of two microbatches: it has only its two halves from
// here on. `unroll-microbatches` makes a whole backward of them where the schedule has one.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[S:.*]] = %{{.*}}, %[[S_2:.*]] = %{{.*}})
// CHECK:         %[[F0:.*]] = func.call @forward_0(%[[C]], %[[A]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[IG1:.*]] = func.call @input_grad_1(%[[F1]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG1:.*]] = func.call @weight_grad_1(%[[F0]], %[[F1]], %[[S_2]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0:.*]] = func.call @backward_0(%[[IG1]], %[[C]], %[[S]]) {jaxpp.stage = 0 : i64}
// CHECK:         stablehlo.return %{{.*}}, %[[B0]], %[[WG1]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[B]], %[[A]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [1] x [1]
// CHECK-NEXT:    return %[[DOT]]
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0B0 0B1\0Amesh 1: .   1F0 1I0 1W0 1F1 1B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %d:2 = func.call @backward_1(%b, %a, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %c = func.call @backward_0(%d#0, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}
func.func private @forward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dx = stablehlo.dot_general %d, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
