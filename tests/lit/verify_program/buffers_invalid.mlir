// RUN: not jaxpp-opt %s --split-input-file -p verify-program 2>&1 | filecheck %s

// @forward_1 writes over its argument, which another call uses afterwards.

// CHECK: buffers_invalid.mlir:[[# @LINE + 11]]:10: error: @forward_1 takes over the buffer of its argument 0, which lives on
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
    %c = call @forward_1(%b#0) {jaxpp.mesh = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %d = call @forward_0(%b#0) {jaxpp.mesh = 1 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
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

// It writes over an argument of the user's, who did not donate it.

// CHECK: buffers_invalid.mlir:[[# @LINE + 4]]:10: error: @forward_1 takes over the buffer of its argument 0, which lives on
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_1(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
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

// It reads another argument, which has the same buffer.

// CHECK: buffers_invalid.mlir:[[# @LINE + 5]]:10: error: @forward_1 takes over the buffer of its argument 0, which lives on
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = call @forward_1(%a, %a) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0, 1>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %b : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32> {tf.aliasing_output = 0 : i32}, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.add %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// A use after the last use.

// CHECK: buffers_invalid.mlir:[[# @LINE + 12]]:10: error: the forward on mesh 1 uses a value after its last use
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
    %d = call @forward_0(%b#0) {jaxpp.mesh = 1 : i64} : (tensor<f32>) -> tensor<f32>
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

// A last use of an operand that a send does not have.

// CHECK: buffers_invalid.mlir:[[# @LINE + 5]]:11: error: jaxpp.last_use names operand 1, which must not die here
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 1>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
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

// A last use of no operand.

// CHECK: buffers_invalid.mlir:[[# @LINE + 11]]:10: error: jaxpp.last_use names operand -1, which must not die here
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
    %c = call @forward_1(%b#0) {jaxpp.mesh = 1 : i64, jaxpp.last_use = array<i64: -1>} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
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

// A last use of an argument that the user did not donate.

// CHECK: buffers_invalid.mlir:[[# @LINE + 4]]:10: error: jaxpp.last_use names operand 0, which must not die here
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
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

// A last use of a result.

// CHECK: buffers_invalid.mlir:[[# @LINE + 5]]:10: error: jaxpp.last_use names operand 0, which must not die here
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = call @forward_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return %a : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// A last use of a constant.

// CHECK: buffers_invalid.mlir:[[# @LINE + 5]]:10: error: jaxpp.last_use names operand 0, which must not die here
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %x = stablehlo.constant dense<1.0> : tensor<f32>
    %a = call @forward_0(%x) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %a : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Nobody frees what was sent.

// CHECK: buffers_invalid.mlir:[[# @LINE + 5]]:10: error: a value is never freed: tensor<f32>
// CHECK-NEXT: run plan-buffers
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
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

// Nobody frees a donated argument that is used.

// CHECK: buffers_invalid.mlir:[[# @LINE + 3]]:3: error: a value is never freed: tensor<f32>
// CHECK-NEXT: run plan-buffers
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64, jax.buffer_donor = true}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %a : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}
