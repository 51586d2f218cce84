// RUN: jaxpp-opt %s --split-input-file -p insert-transfers | filecheck %s

// A call on several meshes is a call on each. Its argument is on both; it and its result have one number on every mesh.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 0 : i64}, %[[B:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]], %[[B]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[B]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[AFTER_0]]
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[A]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[AFTER_0]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %n: tensor<f32> {jaxpp.meshes = array<i64: 0, 1>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 0, 1>}) {
    %1 = call @forward_0(%x, %n) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @after_0(%n) {jaxpp.meshes = array<i64: 0, 1>} : (tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @after_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// An argument that nobody uses is on no mesh; one that the user donated, in either of JAX's ways, says so on its mesh. A
// result may be an argument, and two results one value.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jax.buffer_donor = true, jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 1 : i64}, tensor<f32> {jaxpp.number = 2 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]], %[[A]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[F0_0]], %[[F0_0]]
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jax.buffer_donor = true, jaxpp.number = 2 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    return %[[A]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>, jax.buffer_donor = true}, %unused: tensor<f32> {jaxpp.meshes = array<i64>}, %y: tensor<f32> {jaxpp.meshes = array<i64: 1>, tf.aliasing_output = 0 : i32})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %1 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %y, %1, %1 : tensor<f32>, tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// A result, or an argument, that is also on another mesh is sent there for that alone.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[A]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]], %[[A]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_3:.*]] = "stablehlo.send"(%[[F0_0]], %[[T_2]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    return %[[F0_0]]
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      ) -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[R_2:.*]]:2 = "stablehlo.recv"(%[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    return %[[R]]#0, %[[R_2]]#0
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 0, 1>}, tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %1 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %1, %x : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}
