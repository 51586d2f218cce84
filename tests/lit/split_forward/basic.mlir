// RUN: jaxpp-opt %s --split-input-file -p split-forward | filecheck %s

// Stage 1 reads one result of stage 0's forward, and stage 0's backward both: the forward hands on the one, the recompute
// makes both again. The backward keeps nothing of the forward.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<4x4xf32>, %[[W1:.*]]: tensor<4x4xf32>, %[[X:.*]]: tensor<4x4xf32>)
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[G0:.*]] = %{{.*}}, %[[G1:.*]] = %{{.*}})
// CHECK:         %[[F:.*]] = func.call @forward_0(%[[X]], %[[W0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[R:.*]]:2 = func.call @recompute_0(%[[X]], %[[W0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1:.*]]:2 = func.call @backward_1(%[[F]], %[[W1]], %[[G1]])
// CHECK-NEXT:    %[[B0:.*]] = func.call @backward_0(%[[R]]#0, %[[R]]#1, %[[B1]]#0, %[[G0]])
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    stablehlo.dot_general
// CHECK-NEXT:    stablehlo.tanh
// CHECK-NEXT:    %[[Z:.*]] = stablehlo.add
// CHECK-NEXT:    return %[[Z]]
// CHECK-LABEL: func.func private @recompute_0(
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "recompute", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    stablehlo.dot_general
// CHECK-NEXT:    %[[T:.*]] = stablehlo.tanh
// CHECK-NEXT:    %[[Z:.*]] = stablehlo.add
// CHECK-NEXT:    return %[[Z]], %[[T]]
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0recompute0 0B0 0recompute1 0B1\0Amesh 1: 1F0 1B0 1F1 1B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a:2 = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %d:2 = func.call @backward_1(%a#0, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %c = func.call @backward_0(%a#0, %a#1, %d#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %z = stablehlo.add %t, %x : tensor<4x4xf32>
  return %z, %t : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dw = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dx = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%z: tensor<4x4xf32>, %t: tensor<4x4xf32>, %d: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %1 = stablehlo.multiply %d, %t : tensor<4x4xf32>
  %2 = stablehlo.multiply %1, %z : tensor<4x4xf32>
  %s = stablehlo.add %g, %2 : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// A schedule that recomputes nothing: the forward stays as it is.

// CHECK-LABEL: func.func public @main(
// CHECK:         func.call @forward_0(
// CHECK-NOT:     recompute
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0B0 0B1\0Amesh 1: 1F0 1B0 1F1 1B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a:2 = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %d:2 = func.call @backward_1(%a#0, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %c = func.call @backward_0(%a#0, %a#1, %d#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %z = stablehlo.add %t, %x : tensor<4x4xf32>
  return %z, %t : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dw = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dx = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%z: tensor<4x4xf32>, %t: tensor<4x4xf32>, %d: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %1 = stablehlo.multiply %d, %t : tensor<4x4xf32>
  %2 = stablehlo.multiply %1, %z : tensor<4x4xf32>
  %s = stablehlo.add %g, %2 : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// What prints runs once, in the forward.

// CHECK-LABEL: func.func private @forward_0(
// CHECK:         stablehlo.custom_call @print
// CHECK-LABEL: func.func private @recompute_0(
// CHECK-NOT:     stablehlo.custom_call
// CHECK:         return
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0recompute0 0B0 0recompute1 0B1\0Amesh 1: 1F0 1B0 1F1 1B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a:2 = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %d:2 = func.call @backward_1(%a#0, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %c = func.call @backward_0(%a#0, %a#1, %d#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  stablehlo.custom_call @print(%y) {has_side_effect = true} : (tensor<4x4xf32>) -> ()
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %z = stablehlo.add %t, %x : tensor<4x4xf32>
  return %z, %t : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dw = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %dx = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %dx, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%z: tensor<4x4xf32>, %t: tensor<4x4xf32>, %d: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %1 = stablehlo.multiply %d, %t : tensor<4x4xf32>
  %2 = stablehlo.multiply %1, %z : tensor<4x4xf32>
  %s = stablehlo.add %g, %2 : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
