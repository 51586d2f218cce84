// RUN: jaxpp-opt %s --split-input-file -p plan-buffers | filecheck %s

// Three stages, of which two compute the same: they share one function, that of the stage before, which is no more that
// of one stage. The calls keep theirs.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0_0]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>}
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      %[[W:.*]]: tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[R]]#0, %[[W]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F1_0]], %[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 2]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>}
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_2(
// CHECK-SAME:      %[[W:.*]]: tensor<f32> {jaxpp.number = 2 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 2 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 2]]>
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[R]]#0, %[[W]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 2 : i64}
// CHECK-NEXT:    return %[[F1_0]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward"}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    return %[[TANH]]
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%1, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1(%w: tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %2 = call @forward_1(%1#0, %w) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%2, %1#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 2]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_2(%w: tensor<f32> {jaxpp.number = 2 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 2 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 2]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %2 = call @forward_2(%1#0, %w) {jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 2 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    %1 = stablehlo.tanh %0 : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_2(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 2 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    %1 = stablehlo.tanh %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// Functions that differ stay, each with its stage: here in a constant.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F0_0]], %[[F1_0]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1.000000e+00>
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[C1]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2.000000e+00>
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[C2]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %2 = call @forward_1(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    return %1, %2 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.constant dense<1.0> : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.constant dense<2.0> : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// So do functions that take over other buffers, and a forward and a backward.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[F0_0]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B1_0:.*]] = call @backward_1(%[[F1_0]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[B1_0]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {tf.aliasing_output = 0 : i32})
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {tf.aliasing_output = 0 : i32})
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %2 = call @forward_1(%1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %3 = call @backward_1(%2) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    return %3 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// What stands before or after the tasks is shared in the same way; nothing but task functions is.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[X]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[AFTER_0]]
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      %[[Y:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[Y]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[AFTER_0]]
// CHECK-LABEL: func.func public @mesh_2(
// CHECK-SAME:      %[[Z:.*]]: tensor<f32> {jaxpp.number = 2 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 2 : i64}) attributes {jaxpp.mesh = 2 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    return %[[Z]]
// CHECK-LABEL: func.func public @mesh_3(
// CHECK-SAME:      %[[Z:.*]]: tensor<f32> {jaxpp.number = 2 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 2 : i64}) attributes {jaxpp.mesh = 3 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    return %[[Z]]
// CHECK-LABEL: func.func private @after_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
module attributes {jaxpp.meshes = 4 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @after_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
  func.func public @mesh_1(%y: tensor<f32> {jaxpp.number = 1 : i64}) -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @after_1(%y) {jaxpp.mesh = 1 : i64} : (tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
  func.func public @mesh_2(%z: tensor<f32> {jaxpp.number = 2 : i64}) -> (tensor<f32> {jaxpp.number = 2 : i64}) attributes {jaxpp.mesh = 2 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    return %z : tensor<f32>
  }
  func.func public @mesh_3(%z: tensor<f32> {jaxpp.number = 2 : i64}) -> (tensor<f32> {jaxpp.number = 2 : i64}) attributes {jaxpp.mesh = 3 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    return %z : tensor<f32>
  }
  func.func private @after_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @after_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}
