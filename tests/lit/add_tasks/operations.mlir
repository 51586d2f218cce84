// RUN: jaxpp-opt %s -p add-tasks | filecheck %s

// One function asks for residuals: what stage 0's backward reads of its forward. The other asks for nothing.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[F:.*]]:2 = func.call @forward_0(
// CHECK-NEXT:    func.call @tick_0() {jaxpp.stage = 0 : i64}
// CHECK-NEXT:    func.call @log_0(%[[F]]#0, %[[F]]#1) {jaxpp.stage = 0 : i64}
// CHECK:         func.call @backward_0(%[[F]]#0, %[[F]]#1,
// CHECK-LABEL: func.func private @log_0(
// CHECK-SAME:      tensor<4x4xf32>, %{{.*}}: tensor<4x4xf32>) attributes {jaxpp.kind = "log", jaxpp.stage = 0 : i64} {
// CHECK-NEXT:    return
// CHECK-LABEL: func.func private @tick_0() attributes {jaxpp.kind = "tick", jaxpp.stage = 0 : i64} {
// CHECK-NEXT:    return
module attributes {jaxpp.operations = {log = "residuals", tick = ""}} {
  func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Akind log: forward\0Akind tick:\0Amesh 0: 0F0 0log0 0F1 0log1 0B0 0tick0 0B1 0tick1\0Amesh 1: 1F0 1B0 1F1 1B1", stages = 2 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %a:2 = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
      %d:2 = func.call @backward_1(%a#0, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
      %c = func.call @backward_0(%a#0, %a#1, %d#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
    return %0#1, %0#2 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %t = stablehlo.tanh %y : tensor<4x4xf32>
    %z = stablehlo.add %t, %x : tensor<4x4xf32>
    return %z, %t : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @backward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %dw = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %dx = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %s = stablehlo.add %g, %dw : tensor<4x4xf32>
    return %dx, %s : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @backward_0(%z: tensor<4x4xf32>, %t: tensor<4x4xf32>, %d: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %1 = stablehlo.multiply %d, %t : tensor<4x4xf32>
    %2 = stablehlo.multiply %1, %z : tensor<4x4xf32>
    %s = stablehlo.add %g, %2 : tensor<4x4xf32>
    return %s : tensor<4x4xf32>
  }
}
