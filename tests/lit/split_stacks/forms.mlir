// RUN: jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},hoist-loop-invariants,assign-stages,split-stacks" | filecheck %s

// What is computed of each row before the loop (a cast to bfloat16), in it (another shape), or behind a barrier of
// jax.checkpoint is computed block by block.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<4x2x2xf32> {jaxpp.blocks = array<i64: 0, 1>}
// CHECK:         %[[W0:.*]] = stablehlo.slice %[[W]] [0:2, 0:2, 0:2]
// CHECK:         %[[W1:.*]] = stablehlo.slice %[[W]] [2:4, 0:2, 0:2]
// CHECK:         %[[L0:.*]] = stablehlo.convert %[[W0]] : (tensor<2x2x2xf32>) -> tensor<2x2x2xbf16>
// CHECK:         %[[L1:.*]] = stablehlo.convert %[[W1]] : (tensor<2x2x2xf32>) -> tensor<2x2x2xbf16>
// CHECK-NOT:     stablehlo.convert
// CHECK:         stablehlo.while
// CHECK:           %[[X:.*]] = stablehlo.optimization_barrier {jaxpp.task = "forward_0"} %{{[^ ]*}} : tensor<1x8xbf16>
// CHECK-NEXT:      %[[R0:.*]] = stablehlo.reshape %[[L0]] : (tensor<2x2x2xbf16>) -> tensor<1x8xbf16>
// CHECK-NEXT:      %[[G0:.*]] = stablehlo.multiply %[[R0]], %[[X]]
// CHECK:           %[[R1:.*]] = stablehlo.reshape %[[L1]] : (tensor<2x2x2xbf16>) -> tensor<1x8xbf16>
// CHECK-NEXT:      stablehlo.multiply %[[R1]],
func.func public @main(%w: tensor<4x2x2xf32>, %x: tensor<1x8xbf16>) -> tensor<1x8xbf16> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x8xbf16>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x8xbf16>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %low = stablehlo.convert %w : (tensor<4x2x2xf32>) -> tensor<4x2x2xbf16>
    %flat = stablehlo.reshape %low : (tensor<4x2x2xbf16>) -> tensor<2x8xbf16>
    %x0 = stablehlo.add %s, %x : tensor<1x8xbf16>
    %again:2 = stablehlo.optimization_barrier %flat, %x0 : tensor<2x8xbf16>, tensor<1x8xbf16>
    %r0 = stablehlo.slice %again#0 [0:1, 0:8] : (tensor<2x8xbf16>) -> tensor<1x8xbf16>
    %g0 = stablehlo.multiply %r0, %again#1 : tensor<1x8xbf16>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x8xbf16>
    %r1 = stablehlo.slice %again#0 [1:2, 0:8] : (tensor<2x8xbf16>) -> tensor<1x8xbf16>
    %g1 = stablehlo.multiply %r1, %m0 : tensor<1x8xbf16>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %g1 : tensor<i32>, tensor<1x8xbf16>
  }
  return %0#1 : tensor<1x8xbf16>
}

// -----

// What needs all rows gets them put together: here a sort. The result that feeds the stack is cut again.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      -> (tensor<2x4xf32> {jaxpp.blocks = array<i64: 0, 1>, jaxpp.feeds = 0 : i64})
// CHECK:         %[[W:.*]] = stablehlo.concatenate %[[W0:.*]], %[[W1:.*]], dim = 0
// CHECK:         %[[SORTED:.*]] = "stablehlo.sort"(%[[W]])
// CHECK:         %[[S0:.*]] = stablehlo.slice %[[SORTED]] [0:1, 0:4]
// CHECK-NEXT:    %[[S1:.*]] = stablehlo.slice %[[SORTED]] [1:2, 0:4]
// CHECK-NEXT:    %[[R:.*]] = stablehlo.concatenate %[[S0]], %[[S1]], dim = 0
// CHECK-NEXT:    return %[[R]]
func.func public @main(%w: tensor<2x4xf32>, %x: tensor<1x4xf32>) -> (tensor<2x4xf32> {jaxpp.feeds = 0 : i64}) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r0 = stablehlo.slice %w [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %r0, %x : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xf32>
    %r1 = stablehlo.slice %w [1:2, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %g1 = stablehlo.multiply %r1, %m0 : tensor<1x4xf32>
    %last = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %g1 : tensor<1x4xf32>
    %t = stablehlo.add %s, %last : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<1x4xf32>
  }
  %sorted = "stablehlo.sort"(%w) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) {dimension = 0 : i64, is_stable = true} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %sorted : tensor<2x4xf32>
}

