// RUN: jaxpp-opt %s -p insert-transfers | filecheck %s

// A weight that lives in the memory of the host: mesh 0 copies it to its devices right before the first call that reads
// it, and the new one back right after the call that makes it. What only passes through stays where it is.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64}, %[[W:.*]]: tensor<f32> {jaxpp.number = 1 : i64, mhlo.memory_kind = "pinned_host"}, %[[V:.*]]: tensor<f32> {jaxpp.number = 2 : i64, mhlo.memory_kind = "pinned_host"})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64, mhlo.memory_kind = "pinned_host"}, tensor<f32> {jaxpp.number = 1 : i64}, tensor<f32> {jaxpp.number = 2 : i64, mhlo.memory_kind = "pinned_host"})
// CHECK:         %[[F:.*]] = call @forward_0(%[[X]]) {
// CHECK-NEXT:    %[[L:.*]] = call @[[LOAD:.*]](%[[W]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[N:.*]] = call @after_0(%[[L]], %[[F]]) {
// CHECK-NEXT:    %[[S:.*]] = call @[[STORE:.*]](%[[N]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[S]], %[[F]], %[[V]]
// CHECK:       func.func private @[[STORE]](%[[A:.*]]: tensor<f32>) -> (tensor<f32> {mhlo.memory_kind = "pinned_host"}) attributes {jaxpp.kind = "offload"}
// CHECK-NEXT:    return %[[A]]
// CHECK:       func.func private @[[LOAD]](%[[A:.*]]: tensor<f32> {mhlo.memory_kind = "pinned_host"}) -> tensor<f32> attributes {jaxpp.kind = "reload"}
// CHECK-NEXT:    return %[[A]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %w: tensor<f32> {jaxpp.meshes = array<i64: 0>, mhlo.memory_kind = "pinned_host"}, %v: tensor<f32> {jaxpp.meshes = array<i64: 0>, mhlo.memory_kind = "pinned_host"})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 0>, mhlo.memory_kind = "pinned_host"}, tensor<f32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 0>, mhlo.memory_kind = "pinned_host"}) {
    %1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %2 = call @after_0(%w, %1) {jaxpp.mesh = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2, %1, %v : tensor<f32>, tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @after_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.subtract %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}
