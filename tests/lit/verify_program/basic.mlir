// RUN: jaxpp-opt %s --split-input-file -p verify-program | filecheck %s

// A sound program. Mesh 0 has the argument (4 bytes) and what it makes of it; mesh 1 what it receives and what it makes
// of that. No backward waits for anything.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.bytes = {peak = 8 : i64}, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      ) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.bytes = {peak = 4 : i64}, jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F1:.*]] = call @forward_1(%[[R]]#0) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[F1]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_1(%b#0) {jaxpp.mesh = 1 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// An argument that the user donated dies at its last use, so the two calls need 8 bytes at once and not 12.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jax.buffer_donor = true, jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.bytes = {peak = 8 : i64}, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0:.*]] = call @forward_0(%[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = call @forward_1(%[[F0]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[F1]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64, jax.buffer_donor = true}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    %b = call @forward_1(%a) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return %b : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// What a task makes and nobody uses dies at once: the second call needs 12 bytes, as the first, and not 16.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.bytes = {peak = 12 : i64}, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0:.*]]:2 = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[F1:.*]] = call @forward_1(%[[F0]]#0) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[F1]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a:2 = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %b = call @forward_1(%a#0) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return %b : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.sine %a : tensor<f32>
    return %0, %1 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// One microbatch waits for its backward after each forward: two at once. What is kept for one dies in its backward.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.bytes = {peak = 16 : i64}, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[F0_0]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_1:.*]] = call @backward_0(%[[F0_1]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %c = call @backward_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    %d = call @backward_0(%b) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}
