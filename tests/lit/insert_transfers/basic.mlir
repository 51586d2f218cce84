// RUN: jaxpp-opt %s --split-input-file -p insert-transfers | filecheck %s

// One microbatch through two stages and back. Each mesh gets its arguments, its calls in their order, and its results.
// An activation goes from mesh 0 to mesh 1 on channel 0, its gradient back on channel 1. A mesh has one chain of tokens.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 0 : i64}, %[[B:.*]]: tensor<f32> {jaxpp.number = 2 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]], %[[B]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0_0]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T_2]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 0]]>
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[B]], %[[R]]#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_0]]
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[A]], %[[R]]#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[B1_0]]#0, %[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 0]]>
// CHECK-NEXT:    return %[[B1_0]]#1
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %w1: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %3 = call @backward_0(%x, %2#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2#1, %3 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0, %b : tensor<f32>, tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Two microbatches: a value is sent right after it is made, and received right before it is used; sends do not wait.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 0 : i64}, %[[B:.*]]: tensor<f32> {jaxpp.number = 2 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]], %[[B]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0_0]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[A]], %[[F0_0]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_3:.*]] = "stablehlo.send"(%[[F0_1]], %[[T_2]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[A]], %[[R]]#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[R_2:.*]]:2 = "stablehlo.recv"(%[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F1_1:.*]] = call @forward_1(%[[F1_0]], %[[R_2]]#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F1_1]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %w1: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @forward_0(%w0, %1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %3 = call @forward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %4 = call @forward_1(%3, %2) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %4 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Four stages on three meshes, and a skip connection: what stage 0 makes goes to mesh 1 and, once, straight to mesh 2, though two tasks
// there use it.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]], %[[A]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0_0]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[T_3:.*]] = "stablehlo.send"(%[[F0_0]], %[[T_2]]) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, source_target_pairs = dense<{{\[\[}}0, 2]]>
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[A]], %[[R]]#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F1_0]], %[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 2]]>
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_2(
// CHECK-SAME:      ) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 2 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 2]]>
// CHECK-NEXT:    %[[R_2:.*]]:2 = "stablehlo.recv"(%[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, source_target_pairs = dense<{{\[\[}}0, 2]]>
// CHECK-NEXT:    %[[F2_0:.*]] = call @forward_2(%[[R]]#0, %[[R_2]]#0) {jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 2 : i64}
// CHECK-NEXT:    %[[F3_0:.*]] = call @forward_3(%[[F2_0]], %[[R_2]]#0) {jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 3 : i64}
// CHECK-NEXT:    return %[[F3_0]]
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %w: tensor<f32> {jaxpp.meshes = array<i64: 1>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 2>}) {
    %1 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @forward_1(%w, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %3 = call @forward_2(%2, %1) {jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 2 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %4 = call @forward_3(%3, %1) {jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 3 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %4 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_2(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 2 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_3(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 3 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}
