// RUN: not jaxpp-opt %s --split-input-file -p unroll-microbatches 2>&1 | filecheck %s

// A schedule of forwards alone, for a loop that has backwards.

// CHECK: schedule_invalid.mlir:[[# @LINE + 6]]:10: error: the loop has a backward of stage 1, the schedule runs it 0 times for 3 microbatches
// CHECK-NEXT: the schedule has: forward
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: .   1F0 1F1 1F2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%w0, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.add %loss, %0 : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// A schedule that splits the backward in two, for a loop that does not.

// CHECK: schedule_invalid.mlir:[[# @LINE + 6]]:10: error: the loop has a backward of stage 1, the schedule runs it 0 times for 2 microbatches
// CHECK-NEXT: the schedule has: forward, input_grad, weight_grad
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: zb\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1I1 1W0 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%w0, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.add %loss, %0 : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// A schedule for fewer microbatches.

// CHECK: schedule_invalid.mlir:[[# @LINE + 6]]:10: error: the loop has a forward of stage 0, the schedule runs it 2 times for 3 microbatches
// CHECK-NEXT: the schedule has: backward, forward
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: 1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0B0 0B1\0Amesh 1: .   1F0 1B0 1F1 1B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%w0, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.add %loss, %0 : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// A text that is no schedule.

// CHECK: schedule_invalid.mlir:[[# @LINE + 7]]:10: error: line 3: cannot read 'zero': a cell is <stage><kind><microbatch>, like 0F3, 2W1, or fused 0F3+1B2
// CHECK-NEXT: mesh 0: zero
// CHECK-NEXT: ^^^^
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: zero", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%w0, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.add %loss, %0 : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// What stage 1 makes in one microbatch stage 0 uses in the next. But stage 0 runs the forward of the next one before the
// backward of stage 1 has run.

// CHECK: schedule_invalid.mlir:[[# @LINE + 6]]:10: error: the forward of stage 0 for microbatch 1 needs a value of the backward of stage 1 for microbatch 0, which the schedule runs later
// CHECK-NEXT: what one microbatch hands on to the next must be made and used by one stage
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: 1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   0B0 0F2 0B1 .   0B2\0Amesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%g1, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.add %loss, %0 : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// GPipe runs the backwards from the last microbatch to the first. Sums don't mind, but the alternating sum of the losses
// has to wait.

// CHECK: schedule_invalid.mlir:[[# @LINE + 6]]:10: error: the backward of stage 1 for microbatch 2 needs a value of the backward of stage 1 for microbatch 1, which the schedule runs later
// CHECK-NEXT: a stage must run the microbatches in ascending order, since one hands a value on to the next; only sums (Add), maxima (Max) and stacks (Concat) may be taken in any order
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2 .   .   .   .   0B2 0B1 0B0\0Amesh 1: .   1F0 1F1 1F2 1B2 1B1 1B0", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%w0, %x, %i) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<4xf32>, tensor<i32>) -> tensor<f32>
    %b:3 = func.call @backward_1(%w1, %a, %loss, %g1) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    %c = func.call @backward_0(%x, %i, %b#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<i32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b#1, %c, %b#2 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @forward_0(%w: tensor<f32>, %x: tensor<4xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %w : tensor<f32>
  return %2 : tensor<f32>
}
func.func private @backward_1(%w: tensor<f32>, %a: tensor<f32>, %loss: tensor<f32>, %g: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %a, %w : tensor<f32>
  %1 = stablehlo.subtract %0, %loss : tensor<f32>
  %2 = stablehlo.add %g, %a : tensor<f32>
  return %w, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @backward_0(%x: tensor<4xf32>, %i: tensor<i32>, %d: tensor<f32>, %g: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<4xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  %2 = stablehlo.multiply %1, %d : tensor<f32>
  %3 = stablehlo.add %g, %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// Nobody looked for the microbatch loop yet.

// CHECK: schedule_invalid.mlir:[[# @LINE + 2]]:1: error: no microbatch loop in its canonical form
// CHECK-NEXT: run find-microbatch-loop first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// Without @main there is no training step.

// CHECK: schedule_invalid.mlir: error: the module has no function @main
// CHECK-NEXT: give a module as JAX lowers it
func.func public @step(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// An operation of the body that outline-stages left in no task.

// CHECK: schedule_invalid.mlir:[[# @LINE + 4]]:10: error: a value of the loop body that no task hands on
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %s = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: .   1F0 1F1 1F2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = stablehlo.sine %a : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// The attribute of the loop has another form.

// CHECK: schedule_invalid.mlir:[[# @LINE + 5]]:10: error: unknown form of jaxpp.microbatch_loop: {indices = array<i64: 0>, length = "three", schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: .   1F0 1F1 1F2", stages = 2 : i64, starts = array<i64: 0>, steps = array<i64: 1>}
// CHECK-NEXT: it is a dictionary: {length = 8 : i64, schedule = "..."}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %s = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = "three", schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2\0Amesh 1: .   1F0 1F1 1F2", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %a : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
