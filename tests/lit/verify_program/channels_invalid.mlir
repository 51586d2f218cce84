// RUN: not jaxpp-opt %s --split-input-file -p verify-program 2>&1 | filecheck %s

// A send to the mesh that sends.

// CHECK: channels_invalid.mlir:[[# @LINE + 5]]:11: error: channel 0: a stablehlo.send on mesh 0
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %b:2 = "stablehlo.recv"(%t1) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_1(%b#0) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
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

// A send that stands on the mesh that should receive.

// CHECK: channels_invalid.mlir:[[# @LINE + 5]]:11: error: channel 0: a stablehlo.send on mesh 0
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
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

// Two sends on one channel.

// CHECK: channels_invalid.mlir:[[# @LINE + 6]]:11: error: channel 0: a second stablehlo.send on mesh 0
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %t2 = "stablehlo.send"(%a, %t1) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
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

// Two receives on one channel.

// CHECK: channels_invalid.mlir:[[# @LINE + 11]]:12: error: channel 0: a second stablehlo.recv on mesh 1
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
    %d:2 = "stablehlo.recv"(%b#1) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
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

// A send that nobody receives.

// CHECK: channels_invalid.mlir:[[# @LINE + 5]]:11: error: channel 0 from mesh 0 to mesh 1 has no recv
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %c = stablehlo.constant dense<1.0> : tensor<f32>
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

// A receive of what nobody sends.

// CHECK: channels_invalid.mlir:[[# @LINE + 8]]:12: error: channel 0 from mesh 0 to mesh 1 has no send
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
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

// The two ends of a channel name other meshes.

// CHECK: channels_invalid.mlir:[[# @LINE + 15]]:12: error: channel 0: sent with meshes (0, 1), received with (0, 2)
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %c = stablehlo.constant dense<1.0> : tensor<f32>
    return %c : tensor<f32>
  }
  func.func public @mesh_2() -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 2 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 2]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_1(%b#0) {jaxpp.mesh = 2 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
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

// Another type is received than is sent.

// CHECK: channels_invalid.mlir:[[# @LINE + 10]]:12: error: channel 0: sent with type tensor<f32>, received with tensor<8xf32>
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<8xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<8xf32>, !stablehlo.token)
    %c = call @forward_1(%b#0) {jaxpp.mesh = 1 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<8xf32>) -> tensor<8xf32>
    return %c : tensor<8xf32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// A send that does not say between which meshes.

// CHECK: channels_invalid.mlir:[[# @LINE + 5]]:11: error: a stablehlo.send without source_target_pairs
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
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

// A send to two meshes: that is two sends.

// CHECK: channels_invalid.mlir:[[# @LINE + 5]]:11: error: a stablehlo.send with 2 source-target pairs, expected one
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1], [0, 2]]> : tensor<2x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
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

// Another sharding is received than is sent.

// CHECK: channels_invalid.mlir:[[# @LINE + 11]]:12: error: channel 0: sent with sharding #sdy.sharding<@mesh, [{"data"}, {}]>, received with #sdy.sharding<@mesh, [{}, {}]>
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @mesh_0(%x: tensor<2x4xf32> {jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<2x4xf32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>, <@mesh, []>]>} : (!stablehlo.token) -> (tensor<2x4xf32>, !stablehlo.token)
    return
  }
  func.func private @forward_0(%a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}

// -----

// Each mesh waits for the other: the message says what it does not get to before that.

// CHECK: channels_invalid.mlir:[[# @LINE + 8]]:11: error: deadlock: these meshes wait for one another
// CHECK-NEXT: mesh 0: the send to mesh 1 of forward (channel 0) comes after the receive from mesh 1 of forward (channel 1)
// CHECK-NEXT: mesh 1: the send to mesh 0 of forward (channel 1) comes after the receive from mesh 0 of forward (channel 0)
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0() attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %d:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %a = call @forward_0(%d#0) {jaxpp.mesh = 0 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %d#1) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_0(%b#0) {jaxpp.mesh = 1 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%c, %b#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}
