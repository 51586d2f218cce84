// RUN: not jaxpp-opt %s --split-input-file -p verify-program 2>&1 | filecheck %s

// Mesh 0 sends what it made of microbatch 0 again, in the place of microbatch 1: the type fits, and all values die once.

// CHECK: origins_invalid.mlir:[[# @LINE + 18]]:10: error: the forward of stage 1, microbatch 1 reads value 0 of the forward of stage 0, microbatch 0, expected value 0 of the forward of stage 0, microbatch 1, as for other microbatches
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %n0 = stablehlo.constant dense<0> : tensor<i32>
    %n1 = stablehlo.constant dense<1> : tensor<i32>
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x, %n0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<i32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %b = call @forward_0(%x, %n1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<i32>) -> tensor<f32>
    %t2 = "stablehlo.send"(%a, %t1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %t = stablehlo.create_token : !stablehlo.token
    %a:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_1(%zero, %a#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64, jaxpp.last_use = array<i64: 1>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %b:2 = "stablehlo.recv"(%a#1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %d = call @forward_1(%c, %b#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64, jaxpp.last_use = array<i64: 0, 1>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %d : tensor<f32>
  }
  func.func private @forward_0(%x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.multiply %x, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_1(%sum: tensor<f32>, %a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.add %sum, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// The receives have changed their channels, of equal types.

// CHECK: origins_invalid.mlir:[[# @LINE + 16]]:10: error: the forward of stage 1, microbatch 0 reads value 0 of the forward of stage 0, microbatch 1, expected one of microbatch 0, or what an earlier one hands on
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %n0 = stablehlo.constant dense<0> : tensor<i32>
    %n1 = stablehlo.constant dense<1> : tensor<i32>
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x, %n0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<i32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %b = call @forward_0(%x, %n1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<i32>) -> tensor<f32>
    %t2 = "stablehlo.send"(%b, %t1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %t = stablehlo.create_token : !stablehlo.token
    %a:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_1(%zero, %a#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64, jaxpp.last_use = array<i64: 1>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %b:2 = "stablehlo.recv"(%a#1) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %d = call @forward_1(%c, %b#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64, jaxpp.last_use = array<i64: 0, 1>} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %d : tensor<f32>
  }
  func.func private @forward_0(%x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.multiply %x, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_1(%sum: tensor<f32>, %a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.add %sum, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}
