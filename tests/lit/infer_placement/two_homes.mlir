// RUN: jaxpp-opt %s --split-input-file -p infer-placement | filecheck %s
// RUN: jaxpp-opt %s --split-input-file -p infer-placement,insert-transfers,plan-buffers,verify-program | filecheck %s --check-prefix=PROGRAM

// Stage 0 is on two meshes, its home is mesh 1. Both largest values start from one, in buffers of their own. The weight
// is on both meshes: it is updated on the mesh of the first operand of the maximum, and comes back to both.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<8xf32> {jax.buffer_donor = true, jaxpp.meshes = array<i64: 0, 1>}) -> (tensor<8xf32> {jaxpp.feeds = 0 : i64, jaxpp.meshes = array<i64: 0, 1>})
// CHECK-NEXT:    %[[BEFORE_0:.*]] = call @before_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[BEFORE_1:.*]] = call @before_1() {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[F0:.*]] = call @forward_0(%[[BEFORE_0]], %[[W]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = call @forward_0(%[[BEFORE_1]], %[[W]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[AFTER:.*]] = call @after_1(%[[F1]], %[[F0]], %[[W]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[AFTER]]
// CHECK-LABEL: func.func private @after_1(
// CHECK-SAME:      %[[A:.*]]: tensor<8xf32>, %[[B:.*]]: tensor<8xf32>, %[[C:.*]]: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[MAX:.*]] = stablehlo.maximum %[[A]], %[[B]]
// CHECK-NEXT:    %[[NEW:.*]] = stablehlo.subtract %[[C]], %[[MAX]]
// CHECK-NEXT:    return %[[NEW]]

// Mesh 0 sends its maximum, and gets the new weight. Each buffer of a maximum is reused.

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM:         %[[ZERO:.*]] = call @before_0()
// PROGRAM-NEXT:    %[[F0:.*]] = call @forward_0(%[[ZERO]], %{{.*}}) {jaxpp.last_use = array<i64: 0, 1>
// PROGRAM-NEXT:    %[[T:.*]] = "stablehlo.send"(%[[F0]], %{{.*}}) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// PROGRAM-NEXT:    %[[NEW:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 0]]>
// PROGRAM-NEXT:    return %[[NEW]]#0
// PROGRAM-LABEL: func.func public @mesh_1(
// PROGRAM:         call @after_1
// PROGRAM-NEXT:    "stablehlo.send"
// PROGRAM-NEXT:    return
// PROGRAM-LABEL: func.func private @forward_0(
// PROGRAM-SAME:      %{{.*}}: tensor<8xf32> {tf.aliasing_output = 0 : i32}, %{{.*}}: tensor<8xf32>)
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<8xf32> {jax.buffer_donor = true}) -> (tensor<8xf32> {jaxpp.feeds = 0 : i64}) {
    %low = stablehlo.constant dense<-1.0> : tensor<8xf32>
    %1 = call @forward_0(%low, %w) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %2 = call @forward_0(%low, %w) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %3 = stablehlo.maximum %2, %1 : tensor<8xf32>
    %4 = stablehlo.subtract %w, %3 : tensor<8xf32>
    return %4 : tensor<8xf32>
  }
  func.func private @forward_0(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.maximum %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
