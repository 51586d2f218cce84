// RUN: jaxpp-opt %s --split-input-file -p unroll-microbatches | filecheck %s

// Two carried values that change places in every iteration: no task makes them, and no copy is made. After three
// microbatches they are changed.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>, %[[P:.*]]: tensor<f32>, %[[Q:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>, tensor<f32>)
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[C0_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[F0_0]], %[[C0_2]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[F0_2:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_1:.*]] = call @forward_1(%[[F0_1]], %[[F1_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[F1_2:.*]] = call @forward_1(%[[F0_2]], %[[F1_1]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C3:.*]] = stablehlo.constant dense<3>
// CHECK-NEXT:    return %[[F1_2]], %[[Q]], %[[P]]
func.func public @main(%x: tensor<f32>, %p: tensor<f32>, %q: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %sum = %zero, %u = %p, %v = %q) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: .   1F0 1F1 1F2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a, %sum) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b, %v, %u : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.add %a, %s : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// The value of the microbatch before: each call has that of the call before it, the first has what stands before the
// loop.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>) -> tensor<f32>
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[C0_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[F0_0]], %[[C0_2]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[F0_2:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_1:.*]] = call @forward_1(%[[F0_1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[F1_2:.*]] = call @forward_1(%[[F0_2]], %[[F0_1]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C3:.*]] = stablehlo.constant dense<3>
// CHECK-NEXT:    return %[[F0_2]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %before = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: .   1F0 1F1 1F2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a, %before) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %a : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.add %a, %s : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// What the loop carries without changing it needs no call at all.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>) -> (tensor<f32>, tensor<f32>)
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[C0_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[F0_0]], %[[C0_2]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[F0_2:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_1:.*]] = call @forward_1(%[[F0_1]], %[[F1_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[F1_2:.*]] = call @forward_1(%[[F0_2]], %[[F1_1]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C3:.*]] = stablehlo.constant dense<3>
// CHECK-NEXT:    return %[[F1_2]], %[[X]]
func.func public @main(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %sum = %zero, %w = %x) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: .   1F0 1F1 1F2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a, %sum) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b, %w : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.add %a, %s : tensor<f32>
  return %0 : tensor<f32>
}
