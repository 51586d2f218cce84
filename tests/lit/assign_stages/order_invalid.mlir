// RUN: not jaxpp-opt %s --split-input-file -p assign-stages 2>&1 | filecheck %s

// Stage 0 uses what stage 1 made.

// CHECK: order_invalid.mlir:[[# @LINE + 15]]:10: error: a value flows backwards: from the forward of stage 2 to the forward of stage 0
// CHECK-NEXT: mark the stages in the order in which the data passes through them
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 3 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.sine %2 : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.multiply %4, %w : tensor<f32>
    %6 = stablehlo.add %sum, %5 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %6 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A forward mark on what a backward computed.

// CHECK: order_invalid.mlir:[[# @LINE + 18]]:10: error: a value flows backwards: from the backward of stage 0 to the forward of stage 1
// CHECK-NEXT: mark the stages in the order in which the data passes through them
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 3 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %4 = stablehlo.cosine %3 : tensor<f32>
    %5 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %4 : tensor<f32>
    %6 = stablehlo.multiply %5, %x : tensor<f32>
    %7 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %6 : tensor<f32>
    %8 = stablehlo.add %sum, %7 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %8 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// So it is when nothing stands between the two marks.

// CHECK: order_invalid.mlir:[[# @LINE + 18]]:10: error: a value flows backwards: from the backward of stage 0 to the forward of stage 1
// CHECK-NEXT: mark the stages in the order in which the data passes through them
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 3 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %4 = stablehlo.cosine %3 : tensor<f32>
    %5 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %4 : tensor<f32>
    %6 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %5 : tensor<f32>
    %8 = stablehlo.add %sum, %6 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %8 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// Nobody looked for the microbatch loop yet.

// CHECK: order_invalid.mlir:[[# @LINE + 2]]:1: error: no microbatch loop in its canonical form
// CHECK-NEXT: run find-microbatch-loop first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// Without @main there is no training step.

// CHECK: order_invalid.mlir: error: the module has no function @main
// CHECK-NEXT: give a module as JAX lowers it
func.func public @step(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
