// RUN: jaxpp-opt %s --split-input-file -p unroll-microbatches | filecheck %s

// 1F1B: mesh 1 runs a backward as soon as it can. There is one call per task and microbatch, with the stage, the microbatch and
// the mesh of the task. The index is a constant, the loss and the sums of gradients go from one microbatch to the next.
// The task that stage 1 has for its forward, 1F0 and so on, does nothing: its forward is part of its backward.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32>, %[[W1:.*]]: tensor<f32>, %[[X:.*]]: tensor<4xf32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>, tensor<f32>)
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[C0_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[C0_3:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]], %[[C0_3]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[W0]], %[[X]], %[[C1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:3 = call @backward_1(%[[W1]], %[[F0_0]], %[[C0_2]], %[[C0_2]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[X]], %[[C0_3]], %[[B1_0]]#0, %[[C0_2]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_1:.*]]:3 = call @backward_1(%[[W1]], %[[F0_1]], %[[B1_0]]#1, %[[B1_0]]#2) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2>
// CHECK-NEXT:    %[[F0_2:.*]] = call @forward_0(%[[W0]], %[[X]], %[[C2]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_1:.*]] = call @backward_0(%[[X]], %[[C1]], %[[B1_1]]#0, %[[B0_0]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_2:.*]]:3 = call @backward_1(%[[W1]], %[[F0_2]], %[[B1_1]]#1, %[[B1_1]]#2) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_2:.*]] = call @backward_0(%[[X]], %[[C2]], %[[B1_2]]#0, %[[B0_1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C3:.*]] = stablehlo.constant dense<3>
// CHECK-NEXT:    return %[[B1_2]]#1, %[[B0_2]], %[[B1_2]]#2
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: 1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   0B0 0F2 0B1 .   0B2\0Amesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%w0, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.add %loss, %0 : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// GPipe: all forwards before the first backward.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32>, %[[W1:.*]]: tensor<f32>, %[[X:.*]]: tensor<4xf32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>, tensor<f32>)
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[C0_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[C0_3:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]], %[[C0_3]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[W0]], %[[X]], %[[C1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2>
// CHECK-NEXT:    %[[F0_2:.*]] = call @forward_0(%[[W0]], %[[X]], %[[C2]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:3 = call @backward_1(%[[W1]], %[[F0_0]], %[[C0_2]], %[[C0_2]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[X]], %[[C0_3]], %[[B1_0]]#0, %[[C0_2]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_1:.*]]:3 = call @backward_1(%[[W1]], %[[F0_1]], %[[B1_0]]#1, %[[B1_0]]#2) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_1:.*]] = call @backward_0(%[[X]], %[[C1]], %[[B1_1]]#0, %[[B0_0]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_2:.*]]:3 = call @backward_1(%[[W1]], %[[F0_2]], %[[B1_1]]#1, %[[B1_1]]#2) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_2:.*]] = call @backward_0(%[[X]], %[[C2]], %[[B1_2]]#0, %[[B0_1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C3:.*]] = stablehlo.constant dense<3>
// CHECK-NEXT:    return %[[B1_2]]#1, %[[B0_2]], %[[B1_2]]#2
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2 .   .   .   0B0 0B1 0B2\0Amesh 1: .   1F0 1F1 1F2 1B0 1B1 1B2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%w0, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.add %loss, %0 : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}
