// RUN: not jaxpp-opt %s --split-input-file -p unroll-microbatches 2>&1 | filecheck %s

// A function that is no task.

// CHECK: tasks_invalid.mlir:[[# @LINE + 13]]:12: error: the loop calls @f, which is no task: no jaxpp.kind
// CHECK-NEXT: run outline-stages first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %a = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: gpipe\0Aplacement: 0\0Amesh 0: 0F0 0F1", stages = 1 : i64, indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %n = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %b = func.call @f(%a) : (tensor<f32>) -> tensor<f32>
      stablehlo.return %j, %b : tensor<i32>, tensor<f32>
    }
  return %0#1 : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// A task of no stage.

// CHECK: tasks_invalid.mlir:[[# @LINE + 13]]:12: error: the loop calls @f, which is no task: no jaxpp.stage
// CHECK-NEXT: run outline-stages first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %a = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: gpipe\0Aplacement: 0\0Amesh 0: 0F0 0F1", stages = 1 : i64, indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %n = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %b = func.call @f(%a) : (tensor<f32>) -> tensor<f32>
      stablehlo.return %j, %b : tensor<i32>, tensor<f32>
    }
  return %0#1 : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward"} {
  return %x : tensor<f32>
}

// -----

// A call of another stage than the task's.

// CHECK: tasks_invalid.mlir:[[# @LINE + 12]]:12: error: the call of @f has jaxpp.stage = 1 : i64, expected 0 : i64
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %a = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: gpipe\0Aplacement: 0\0Amesh 0: 0F0 0F1", stages = 1 : i64, indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %n = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %b = func.call @f(%a) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
      stablehlo.return %j, %b : tensor<i32>, tensor<f32>
    }
  return %0#1 : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  return %x : tensor<f32>
}

// -----

// An index that the loop does not carry.

// CHECK: tasks_invalid.mlir:[[# @LINE + 4]]:10: error: jaxpp.microbatch_loop does not fit its loop: indices = [7], length = 2
// CHECK-NEXT: run find-microbatch-loop, which writes it
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %a = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: gpipe\0Aplacement: 0\0Amesh 0: 0F0 0F1", stages = 1 : i64, indices = array<i64: 7>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %n = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %b = func.call @f(%a) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
      stablehlo.return %j, %b : tensor<i32>, tensor<f32>
    }
  return %0#1 : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  return %x : tensor<f32>
}
