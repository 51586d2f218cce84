// RUN: not jaxpp-opt %s --split-input-file -p verify-loop 2>&1 | filecheck %s

// A value flows to an earlier task.

// CHECK: promises_invalid.mlir:[[# @LINE + 14]]:{{[0-9]+}}: error: phase 2: a value flows backwards: from forward_1 to forward_0
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 2
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.tanh %x {jaxpp.task = "forward_1"} : tensor<f32>
    %n = stablehlo.add %sum, %a {jaxpp.task = "forward_0"} : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// An operation that a pass made inherited no task.

// CHECK: promises_invalid.mlir:[[# @LINE + 14]]:{{[0-9]+}}: error: phase 2: an operation with no jaxpp.task uses a value of forward_0
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 2
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.tanh %x {jaxpp.task = "forward_0"} : tensor<f32>
    %b = stablehlo.negate %a : tensor<f32>
    %n = stablehlo.add %sum, %b {jaxpp.task = "forward_0"} : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// Nor may such an operation use what the last microbatch handed on.

// CHECK: promises_invalid.mlir:[[# @LINE + 13]]:{{[0-9]+}}: error: phase 2: an operation with no jaxpp.task uses a value of the last microbatch
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 2
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %n = stablehlo.negate %sum : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A mark of a stage that there is not.

// CHECK: promises_invalid.mlir:[[# @LINE + 13]]:{{[0-9]+}}: error: phase 2: a mark of stage 2, expected 0 to 1
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 2
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "forward", name = ""}, jaxpp.task = "forward_1"} %x : tensor<f32>
    %n = stablehlo.add %sum, %m {jaxpp.task = "forward_1"} : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A value that never changes is none of the loop's: its body uses the one from outside.

// CHECK: promises_invalid.mlir:[[# @LINE + 5]]:{{[0-9]+}}: error: phase 2: a loop hands on its value 2 unchanged
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 2
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %sum = %zero, %w = %x) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %n = stablehlo.add %sum, %w {jaxpp.task = "forward_0"} : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n, %w : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
