// RUN: jaxpp-opt %s --split-input-file -p split-backward | filecheck %s

// The weight gradient needs an argument, its maximum, which is cheap and computed again from it, and an exponential,
// which is not: it is kept. The product with the weight is made once.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[S:.*]] = %{{.*}}, %[[S_2:.*]] = %{{.*}})
// CHECK:         %[[F0:.*]] = func.call @forward_0(%[[C]], %[[A]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[IG1:.*]]:2 = func.call @input_grad_1(%[[F0]], %[[F1]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG1:.*]] = func.call @weight_grad_1(%[[F0]], %[[IG1]]#1, %[[S_2]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG0:.*]] = func.call @weight_grad_0(%[[C]], %[[IG1]]#0, %[[S]]) {jaxpp.stage = 0 : i64}
// CHECK:         stablehlo.return %{{.*}}, %[[WG0]], %[[WG1]]
// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[COMPARE:.*]] = stablehlo.compare GT, %[[A]], %[[C_2]]
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[B]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[EXPONENTIAL]], %[[C]], contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[SELECT:.*]] = stablehlo.select %[[COMPARE]], %[[DOT]], %[[C_2]]
// CHECK-NEXT:    return %[[SELECT]], %[[EXPONENTIAL]]
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[MAX:.*]] = stablehlo.maximum %[[A]], %[[C_2]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[MAX]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[DOT_2:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[SUBTRACT:.*]] = stablehlo.subtract %[[DOT]], %[[DOT_2]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[SUBTRACT]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @weight_grad_0(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
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
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %positive = stablehlo.compare GT, %x, %zero : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xi1>
  %r = stablehlo.maximum %x, %zero : tensor<4x4xf32>
  %e = stablehlo.exponential %d : tensor<4x4xf32>
  %dr = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dx = stablehlo.select %positive, %dr, %zero : tensor<4x4xi1>, tensor<4x4xf32>
  %dw = stablehlo.dot_general %r, %e, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dv = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %both = stablehlo.subtract %dw, %dv : tensor<4x4xf32>
  %s = stablehlo.add %g, %both : tensor<4x4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// The gradient of a scale is a sum over rows: four numbers to keep instead of two matrices. So the input gradient
// makes it, and the weight gradient only adds it up.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[V:.*]]: tensor<4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4xf32>)
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[S:.*]] = %{{.*}}, %[[S_2:.*]] = %{{.*}})
// CHECK:         %[[F0:.*]] = func.call @forward_0(%[[C]], %[[A]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[B]], %[[V]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[IG1:.*]]:2 = func.call @input_grad_1(%[[F0]], %[[F1]], %[[B]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG1:.*]] = func.call @weight_grad_1(%[[S_2]], %[[IG1]]#1) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG0:.*]] = func.call @weight_grad_0(%[[C]], %[[IG1]]#0, %[[S]]) {jaxpp.stage = 0 : i64}
// CHECK:         stablehlo.return %{{.*}}, %[[WG0]], %[[WG1]]
// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[B]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[EXPONENTIAL]], %[[C]], contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[TANH]], %[[EXPONENTIAL]]
// CHECK-NEXT:    %[[REDUCE:.*]] = stablehlo.reduce(%[[MUL]] init: %[[C_2]]) applies stablehlo.add across dimensions = [0]
// CHECK-NEXT:    return %[[DOT]], %[[REDUCE]]
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4xf32>, %[[B:.*]]: tensor<4xf32>)
// CHECK-SAME:      -> tensor<4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @weight_grad_0(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %v: tensor<4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %line = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %line) : tensor<i32>, tensor<4x4xf32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1, %v) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
    %d:2 = func.call @backward_1(%b, %a, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>)
    %c = func.call @backward_0(%d#0, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}
func.func private @forward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %v: tensor<4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %s = stablehlo.broadcast_in_dim %v, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
  %r = stablehlo.multiply %t, %s : tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.tanh %x : tensor<4x4xf32>
  %e = stablehlo.exponential %d : tensor<4x4xf32>
  %dx = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %p = stablehlo.multiply %t, %e : tensor<4x4xf32>
  %ds = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %s = stablehlo.add %g, %ds : tensor<4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// So it is of an error function, as exact GELU has it: an elementwise operation of CHLO.

// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64}
// CHECK:         %[[ERF:.*]] = chlo.erf
// CHECK:         %[[MUL:.*]] = stablehlo.multiply %[[ERF]], %{{.*}}
// CHECK-NEXT:    stablehlo.reduce(%[[MUL]] init
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %{{.*}}: tensor<4xf32>, %{{.*}}: tensor<4xf32>)
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %v: tensor<4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %line = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %line) : tensor<i32>, tensor<4x4xf32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1, %v) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
    %d:2 = func.call @backward_1(%b, %a, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>)
    %c = func.call @backward_0(%d#0, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}
func.func private @forward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %v: tensor<4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %s = stablehlo.broadcast_in_dim %v, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
  %r = stablehlo.multiply %t, %s : tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = chlo.erf %x : tensor<4x4xf32> -> tensor<4x4xf32>
  %e = stablehlo.exponential %d : tensor<4x4xf32>
  %dx = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %p = stablehlo.multiply %t, %e : tensor<4x4xf32>
  %ds = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %s = stablehlo.add %g, %ds : tensor<4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// The stage reads no weight of four numbers: the sum is a metric, and the input gradient adds it up. No weight gradient
// is left, so that leaving it out loses nothing else.

// CHECK-LABEL: func.func public @main(
// CHECK:         func.call @input_grad_1(
// CHECK-NOT:     func.call @weight_grad_1(
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %line = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %line) : tensor<i32>, tensor<4x4xf32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %d:2 = func.call @backward_1(%b, %a, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>)
    %c = func.call @backward_0(%d#0, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4xf32>
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
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.tanh %x : tensor<4x4xf32>
  %e = stablehlo.exponential %d : tensor<4x4xf32>
  %dx = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %p = stablehlo.multiply %t, %e : tensor<4x4xf32>
  %ds = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %s = stablehlo.add %g, %ds : tensor<4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
