// RUN: not jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2}" 2>&1 | filecheck %s

// A step without a loop, and without marks.

// CHECK: loop_invalid.mlir:[[# @LINE + 2]]:1: error: no microbatch loop, and no stage mark
// CHECK-NEXT: wrap the gradient of one microbatch in jaxpp.treduce, or write the loop with lax.scan, and mark the end of each stage in it (jaxpp.mark_stage_end)
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.sine %x : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// A loop without marks: nothing tells it from any other.

// CHECK: loop_invalid.mlir:[[# @LINE + 4]]:10: error: no microbatch loop: there is no stage mark in any loop
// CHECK-NEXT: mark the end of each stage (jaxpp.mark_stage_end) in what the loop over microbatches computes
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %y = stablehlo.sine %h : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A step with a loop that has nothing to do with stages: the marks stand outside.

// CHECK: loop_invalid.mlir:[[# @LINE + 15]]:8: error: no microbatch loop: the stage marks stand outside of any loop
// CHECK-NEXT: wrap the gradient of one microbatch in jaxpp.treduce, or write the loop with lax.scan; jaxpp.mpmd_jit_by_yield compiles a function without microbatches
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %y = stablehlo.sine %h : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  %1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %0#1 : tensor<f32>
  return %1 : tensor<f32>
}

// -----

// Two loops: one that treduce wrote, one with marks of its own. The second in this order is named.

// CHECK: loop_invalid.mlir:[[# @LINE + 4]]:10: error: found 2 microbatch loops, expected one
// CHECK-NEXT: one treduce (or one loop with stage marks) per step: put both losses into one, or make a step of each, and call one after the other
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  %r:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %y = stablehlo.sine %h : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %r#1 : tensor<f32>
}

// -----

// The loop is reached in one case only.

// CHECK: loop_invalid.mlir:[[# @LINE + 5]]:12: error: the microbatch loop stands inside another loop or conditional
// CHECK-NEXT: call treduce at the top level of the training step; a train_loop is given
func.func public @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0 = "stablehlo.if"(%p) ({
    %r:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32> attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %y = stablehlo.sine %h : tensor<f32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %y : tensor<i32>, tensor<f32>
    }
    stablehlo.return %r#1 : tensor<f32>
  }, {
    stablehlo.return %x : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// How often the loop runs is known at run time only.

// CHECK: loop_invalid.mlir:[[# @LINE + 4]]:10: error: the microbatch loop has no constant trip count
// CHECK-NEXT: loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds
func.func public @main(%x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// What it compares is no counter: it doubles.

// CHECK: loop_invalid.mlir:[[# @LINE + 4]]:10: error: the microbatch loop has no constant trip count
// CHECK-NEXT: loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %next = stablehlo.add %i, %i : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// It runs while a loss is large, as no schedule can.

// CHECK: loop_invalid.mlir:[[# @LINE + 4]]:10: error: the microbatch loop has no constant trip count
// CHECK-NEXT: loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3.0> : tensor<f32>
    %1 = stablehlo.compare LT, %h, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// It never runs.

// CHECK: loop_invalid.mlir:[[# @LINE + 4]]:10: error: the microbatch loop has 0 trips
// CHECK-NEXT: loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A counter that the test of the loop reads is not counted from zero: its start decides how often the loop runs.

// CHECK: loop_invalid.mlir:[[# @LINE + 3]]:8: error: the microbatch loop has no constant trip count
// CHECK-NEXT: loop over a fixed number of microbatches: treduce, lax.scan, or fori_loop with constant bounds
func.func public @main(%x: tensor<f32>, %start: tensor<i32>) -> tensor<i32> {
  %0 = stablehlo.while(%i = %start) : tensor<i32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %mark = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next : tensor<i32>
  }
  return %0 : tensor<i32>
}
