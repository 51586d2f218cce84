// RUN: jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages | filecheck %s

// The backward of a rectified linear unit needs to know where its input was positive. That is computed in the backward,
// where it is used; it depends on the forward alone, so it may move there, and a mask of 16 bytes is kept instead of 64.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<4x8xf32>, %[[X:.*]]: tensor<2x4xf32>) -> (tensor<4x8xf32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[G:.*]] = %{{.*}}, %[[LOSS:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]]:2 = func.call @forward_0(%[[X]], %[[W]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[B1:.*]]:2 = func.call @backward_1(%[[F0]]#0, %{{.*}}, %[[LOSS]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[B0:.*]] = func.call @backward_0(%[[F0]]#1, %[[B1]]#1, %[[X]], %[[G]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[B0]], %[[B1]]#0
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32>, %[[B:.*]]: tensor<4x8xf32>)
// CHECK-SAME:      -> (tensor<2x8xf32>, tensor<2x8xi1>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [1] x [0]
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[MAXIMUM:.*]] = stablehlo.maximum %[[DOT]], %[[C0]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MAXIMUM]]
// CHECK-NEXT:    %[[COMPARE:.*]] = stablehlo.compare GT, %[[DOT]], %[[C0]]
// CHECK-NEXT:    return %[[TANH]], %[[COMPARE]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<2x8xf32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<2x8xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[REDUCE:.*]] = stablehlo.reduce(%[[A]] init: %[[B]]) applies stablehlo.add across dimensions = [0, 1]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[REDUCE]]
// CHECK-NEXT:    %[[COSINE:.*]] = stablehlo.cosine %[[A]]
// CHECK-NEXT:    return %[[ADD]], %[[COSINE]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x8xi1>, %[[B:.*]]: tensor<2x8xf32>, %[[C:.*]]: tensor<2x4xf32>, %[[D:.*]]: tensor<4x8xf32>)
// CHECK-SAME:      -> tensor<4x8xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[SELECT:.*]] = stablehlo.select %[[A]], %[[B]], %[[C0]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[C]], %[[SELECT]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[D]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<4x8xf32>, %x: tensor<2x4xf32>) -> (tensor<4x8xf32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x8xf32>
  %zero_1 = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %g = %zero, %loss = %zero_1) : tensor<i32>, tensor<4x8xf32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
    %zeros = stablehlo.constant dense<0.0> : tensor<2x8xf32>
    %a = stablehlo.maximum %h, %zeros : tensor<2x8xf32>
    %a2 = stablehlo.tanh %a : tensor<2x8xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a2 : tensor<2x8xf32>
    %loss_1 = stablehlo.reduce(%m init: %zero_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8xf32>, tensor<f32>) -> tensor<f32>
    %losses = stablehlo.add %loss, %loss_1 : tensor<f32>
    %cos = stablehlo.cosine %m : tensor<2x8xf32>
    %d = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %cos : tensor<2x8xf32>
    %p = stablehlo.compare GT, %h, %zeros : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xi1>
    %dh = stablehlo.select %p, %d, %zeros : tensor<2x8xi1>, tensor<2x8xf32>
    %dw = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<2x4xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
    %sum = stablehlo.add %g, %dw : tensor<4x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %sum, %losses : tensor<i32>, tensor<4x8xf32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<4x8xf32>, tensor<f32>
}

// -----

