// RUN: not jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},number-stages" 2>&1 | filecheck %s

// treduce's loop without any mark, for a schedule with two stages.

// CHECK: marks_invalid.mlir:[[# @LINE + 4]]:10: error: found 0 stage marks, the schedule gpipe has 2 stages
// CHECK-NEXT: mark the end of every stage (mark_stage_end): 2 marks, or 1 without the last one
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
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
  return %0#1 : tensor<f32>
}

// -----

// One mark too many.

// CHECK: marks_invalid.mlir:[[# @LINE + 4]]:10: error: found 3 stage marks, the schedule gpipe has 2 stages
// CHECK-NEXT: mark the end of every stage (mark_stage_end): 2 marks, or 1 without the last one; or take a schedule of 3 stages
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m0 = stablehlo.sine %h : tensor<f32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m0 : tensor<f32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %m1 : tensor<f32>
    %m3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "forward", name = ""}} %m2 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m3 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A mark in the loop and one behind it.

// CHECK: marks_invalid.mlir:[[# @LINE + 17]]:8: error: a stage mark outside of the microbatch loop
// CHECK-NEXT: marks must stand directly in the function that treduce maps over the microbatches
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
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
  %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %0#1 : tensor<f32>
  return %2 : tensor<f32>
}

// -----

// A mark in a scan over the layers of a stage.

// CHECK: marks_invalid.mlir:[[# @LINE + 18]]:12: error: a stage mark inside a scan or while loop
// CHECK-NEXT: marks must stand directly in the function that treduce maps over the microbatches
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %z:2 = stablehlo.while(%j = %zero, %g = %h) : tensor<i32>, tensor<f32>
    cond {
      %end = stablehlo.constant dense<3> : tensor<i32>
      %q = stablehlo.compare LT, %j, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %q : tensor<i1>
    } do {
      %t = stablehlo.sine %g : tensor<f32>
      %u = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %t : tensor<f32>
      %uno = stablehlo.constant dense<1> : tensor<i32>
      %k = stablehlo.add %j, %uno : tensor<i32>
      stablehlo.return %k, %u : tensor<i32>, tensor<f32>
    }
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %z#1 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A mark in one branch of a conditional.

// CHECK: marks_invalid.mlir:[[# @LINE + 11]]:12: error: a stage mark inside a conditional
// CHECK-NEXT: marks must stand directly in the function that treduce maps over the microbatches
func.func public @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %y = "stablehlo.if"(%p) ({
      %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %h : tensor<f32>
      stablehlo.return %m : tensor<f32>
    }, {
      stablehlo.return %h : tensor<f32>
    }) : (tensor<i1>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A backward mark of a stage whose forward has none.

// CHECK: marks_invalid.mlir:[[# @LINE + 12]]:10: error: the backward mark of stage 7 has no forward mark before it
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m0 = stablehlo.sine %h : tensor<f32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m0 : tensor<f32>
    %b1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %m1 : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 7 : i64, phase = "backward", name = ""}} %b1 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A mark that does not say which stage ends.

// CHECK: marks_invalid.mlir:[[# @LINE + 11]]:10: error: unknown form of jaxpp.boundary: {name = "", phase = "forward"}
// CHECK-NEXT: a stage mark has the form {stage = 0 : i64, phase = "forward" | "backward", name = "..."}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {phase = "forward", name = ""}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// Stages are numbered from 0.

// CHECK: marks_invalid.mlir:[[# @LINE + 11]]:10: error: unknown form of jaxpp.boundary: {phase = "forward", stage = -1 : i64}
// CHECK-NEXT: a stage mark has the form {stage = 0 : i64, phase = "forward" | "backward", name = "..."}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = -1 : i64, phase = "forward"}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// And by numbers.

// CHECK: marks_invalid.mlir:[[# @LINE + 11]]:10: error: unknown form of jaxpp.boundary: {phase = "forward", stage = "first"}
// CHECK-NEXT: a stage mark has the form {stage = 0 : i64, phase = "forward" | "backward", name = "..."}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = "first", phase = "forward"}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// There are two phases.

// CHECK: marks_invalid.mlir:[[# @LINE + 11]]:10: error: unknown form of jaxpp.boundary: {phase = "sideways", stage = 0 : i64}
// CHECK-NEXT: a stage mark has the form {stage = 0 : i64, phase = "forward" | "backward", name = "..."}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "sideways"}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// Nothing else can be said: placement is the schedule's.

// CHECK: marks_invalid.mlir:[[# @LINE + 11]]:10: error: unknown form of jaxpp.boundary: {mesh = 1 : i64, phase = "forward", stage = 0 : i64}
// CHECK-NEXT: a stage mark has the form {stage = 0 : i64, phase = "forward" | "backward", name = "..."}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", mesh = 1 : i64}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A mark is a dictionary.

// CHECK: marks_invalid.mlir:[[# @LINE + 11]]:10: error: unknown form of jaxpp.boundary: "forward"
// CHECK-NEXT: a stage mark has the form {stage = 0 : i64, phase = "forward" | "backward", name = "..."}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = "forward"} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
