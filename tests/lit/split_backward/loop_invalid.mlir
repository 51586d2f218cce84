// RUN: not jaxpp-opt %s --split-input-file -p split-backward 2>&1 | filecheck %s

// Both gradients of stage 1 come out of one loop, which runs until something is small.

// CHECK: loop_invalid.mlir:[[# @LINE + 36]]:10: error: the backward of stage 1 can't be split: a loop of unknown length makes its input gradient and its weight gradients together
// CHECK-NEXT: use lax.scan, or fori_loop with constant bounds, or take a schedule of whole backwards
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
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %e = %d, %dw = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  cond {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %largest = stablehlo.reduce(%e init: %zero) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %1 = stablehlo.compare GT, %largest, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.add %dw, %1 : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %2, %3 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  %s = stablehlo.add %g, %0#2 : tensor<4x4xf32>
  return %0#1, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// The loop over the layers has a known length, but a conditional inside, which returns a token, makes both gradients.

// CHECK: loop_invalid.mlir:[[# @LINE + 44]]:12: error: the backward of stage 1 can't be split: a conditional that returns a token makes its input gradient and its weight gradients together
// CHECK-NEXT: compute both branches and choose with jnp.where, or take a schedule of whole backwards
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
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %e = %d, %dw = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %odd = stablehlo.constant dense<1> : tensor<i32>
    %token = stablehlo.create_token : !stablehlo.token
    %1:3 = "stablehlo.case"(%odd) ({
      stablehlo.return %e, %x, %token : tensor<4x4xf32>, tensor<4x4xf32>, !stablehlo.token
    }, {
      %made = stablehlo.create_token : !stablehlo.token
      %4 = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %5 = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      stablehlo.return %5, %4, %made : tensor<4x4xf32>, tensor<4x4xf32>, !stablehlo.token
    }) : (tensor<i32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, !stablehlo.token)
    %3 = stablehlo.add %dw, %1#1 : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %1#0, %3 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  %s = stablehlo.add %g, %0#2 : tensor<4x4xf32>
  return %0#1, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
