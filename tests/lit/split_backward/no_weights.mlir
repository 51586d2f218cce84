// RUN: jaxpp-opt %s --split-input-file -p split-backward | filecheck %s

// Stage 1 has no weights: all of its backward is the input gradient, and there is no weight gradient.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32>
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[S:.*]] = %{{.*}})
// CHECK:         %[[F0:.*]] = func.call @forward_0(%[[C]], %[[A]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[IG1:.*]] = func.call @input_grad_1(%[[F0]], %[[F1]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG0:.*]] = func.call @weight_grad_0(%[[C]], %[[IG1]], %[[S]]) {jaxpp.stage = 0 : i64}
// CHECK:         stablehlo.return %{{.*}}, %[[WG0]]
// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[TANH]]
// CHECK-NEXT:    return %[[MUL]]
// CHECK-LABEL: func.func private @weight_grad_0(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %g0 = %zeros) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %d = func.call @backward_1(%b, %a) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %c = func.call @backward_0(%d, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
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
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %t = stablehlo.tanh %x : tensor<4x4xf32>
  %dx = stablehlo.multiply %d, %t : tensor<4x4xf32>
  return %dx : tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// The loss, made in the backward, is part of the input gradient. A bias has no product; still its gradient is added up
// in a weight gradient.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[S:.*]] = %{{.*}}, %[[S_2:.*]] = %{{.*}}, %[[S_3:.*]] = %{{.*}})
// CHECK:         %[[F0:.*]] = func.call @forward_0(%[[C]], %[[A]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[IG1:.*]]:2 = func.call @input_grad_1(%[[F0]], %[[F1]], %[[S]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG1:.*]] = func.call @weight_grad_1(%[[S_3]], %[[IG1]]#0) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG0:.*]] = func.call @weight_grad_0(%[[C]], %[[IG1]]#0, %[[S_2]]) {jaxpp.stage = 0 : i64}
// CHECK:         stablehlo.return %{{.*}}, %[[IG1]]#1, %[[WG0]], %[[WG1]]
// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<f32>) attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[TANH]]
// CHECK-NEXT:    %[[REDUCE:.*]] = stablehlo.reduce(%[[TANH]] init: %[[C_2]]) applies stablehlo.add across dimensions = [0, 1]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[REDUCE]]
// CHECK-NEXT:    return %[[MUL]], %[[ADD]]
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @weight_grad_0(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:4 = stablehlo.while(%i = %first, %l = %zero, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %d:3 = func.call @backward_1(%b, %a, %l, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>)
    %c = func.call @backward_0(%d#0, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d#1, %c, %d#2 : tensor<i32>, tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>
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
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %l: tensor<f32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.tanh %x : tensor<4x4xf32>
  %dx = stablehlo.multiply %d, %t : tensor<4x4xf32>
  %loss = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %sum = stablehlo.add %l, %loss : tensor<f32>
  %s = stablehlo.add %g, %dx : tensor<4x4xf32>
  return %dx, %sum, %s : tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// What goes through unchanged needs no task: stage 0 gets what the forward of stage 1 made.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32>
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[S:.*]] = %{{.*}})
// CHECK:         %[[F0:.*]] = func.call @forward_0(%[[C]], %[[A]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG0:.*]] = func.call @weight_grad_0(%[[C]], %[[F1]], %[[S]]) {jaxpp.stage = 0 : i64}
// CHECK:         stablehlo.return %{{.*}}, %[[WG0]]
// CHECK-LABEL: func.func private @weight_grad_0(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %g0 = %zeros) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %d = func.call @backward_1(%b, %a) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %c = func.call @backward_0(%d, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
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
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  return %d : tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
