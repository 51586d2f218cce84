// RUN: jaxpp-opt %s --split-input-file -p plan-buffers | filecheck %s

// What the forward makes is sent and then used by the backward, where it dies; so does what mesh 1 received. The weight
// %w and the input %x are the user's, who did not donate them: nobody frees them. The stages have one forward.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[W:.*]]: tensor<f32> {jaxpp.number = 0 : i64}, %[[X:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0_0]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T_2]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 0]]>
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[F0_0]], %[[R]]#0) {jaxpp.last_use = array<i64: 0, 1>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_0]]
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      ) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_0(%[[R]]#0, %[[R]]#0) {jaxpp.last_use = array<i64: 0, 1>, jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F1_0]], %[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 0]]>
// CHECK-NEXT:    return
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward"}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%w: tensor<f32> {jaxpp.number = 0 : i64}, %x: tensor<f32> {jaxpp.number = 1 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @forward_0(%w, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%1, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %2:2 = "stablehlo.recv"(%t1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %3 = call @backward_0(%1, %2#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %3 : tensor<f32>
  }
  func.func public @mesh_1() attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %2 = call @forward_1(%1#0, %1#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%2, %1#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// An accumulator: each call adds to the sum of the call before, which dies there, so the result takes over its buffer.
// The last sum is returned and lives on.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[BEFORE_0:.*]] = call @before_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[BEFORE_0]], %[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_1:.*]] = call @backward_0(%[[B0_0]], %[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_1]]
// CHECK-LABEL: func.func private @before_0(
// CHECK-SAME:      ) -> tensor<f32> attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    return %[[C0]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {tf.aliasing_output = 0 : i32}, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[TANH]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %0 = call @before_0() {jaxpp.mesh = 0 : i64} : () -> tensor<f32>
    %1 = call @backward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @backward_0(%1, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @before_0() -> tensor<f32> attributes {jaxpp.kind = "before"} {
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %b : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// The update of a weight that the user donated: it dies in the update, whose result takes over its buffer rather than
// that of the gradient, which dies there too: of two, the nearer one in the computation.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[W:.*]]: tensor<f32> {jax.buffer_donor = true, jaxpp.number = 0 : i64}, %[[X:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[W]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[W]], %[[B0_0]]) {jaxpp.last_use = array<i64: 0, 1>, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[AFTER_0]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
// CHECK-LABEL: func.func private @after_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {tf.aliasing_output = 0 : i32}, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[NEGATE]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%w: tensor<f32> {jaxpp.number = 0 : i64, jax.buffer_donor = true}, %x: tensor<f32> {jaxpp.number = 1 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @backward_0(%w, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @after_0(%w, %1) {jaxpp.mesh = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @after_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.negate %b : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}