// The forward makes something bigger of what it has, twice, cheaply, and the backward uses both. They are computed again
// in the backward, from the one value that is kept.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<4x8xf32>, %[[X:.*]]: tensor<2x4xf32>) -> (tensor<4x8xf32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[G:.*]] = %{{.*}}, %[[LOSS:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]]:2 = func.call @forward_0(%[[X]], %[[W]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[B1:.*]]:2 = func.call @backward_1(%[[F0]]#1, %{{.*}}, %[[LOSS]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[B0:.*]] = func.call @backward_0(%[[F0]]#0, %[[B1]]#1, %[[X]], %[[G]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[B0]], %[[B1]]#0
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32>, %[[B:.*]]: tensor<4x8xf32>)
// CHECK-SAME:      -> (tensor<2x8xf32>, tensor<2x8xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [1] x [0]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[DOT]]
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2.000000e+00>
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[TANH]], %[[C2]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[TANH]], %[[C2]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[MUL]], %[[ADD]]
// CHECK-NEXT:    %[[SINE:.*]] = stablehlo.sine %[[MUL_2]]
// CHECK-NEXT:    return %[[TANH]], %[[SINE]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<2x8xf32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<2x8xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[REDUCE:.*]] = stablehlo.reduce(%[[A]] init: %[[B]]) applies stablehlo.add across dimensions = [0, 1]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[REDUCE]]
// CHECK-NEXT:    %[[COSINE:.*]] = stablehlo.cosine %[[A]]
// CHECK-NEXT:    return %[[ADD]], %[[COSINE]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x8xf32>, %[[B:.*]]: tensor<2x8xf32>, %[[C:.*]]: tensor<2x4xf32>, %[[D:.*]]: tensor<4x8xf32>)
// CHECK-SAME:      -> tensor<4x8xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2.000000e+00>
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[C2]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[C2]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[B]], %[[MUL]]
// CHECK-NEXT:    %[[MUL_3:.*]] = stablehlo.multiply %[[MUL_2]], %[[ADD]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[C]], %[[MUL_3]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD_2:.*]] = stablehlo.add %[[D]], %[[DOT]]
// CHECK-NEXT:    return %[[ADD_2]]
func.func public @main(%w: tensor<4x8xf32>, %x: tensor<2x4xf32>) -> (tensor<4x8xf32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x8xf32>
  %zero_1 = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %g = %zero, %loss = %zero_1) : tensor<i32>, tensor<4x8xf32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
    %t = stablehlo.tanh %h : tensor<2x8xf32>
    %two = stablehlo.constant dense<2.0> : tensor<2x8xf32>
    %a = stablehlo.multiply %t, %two : tensor<2x8xf32>
    %b = stablehlo.add %t, %two : tensor<2x8xf32>
    %c = stablehlo.multiply %a, %b : tensor<2x8xf32>
    %e = stablehlo.sine %c : tensor<2x8xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %e : tensor<2x8xf32>
    %loss_1 = stablehlo.reduce(%m init: %zero_1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8xf32>, tensor<f32>) -> tensor<f32>
    %losses = stablehlo.add %loss, %loss_1 : tensor<f32>
    %cos = stablehlo.cosine %m : tensor<2x8xf32>
    %d = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %cos : tensor<2x8xf32>
    %d1 = stablehlo.multiply %d, %a : tensor<2x8xf32>
    %dh = stablehlo.multiply %d1, %b : tensor<2x8xf32>
    %dw = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<2x4xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
    %sum = stablehlo.add %g, %dw : tensor<4x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %sum, %losses : tensor<i32>, tensor<4x8xf32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<4x8xf32>, tensor<f32>
}

// -----

// The next stage reads a value in another shape than the backward. The backward makes its shape of what the mark hands on,
// so that the forward keeps one value.

// CHECK-LABEL: func.func public @main(
// CHECK:           func.call @forward_0(%{{.*}}) {jaxpp.stage = 0 : i64} : (tensor<8x8xf32>) -> tensor<64xf32>
// CHECK-LABEL: func.func private @backward_0(
// CHECK:         %[[SHAPE:.*]] = stablehlo.reshape %{{.*}} : (tensor<64xf32>) -> tensor<8x8xf32>
// CHECK-NEXT:    stablehlo.negate %[[SHAPE]]
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
    %y = stablehlo.tanh %x : tensor<8x8xf32>
    %r = stablehlo.reshape %y : (tensor<8x8xf32>) -> tensor<64xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %r : tensor<64xf32>
    %n = stablehlo.negate %y : tensor<8x8xf32>
    %p = stablehlo.multiply %y, %y : tensor<8x8xf32>
    %c = stablehlo.cosine %m : tensor<64xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %c : tensor<64xf32>
    %s = stablehlo.reshape %e : (tensor<64xf32>) -> tensor<8x8xf32>
    %d = stablehlo.multiply %s, %n : tensor<8x8xf32>
    %g = stablehlo.multiply %d, %p : tensor<8x8xf32>
    %t = stablehlo.add %sum, %g : tensor<8x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<8x8xf32>
  }
  return %0#1 : tensor<8x8xf32>
}

// -----

// Here the operation of the backward that reads the value stands in front of the mark, whose result is not there yet.

// CHECK-LABEL: func.func public @main(
// CHECK:           func.call @forward_0(%{{.*}}) {jaxpp.stage = 0 : i64} : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<64xf32>)
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
    %y = stablehlo.tanh %x : tensor<8x8xf32>
    %n = stablehlo.negate %y : tensor<8x8xf32>
    %p = stablehlo.multiply %y, %y : tensor<8x8xf32>
    %r = stablehlo.reshape %y : (tensor<8x8xf32>) -> tensor<64xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %r : tensor<64xf32>
    %c = stablehlo.cosine %m : tensor<64xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %c : tensor<64xf32>
    %s = stablehlo.reshape %e : (tensor<64xf32>) -> tensor<8x8xf32>
    %d = stablehlo.multiply %s, %n : tensor<8x8xf32>
    %g = stablehlo.multiply %d, %p : tensor<8x8xf32>
    %t = stablehlo.add %sum, %g : tensor<8x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<8x8xf32>
  }
  return %0#1 : tensor<8x8xf32>
}
