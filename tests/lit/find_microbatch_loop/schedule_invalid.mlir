// RUN: not jaxpp-opt %s --split-input-file -p find-microbatch-loop 2>&1 | filecheck %s

// Neither the loop nor the command line names a schedule.

// CHECK: schedule_invalid.mlir:[[# @LINE + 4]]:10: error: the microbatch loop has no schedule
// CHECK-NEXT: give one: schedule="1f1b" to treduce or mpmd_jit_with_loop, or a name to jaxpp-opt
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
  return %0#1 : tensor<f32>
}

// -----

// A schedule for another number of microbatches.

// CHECK: schedule_invalid.mlir:[[# @LINE + 3]]:10: error: the loop runs 3 microbatches, its schedule has 2
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1\0Amesh 1: 1F0 1F1"}}
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

// A name that no schedule has.

// CHECK: schedule_invalid.mlir:[[# @LINE + 3]]:10: error: no schedule is named '1f2b'; did you mean '1f1b'? There are {{.*}}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "1f2b"}}
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

// A step that runs chooses it.

// CHECK: schedule_invalid.mlir:[[# @LINE + 3]]:10: error: auto: a step that runs chooses this schedule, from what it measures; give one by name, such as 1f1b, or the cuts and the schedule that jaxpp.tune found
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "auto"}}
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

// A text that is no grid.

// CHECK: schedule_invalid.mlir:[[# @LINE + 3]]:10: error: line 3: {{.*}}'zero'
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: zero"}}
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

// Residuals that go to the host, and don't come back.

// CHECK: schedule_invalid.mlir:[[# @LINE + 4]]:10: error: the schedule mine has offload(stage 0, mb 0) and no reload of it
// CHECK-NEXT: the backward reads what has left: bring it back before
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0offload0 0F1 0F2 0B0 0B1 0B2\0Amesh 1: 1F0 1F1 1F2 1B0 1B1 1B2"}}
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

// A copy that is one task with a forward.

// CHECK: schedule_invalid.mlir:[[# @LINE + 4]]:10: error: the schedule mine fuses offload(stage 0, mb 0) with another task
// CHECK-NEXT: only what is compiled is fused, and this is not: give it a cell of its own
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0+0offload0 0F1 0F2 0reload0 0B0 0B1 0B2\0Amesh 1: 1F0 1F1 1F2 1B0 1B1 1B2"}}
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

// A task of the user's own kind.

// CHECK: schedule_invalid.mlir:[[# @LINE + 4]]:10: error: the schedule mine has a task that is bound to no function: log(stage 0, mb 0) on mesh 0
// CHECK-NEXT: give one to mpmd_jit_with_loop: options=jaxpp.StepOptions(operations={'log': function})
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Akind log: forward\0Amesh 0: 0F0 0log0 0F1 0F2 0B0 0B1 0B2\0Amesh 1: 1F0 1F1 1F2 1B0 1B1 1B2"}}
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

// A schedule in which a mesh waits for what it runs later itself: its own message, with the place in the grid.

// CHECK: schedule_invalid.mlir:[[# @LINE + 5]]:10: error: mesh 0 position 0: B(stage 0, mb 0) needs F(stage 0, mb 0), which comes later on mesh 0
// CHECK-NEXT: mesh 0: 0B0 0F0 {{.*}}
// CHECK-NEXT: {{ *}}^^^
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0B0 0F0 0F1 0F2 0B1 0B2\0Amesh 1: 1F0 1F1 1F2 1B0 1B1 1B2"}}
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

// Residuals of one stage that go to the host for one microbatch, and are made again for another.

// CHECK: schedule_invalid.mlir:[[# @LINE + 4]]:10: error: the schedule mine has offload(stage 0, mb 0), and recomputes other microbatches of that stage
// CHECK-NEXT: let the residuals of a stage either move or be made again
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0offload0 0F1 0F2 0reload0 0B0 0recompute1 0B1 0B2\0Amesh 1: 1F0 1F1 1F2 1B0 1B1 1B2"}}
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
