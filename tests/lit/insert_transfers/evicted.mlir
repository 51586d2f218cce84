// RUN: jaxpp-opt %s -p insert-transfers,plan-buffers,verify-program | filecheck %s
// RUN: jaxpp-opt %s -p "insert-transfers{transport=pair},plan-buffers,verify-program{transport=pair}" | filecheck %s --check-prefix=PAIR

// A residual of stage 0 waits on mesh 1. It is sent there when it is made, and sent back when the `load` is due, behind
// the call that stands before it in @main.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK:         %[[F:.*]] = call @forward_0(
// CHECK-NEXT:    %[[T:.*]] = "stablehlo.send"(%[[F]], %{{.*}}) <{{.*}}handle = 0
// CHECK-SAME:        jaxpp.last_use = array<i64: 0>
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{{.*}}handle = 1
// CHECK-NEXT:    %[[L:.*]] = call @load_0(%[[R]]#0) {jaxpp.last_use = array<i64: 0>
// CHECK-NEXT:    call @backward_0(%{{.*}}, %[[L]])
// CHECK-LABEL: func.func public @mesh_1(
// CHECK:         %[[E:.*]] = call @evict_0(
// CHECK-NEXT:    call @forward_1(
// CHECK-NEXT:    "stablehlo.send"(%[[E]], %{{.*}}) <{{.*}}handle = 1
// CHECK-SAME:        jaxpp.last_use = array<i64: 0>
// CHECK-NEXT:    return

// Where a send waits for its receive, it is sent back when mesh 0 comes to the `load`: at once, as it does nothing else.

// PAIR-LABEL: func.func public @mesh_1(
// PAIR:         call @evict_0(
// PAIR-NEXT:    "stablehlo.send"({{.*}}handle = 1
// PAIR-NEXT:    call @forward_1(
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %w1: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @evict_0(%1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %3 = call @forward_1(%w1, %w1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %4 = call @load_0(%2) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %5 = call @backward_0(%x, %4) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %3, %5 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.add %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @evict_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "evict", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
  func.func private @load_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "load", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}
