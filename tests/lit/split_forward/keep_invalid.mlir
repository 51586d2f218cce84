// RUN: not jaxpp-opt %s -p "split-forward{keep=2:inputs}" 2>&1 | filecheck %s
// RUN: not jaxpp-opt %s -p "split-forward{keep=half}" 2>&1 | filecheck %s --check-prefix=CHOICE

// CHECK: keep_invalid.mlir:[[# @LINE + 6]]:10: error: there is no stage 2 to recompute: the stages are 0 to 1

// CHOICE: pass 'split-forward': keep is 'half', expected 'inputs', 'selective', a share of a forward's FLOPs from 0 to 1, or bytes such as '4096B', for all stages or as STAGE:KEEP
func.func public @main(%w: tensor<4x2xf32>, %v: tensor<4x2xf32>, %w1: tensor<8x8xf32>, %x: tensor<2x8x4xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0B0 0B1\0Amesh 1: 1F0 1B0 1F1 1B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a:3 = func.call @forward_0(%x, %w, %v) {jaxpp.stage = 0 : i64} : (tensor<2x8x4xf32>, tensor<4x2xf32>, tensor<4x2xf32>) -> (tensor<8x8xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>)
    %d:2 = func.call @backward_1(%a#0, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
    %c = func.call @backward_0(%a#1, %a#2, %d#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<2x8x8xf32>, tensor<2x8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  return %0#1, %0#2 : tensor<8x8xf32>, tensor<8x8xf32>
}
func.func private @forward_0(%x: tensor<2x8x4xf32>, %w: tensor<4x2xf32>, %v: tensor<4x2xf32>) -> (tensor<8x8xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %q = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<2x8x4xf32>, tensor<4x2xf32>) -> tensor<2x8x2xf32>
  %k = stablehlo.dot_general %x, %v, contracting_dims = [2] x [0] : (tensor<2x8x4xf32>, tensor<4x2xf32>) -> tensor<2x8x2xf32>
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x8x2xf32>, tensor<2x8x2xf32>) -> tensor<2x8x8xf32>
  %e = stablehlo.exponential %s : tensor<2x8x8xf32>
  %t = stablehlo.tanh %s : tensor<2x8x8xf32>
  %y = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  return %y, %e, %t : tensor<8x8xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>
}
func.func private @backward_1(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %s = stablehlo.add %g, %y : tensor<8x8xf32>
  return %y, %s : tensor<8x8xf32>, tensor<8x8xf32>
}
func.func private @backward_0(%e: tensor<2x8x8xf32>, %t: tensor<2x8x8xf32>, %d: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.multiply %e, %t : tensor<2x8x8xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  %3 = stablehlo.multiply %2, %d : tensor<8x8xf32>
  %s = stablehlo.add %g, %3 : tensor<8x8xf32>
  return %s : tensor<8x8xf32>
}