// -----

// An argument that the loop also reads as a whole stays whole.

// CHECK-LABEL: func.func public @main(
// CHECK-NOT:     jaxpp.blocks
func.func public @main(%w: tensor<2x4xf32>, %x: tensor<1x4xf32>) -> (tensor<1x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r0 = stablehlo.slice %w [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %r0, %s : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xf32>
    %r1 = stablehlo.slice %w [1:2, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %g1 = stablehlo.multiply %r1, %m0 : tensor<1x4xf32>
    %rows = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %both = stablehlo.add %g1, %rows : tensor<1x4xf32>
    %last = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %both : tensor<1x4xf32>
    %t = stablehlo.add %s, %last : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<1x4xf32>
  }
  return %0#1 : tensor<1x4xf32>
}

// -----

// So does one whose rows can't be cut evenly, and one of which not every row is read.

// CHECK-LABEL: func.func public @main(
// CHECK-NOT:     jaxpp.blocks
func.func public @main(%w: tensor<3x4xf32>, %p: tensor<4x4xf32>, %x: tensor<1x4xf32>) -> (tensor<1x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r0 = stablehlo.slice %w [0:1, 0:4] : (tensor<3x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %r0, %x : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xf32>
    %r1 = stablehlo.slice %w [1:2, 0:4] : (tensor<3x4xf32>) -> tensor<1x4xf32>
    %g1 = stablehlo.multiply %r1, %m0 : tensor<1x4xf32>
    %r2 = stablehlo.slice %w [2:3, 0:4] : (tensor<3x4xf32>) -> tensor<1x4xf32>
    %g2 = stablehlo.multiply %r2, %g1 : tensor<1x4xf32>
    %r3 = stablehlo.slice %p [2:3, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %both = stablehlo.add %g2, %r3 : tensor<1x4xf32>
    %last = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %both : tensor<1x4xf32>
    %t = stablehlo.add %s, %last : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<1x4xf32>
  }
  return %0#1 : tensor<1x4xf32>
}

// -----

// What is computed of a row before the loop, as a cast in the body of a scan over layers, reads it out of its block.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^:]*]]: tensor<2x4xf32> {jaxpp.blocks = array<i64: 0, 1>}
// CHECK-DAG:     %[[W0:.*]] = stablehlo.slice %[[W]] [0:1, 0:4]
// CHECK-DAG:     %[[W1:.*]] = stablehlo.slice %[[W]] [1:2, 0:4]
// CHECK-DAG:     %[[C0:.*]] = stablehlo.convert %[[W0]] : (tensor<1x4xf32>) -> tensor<1x4xbf16>
// CHECK-DAG:     %[[C1:.*]] = stablehlo.convert %[[W1]] : (tensor<1x4xf32>) -> tensor<1x4xbf16>
// CHECK:         stablehlo.while
// CHECK:           stablehlo.multiply %[[C0]],
// CHECK:           stablehlo.multiply %[[C1]],
func.func public @main(%w: tensor<2x4xf32>, %x: tensor<1x4xbf16>) -> (tensor<1x4xbf16>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xbf16>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x4xbf16>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r0 = stablehlo.slice %w [0:1, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %h0 = stablehlo.convert %r0 : (tensor<1x4xf32>) -> tensor<1x4xbf16>
    %g0 = stablehlo.multiply %h0, %x : tensor<1x4xbf16>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xbf16>
    %r1 = stablehlo.slice %w [1:2, 0:4] : (tensor<2x4xf32>) -> tensor<1x4xf32>
    %h1 = stablehlo.convert %r1 : (tensor<1x4xf32>) -> tensor<1x4xbf16>
    %g1 = stablehlo.multiply %h1, %m0 : tensor<1x4xbf16>
    %last = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %g1 : tensor<1x4xbf16>
    %t = stablehlo.add %s, %last : tensor<1x4xbf16>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<1x4xbf16>
  }
  return %0#1 : tensor<1x4xbf16>
}
