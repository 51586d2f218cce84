// RUN: jaxpp-opt %s --split-input-file -p unroll-microbatches | filecheck %s

// The schedule runs the forward of stage 0 for microbatch 1 together with the backward of stage 1 for microbatch 0.
// They are one call of one function, which has the bodies of both; the other calls stay.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32>
// CHECK:         %[[F0:.*]] = call @forward_0(%[[A]], %[[C]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0B1:.*]]:2 = call @forward_0_backward_1(%[[A]], %[[C]], %[[B]], %[[F0]], %{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = array<i64: 1, 0>, jaxpp.stage = array<i64: 0, 1>}
// CHECK-NEXT:    %[[B1:.*]] = call @backward_1(%[[B]], %[[F0B1]]#0, %[[F0B1]]#1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    stablehlo.constant dense<2>
// CHECK-NEXT:    return %[[B1]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[B]], %[[A]], contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %[[B:.*]]: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %[[C:.*]]: tensor<4x4xf32> {jaxpp.task = 1 : i64}, %[[D:.*]]: tensor<4x4xf32> {jaxpp.task = 1 : i64}, %[[E:.*]]: tensor<4x4xf32> {jaxpp.task = 1 : i64})
// CHECK-SAME:      -> (tensor<4x4xf32> {jaxpp.task = 0 : i64}, tensor<4x4xf32> {jaxpp.task = 1 : i64}) attributes {jaxpp.kind = "forward+backward"}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[B]], %[[A]], contracting_dims = [1] x [0]
// CHECK-NEXT:    %[[DOT_2:.*]] = stablehlo.dot_general %[[D]], %[[C]], contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[E]], %[[DOT_2]]
// CHECK-NEXT:    return %[[DOT]], %[[ADD]]
func.func public @main(%w: tensor<4x4xf32>, %v: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %g = %zero) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 0\0Amesh 0: 0F0 1F0 0F1+1B0 1F1 1B1 0B0 0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %f = func.call @forward_0(%w, %x) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @backward_1(%v, %f, %g) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}
func.func private @forward_0(%w: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}
func.func private @backward_1(%v: tensor<4x4xf32>, %y: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %d = stablehlo.dot_general %y, %v, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %d : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// What one hands to the other stays inside, and what both use is one argument. Nothing calls the forward by itself any
// more.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> tensor<4x4xf32>
// CHECK:         %[[F0B1:.*]] = call @forward_0_backward_1(%[[A]], %[[C]], %[[B]], %{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = array<i64: 0, 0>, jaxpp.stage = array<i64: 0, 1>}
// CHECK-NEXT:    %[[F0B1_2:.*]] = call @forward_0_backward_1(%[[A]], %[[C]], %[[B]], %[[F0B1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = array<i64: 1, 1>, jaxpp.stage = array<i64: 0, 1>}
// CHECK-NEXT:    stablehlo.constant dense<2>
// CHECK-NEXT:    return %[[F0B1_2]]
// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %[[B:.*]]: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %[[C:.*]]: tensor<4x4xf32> {jaxpp.task = 1 : i64}, %[[D:.*]]: tensor<4x4xf32> {jaxpp.task = 1 : i64})
// CHECK-SAME:      -> (tensor<4x4xf32> {jaxpp.task = 1 : i64}) attributes {jaxpp.kind = "forward+backward"}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[B]], %[[A]], contracting_dims = [1] x [0]
// CHECK-NEXT:    %[[DOT_2:.*]] = stablehlo.dot_general %[[DOT]], %[[C]], contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[D]], %[[DOT_2]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<4x4xf32>, %v: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %g = %zero) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 0\0Amesh 0: 0F0+1F0+1B0 0F1+1F1+1B1 0B0 0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %f = func.call @forward_0(%w, %x) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @backward_1(%v, %f, %g) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}
func.func private @forward_0(%w: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}
func.func private @backward_1(%v: tensor<4x4xf32>, %y: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %d = stablehlo.dot_general %y, %v, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %d : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
