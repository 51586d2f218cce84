// RUN: not jaxpp-opt %s --split-input-file -p verify-loop 2>&1 | filecheck %s

// What a task made is used outside of the tasks.

// CHECK: tasks_invalid.mlir:[[# @LINE + 14]]:{{[0-9]+}}: error: phase 3: a stablehlo.negate in the loop, expected calls of tasks and the counting of microbatches
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 3
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
    %n = func.call @forward_0(%x, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %m = stablehlo.negate %n : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %a = stablehlo.add %x, %s : tensor<f32>
  return %a : tensor<f32>
}

// -----

// A task of a kind that there is not.

// CHECK: tasks_invalid.mlir:[[# @LINE + 20]]:{{[0-9]+}}: error: phase 3: a function of kind sideward of stage 0, which there is not
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 3
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
    %n = func.call @forward_0(%x, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "sideward", jaxpp.stage = 0 : i64} {
  %a = stablehlo.add %x, %s : tensor<f32>
  return %a : tensor<f32>
}

// -----

// An operation in a task still says its task.

// CHECK: tasks_invalid.mlir:[[# @LINE + 21]]:{{[0-9]+}}: error: phase 3: jaxpp.task in a function
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 3
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
    %n = func.call @forward_0(%x, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %a = stablehlo.add %x, %s {jaxpp.task = "forward_0"} : tensor<f32>
  return %a : tensor<f32>
}

// -----

// Two functions are the forward of stage 0, one for each slice; of the first an attribute is left.

// CHECK: tasks_invalid.mlir:[[# @LINE + 20]]:{{[0-9]+}}: error: phase 3: jaxpp.task in a function
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
    %n = func.call @forward_0(%x, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %a = stablehlo.add %x, %s {jaxpp.task = "forward_0"} : tensor<f32>
  return %a : tensor<f32>
}
func.func private @forward_0_slice_1(%x: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %a = stablehlo.add %x, %s : tensor<f32>
  return %a : tensor<f32>
}
